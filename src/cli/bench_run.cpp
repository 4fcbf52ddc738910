#include "cli/bench_run.hpp"

#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include "cli/arguments.hpp"
#include "cli/check.hpp"
#include "cli/cufile_environment.hpp"
#include "cli/device_choice.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <map>
#include <memory>
#include <optional>

namespace inrush::engine {

namespace {

using Clock = std::chrono::steady_clock;

// How often the bar may move while no tensor arrives.
constexpr std::chrono::milliseconds poll_interval{50};

// For every call that asks. Said before what is under way drains, which takes as long as its slowest read.
bool stop_when_interrupted() {
  try {
    require_no_interrupt();
  } catch (const Interrupted&) {
    write_stderr_line("interrupted");
    throw;
  }
  return false;
}

LimitOptions limit_options(const BenchArguments& arguments) {
  LimitOptions options;
  options.interrupted = stop_when_interrupted;
  try {
    if (!arguments.seconds.empty()) options.duration = parse_duration(arguments.seconds);
  } catch (const Error& error) {
    throw error.within("--seconds");
  }
  return options;
}

double cpu_seconds_so_far() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Pages that were written lately go only once they are on the disk. What stays all the same (others have the
// file mapped, the file system is memory) is counted before the load.
void drop_pages(const Checkpoint& checkpoint) {
  for (const CheckpointFile& file : checkpoint.files()) {
    const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;  // the load says so
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

class Bench {
 public:
  explicit Bench(const BenchArguments& arguments)
      : arguments_(arguments),
        limit_options_(limit_options(arguments)),
        name_(escape_text(arguments.path, PATH_MAX)),
        loader_(options_from_environment()) {
    DiscoverOptions options = arguments.discover;
    options.interrupted = stop_when_interrupted;
    checkpoint_ = discover(arguments.path, options);
    request_.device = choose_device_named(loader_, arguments.device);
    request_.interrupted = stop_when_interrupted;
  }

  BenchResult run() {
    const Machine machine = loader_.machine(request_.device);
    require_something_that_fits(machine);
    result_.path = arguments_.path;
    result_.device = request_.device;
    result_.cpu_count = machine.cpu_count;
    result_.file_count = checkpoint_.files().size();
    result_.tensor_count = checkpoint_.tensor_count();
    result_.size_bytes = checkpoint_.size_bytes();
    result_.limits = loader_.measure_limits(checkpoint_, request_.device, limit_options_);
    if (arguments_.state != "warm") load_cold();
    if (arguments_.state != "cold") load_warm();
    return std::move(result_);
  }

 private:
  // Before the limits take their time.
  void require_something_that_fits(const Machine& machine) const {
    if (checkpoint_.size_bytes() == 0) {
      throw Error(ErrorCode::invalid_request,
                  fmt::format("bench: {} has no bytes to load: name a larger checkpoint", name_));
    }
    if (request_.device.kind != DeviceKind::cpu || checkpoint_.size_bytes() <= machine.host_free_bytes)
      return;
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("bench: the tensors of {} take {} of host memory and {} are free: name a smaller "
                    "checkpoint, one file of it, or a GPU",
                    name_, format_bytes(checkpoint_.size_bytes()), format_bytes(machine.host_free_bytes)));
  }

  void load_cold() {
    for (std::uint32_t i = 0; i < arguments_.load_count; ++i) {
      drop_pages(checkpoint_);
      Loader loader(options_from_environment());
      load(loader, BenchState::cold, "first");
    }
  }

  void load_warm() {
    Loader loader(options_from_environment());
    for (std::uint32_t i = 0; i < arguments_.load_count; ++i) {
      // Again before each: something may have been pushed out. Meanwhile the driver clears what the load
      // before has freed, which takes 4 % of the speed of one that starts at once.
      warm_pages();
      load(loader, BenchState::warm, i == 0 ? "first" : "later");
    }
  }

  void warm_pages() {
    ProgressDisplay display(arguments_.progress, "warming", name_);
    const WarmReport report = warm(checkpoint_, request_, [&](const Progress& progress) {
      if (display.is_due()) display.show(progress);
    });
    if (report.left_bytes == 0 || !result_.notes.empty()) return;
    result_.notes.push_back(fmt::format(
        "{} found no room in the page cache beside what is in use: warm loads read it from storage",
        format_bytes(report.left_bytes)));
  }

  void load(Loader& loader, BenchState state, const char* which) {
    std::vector<Tensor> tensors;
    tensors.reserve(checkpoint_.tensor_count());
    const double resident_share =
        static_cast<double>(resident_bytes(checkpoint_)) / static_cast<double>(checkpoint_.size_bytes());
    const double cpu_seconds = cpu_seconds_so_far();
    const Clock::time_point start = Clock::now();
    const std::unique_ptr<Load> load = loader.start(checkpoint_, request_);
    take_all(*load, tensors);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    result_.loads.push_back(
        {state, which, seconds, cpu_seconds_so_far() - cpu_seconds, resident_share, load->report()});
    check(loader, tensors);
  }

  // All of them are held until the last has come, as the user of a model does.
  void take_all(Load& load, std::vector<Tensor>& tensors) {
    ProgressDisplay display(arguments_.progress, "loading", name_);
    for (;;) {
      std::optional<Tensor> tensor = load.next_for(poll_interval);
      if (tensor) {
        tensors.push_back(std::move(*tensor));
      } else if (load.done()) {
        break;
      }
      if (display.is_due()) display.show(load.progress());
    }
    if (tensors.size() == checkpoint_.tensor_count()) return;
    throw Error(ErrorCode::internal,
                fmt::format("bench: {}: {} came, {} were planned", name_, counted(tensors.size(), "tensor"),
                            checkpoint_.tensor_count()));
  }

  void check(Loader& loader, const std::vector<Tensor>& tensors) {
    ProgressDisplay display(arguments_.progress, "comparing", name_);
    const CheckResult checked =
        check_tensors(loader, {checkpoint_, slices_, tensors}, [&](const Progress& progress) {
          stop_when_interrupted();
          if (display.is_due()) display.show(progress);
        });
    if (checked.bytes == checkpoint_.size_bytes()) return;
    throw Error(ErrorCode::corrupt_checkpoint,
                fmt::format("bench: {}: {} bytes were compared, the tensors have {}", name_, checked.bytes,
                            checkpoint_.size_bytes()));
  }

  const BenchArguments& arguments_;
  const LimitOptions limit_options_;
  const std::string name_;
  const std::map<std::string, Slice> slices_;  // none
  Loader loader_;  // of the limits; it also keeps the device's context, so that every load finds one
  Checkpoint checkpoint_;
  LoadRequest request_;
  BenchResult result_;
};

}  // namespace

BenchResult run_bench(const BenchArguments& arguments) {
  set_cufile_environment(PathPreference::automatic);  // before the Loader has threads
  const InterruptDeferral deferral;
  return Bench(arguments).run();
}

}  // namespace inrush::engine
