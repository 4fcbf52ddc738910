// The Loader: opens devices when they are asked for, keeps staging between loads, and starts loads.
#include <inrush/loader.hpp>

#include "base/text.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "loader/async_load.hpp"
#include "loader/cufile_opening.hpp"
#include "loader/host_facts.hpp"
#include "loader/interruption.hpp"
#include "loader/limits.hpp"
#include "loader/load_impl.hpp"
#include "loader/probe.hpp"
#include "loader/probe_cache.hpp"
#include "loader/read_ahead.hpp"
#include "loader/staging_pool.hpp"
#include "plan/slabs.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <system_error>
#include <utility>

namespace inrush::inline v0 {

using namespace engine;

namespace {

// Opening cuFile took up to 0.8 s where it worked; libraries that spin for ever were seen.
constexpr std::chrono::seconds cufile_open_patience{20};

// cuFile writes cufile.log into the current folder of the program unless it is told another.
std::string log_folder(const std::string& state_folder) {
  std::error_code error;
  if (!state_folder.empty() && (std::filesystem::create_directories(state_folder, error) ||
                                std::filesystem::exists(state_folder, error)))
    return state_folder;
  const std::filesystem::path scratch = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : scratch.string();
}

LogFunction one_at_a_time(LogFunction log) {
  if (!log) return log;
  return [log = std::move(log), mutex = std::make_shared<std::mutex>()](LogLevel level,
                                                                        std::string_view message) {
    const std::lock_guard lock(*mutex);
    log(level, message);
  };
}

// The kernel grants more memory than there is, and kills somebody once it is touched.
void require_host_memory(const Plan& plan, const LoadRequest& request, const Machine& facts) {
  std::uint64_t held_bytes = allocated_bytes(plan);  // targets have their memory already
  if (request.window_bytes_max > 0) held_bytes = std::min(held_bytes, request.window_bytes_max);
  if (held_bytes <= facts.host_free_bytes) return;
  throw Error(
      ErrorCode::out_of_memory,
      fmt::format("the tensors take {} of host memory and {} are free (least of the host and its cgroups); "
                  "load fewer tensors, take them through a window, or load to a GPU",
                  bytes_text(held_bytes), bytes_text(facts.host_free_bytes)));
}

}  // namespace

class Loader::Impl {
 public:
  explicit Impl(LoaderOptions options)
      : options_(std::move(options)),
        pool_(std::make_shared<StagingPool>(options_.staging_bytes_max)),
        log_(one_at_a_time(options_.log)) {}

  std::vector<Device> devices();
  Device current_device();
  Machine machine(const Device& device, const std::string& path);
  std::unique_ptr<Load> start(const Checkpoint& checkpoint, const LoadRequest& request);
  std::unique_ptr<AsyncLoad> load_async(const Checkpoint& checkpoint, const LoadRequest& request,
                                        StreamWait wait);
  ProbeReport probe(const std::string& path, const Device& device, const ProbeOptions& options);
  Limits measure_limits(const Checkpoint& checkpoint, const Device& device, const LimitOptions& options);
  void require_own_process() const;
  std::shared_ptr<Gpu> gpu_of(const Device& device);
  bool is_open(const Device& device);
  void release_idle() { pool_->release_idle(); }
  [[nodiscard]] bool is_own_process() const { return ::getpid() == pid_; }

 private:
  LoadParts prepare(const Checkpoint& checkpoint, const LoadRequest& request, StreamWait wait);
  std::shared_ptr<const CudaDriver> driver_locked();
  std::shared_ptr<CufileOpening> cufile_of(const std::shared_ptr<Gpu>& gpu, CufileMode mode);
  std::shared_ptr<CufileOpening> open_cufile(const Plan& plan, const LoadRequest& request,
                                             const std::shared_ptr<Gpu>& gpu);
  std::vector<PathChoice> paths_of(const Gpu& gpu, const std::string& path);
  Device with_uuid(const Device& device);
  std::string driver_text(const Device& device);
  void apply_probe_results(const std::string& path, const Device& device, std::vector<PathChoice>& paths);

  const pid_t pid_ = ::getpid();
  const LoaderOptions options_;
  const std::shared_ptr<const Store> store_ = std::make_shared<LocalStore>();
  const std::shared_ptr<StagingPool> pool_;
  const LogFunction log_;
  std::mutex mutex_;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<Device, std::shared_ptr<Gpu>> gpus_;
  std::map<std::pair<Device, CufileMode>, std::shared_ptr<CufileOpening>> cufile_;
};

std::shared_ptr<const CudaDriver> Loader::Impl::driver_locked() {
  if (driver_ == nullptr) driver_ = CudaDriver::open(options_.cuda_library);
  return driver_;
}

std::vector<Device> Loader::Impl::devices() {
  const std::lock_guard lock(mutex_);
  std::vector<Device> devices;
  try {
    devices = driver_locked()->devices();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::environment_unfit) throw;  // no driver or no GPU: the CPU is left
  }
  devices.push_back({});
  return devices;
}

Device Loader::Impl::current_device() {
  const std::lock_guard lock(mutex_);
  return driver_locked()->current_device();
}

std::shared_ptr<Gpu> Loader::Impl::gpu_of(const Device& device) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Gpu>& gpu = gpus_[device];
  if (gpu != nullptr) return gpu;
  try {
    gpu = device.kind == DeviceKind::cpu ? open_host_gpu() : open_cuda_gpu(driver_locked(), device);
  } catch (const Error& error) {
    throw error.code() == ErrorCode::environment_unfit ? error.within(device_name(device)) : error;
  }
  return gpu;
}

bool Loader::Impl::is_open(const Device& device) {
  if (device.kind == DeviceKind::cpu) return true;
  const std::lock_guard lock(mutex_);
  const auto found = gpus_.find(device);
  return found != gpus_.end() && found->second != nullptr;
}

std::shared_ptr<CufileOpening> Loader::Impl::cufile_of(const std::shared_ptr<Gpu>& gpu, CufileMode mode) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<CufileOpening>& opening = cufile_[{gpu->device(), mode}];
  if (opening == nullptr) {
    opening = std::make_shared<CufileOpening>(
        gpu, CufileOptions{mode, options_.cufile_library, log_folder(options_.state_folder)});
  }
  return opening;
}

// Starts opening where the plan goes by cuFile. Who forced that path waits, and gets the reason where it
// fails; else the load begins without it.
std::shared_ptr<CufileOpening> Loader::Impl::open_cufile(const Plan& plan, const LoadRequest& request,
                                                         const std::shared_ptr<Gpu>& gpu) {
  if (plan.path == "staged" || plan.pieces.empty()) return nullptr;
  std::shared_ptr<CufileOpening> opening =
      cufile_of(gpu, plan.path == "gds" ? CufileMode::direct : CufileMode::compat);
  if (!plan.path_is_forced) return opening;
  Interruption interruption(request.interrupted);
  const Clock::time_point give_up = Clock::now() + cufile_open_patience;
  while (!opening->wait_until(std::min(give_up, interruption.due()))) {
    interruption.check();
    if (Clock::now() < give_up) continue;
    throw Error(
        ErrorCode::environment_unfit,
        fmt::format("path \"{}\": libcufile did not come back from opening its driver within {} s; use "
                    "the path \"staged\"",
                    plan.path, cufile_open_patience.count()));
  }
  if (const std::optional<Error> failure = opening->failure())
    throw failure->within(fmt::format("path \"{}\" was asked for and cannot be used", plan.path));
  return opening;
}

std::vector<PathChoice> Loader::Impl::paths_of(const Gpu& gpu, const std::string& path) {
  std::vector<PathChoice> paths = {
      {.name = "staged",
       .usable = true,
       .reason = gpu.is_host() ? "storage -> host memory"
                               : "storage -> pinned host ring -> " + device_name(gpu.device())},
      {.name = "gds", .usable = !gpu.is_host(), .reason = "storage -> device by cuFile"},
      {.name = "cufile-compat", .usable = !gpu.is_host(), .reason = "cuFile's own way through host memory"}};
  if (gpu.is_host()) {
    for (PathChoice& choice : std::span(paths).subspan(1)) choice.reason = "cuFile reads into GPU memory";
    return paths;
  }
  apply_probe_results(path, gpu.device(), paths);
  const std::lock_guard lock(mutex_);
  for (PathChoice& choice : std::span(paths).subspan(1)) {
    const auto opening =
        cufile_.find({gpu.device(), choice.name == "gds" ? CufileMode::direct : CufileMode::compat});
    if (opening == cufile_.end()) continue;
    if (const std::optional<Error> failure = opening->second->failure()) {
      choice.usable = false;
      choice.reason = failure->what();
    }
  }
  return paths;
}

// A GPU that was named by its number, as results of probes know it.
Device Loader::Impl::with_uuid(const Device& device) {
  if (device.kind == DeviceKind::cpu || !device.uuid.empty()) return device;
  const std::lock_guard lock(mutex_);
  for (const Device& known : driver_locked()->devices()) {
    if (known.index == device.index) return known;
  }
  return device;
}

std::string Loader::Impl::driver_text(const Device& device) {
  if (device.kind == DeviceKind::cpu) return {};
  const std::lock_guard lock(mutex_);
  return driver_locked()->describe(device.index);
}

void Loader::Impl::apply_probe_results(const std::string& path, const Device& device,
                                       std::vector<PathChoice>& paths) {
  engine::apply_probe_results({.path = path,
                               .gpu = with_uuid(device).uuid,
                               .driver = driver_text(device),
                               .cufile_library = options_.cufile_library,
                               .state_folder = options_.state_folder},
                              paths);
}

ProbeReport Loader::Impl::probe(const std::string& path, const Device& device, const ProbeOptions& options) {
  const Device known = with_uuid(gpu_of(device)->device());
  return run_probe({.path = path,
                    .device = known,
                    .driver = driver_text(known),
                    .cuda_library = options_.cuda_library,
                    .cufile_library = options_.cufile_library,
                    .state_folder = options_.state_folder},
                   options);
}

Limits Loader::Impl::measure_limits(const Checkpoint& checkpoint, const Device& device,
                                    const LimitOptions& options) {
  return engine::measure_limits({.checkpoint = checkpoint,
                                 .machine = machine(device, checkpoint.path()),
                                 .gpu = gpu_of(device),
                                 .io_uring = options_.io_uring},
                                options);
}

Machine Loader::Impl::machine(const Device& device, const std::string& path) {
  const std::shared_ptr<Gpu> gpu = gpu_of(device);
  const HostFacts host = read_host_facts();
  Machine machine;
  machine.devices = {gpu->device()};
  machine.cpu_count = host.cpu_count;
  machine.loading_process_count = options_.loading_process_count;
  machine.host_free_bytes = host.free_bytes;
  machine.staging_bytes_max = pool_->available_bytes();
  machine.reader_count_max = options_.reader_count_max;
  machine.piece_bytes_max = options_.piece_bytes_max;
  machine.paths = paths_of(*gpu, path);
  return machine;
}

namespace {

// Whoever asks for such a load waits for all of its memory, and a call takes as long for 12 GB as for 256 MiB
// (H200, the first time in a process: 1 ms).
constexpr std::uint64_t async_slab_bytes_max = 1ULL << 30;

// Unregistering in mid-load would wait for streams that wait for the load.
void leave_what_waits_for_the_device(Machine& facts) {
  facts.page_cache_windows = false;
  facts.slab_bytes_max = async_slab_bytes_max;
  for (PathChoice& path : facts.paths) {
    if (path.name == "staged" || !path.usable) continue;
    path.usable = false;
    path.reason =
        "streams wait for values of this load, and its ring would be registered meanwhile: wait by event";
  }
}

}  // namespace

LoadParts Loader::Impl::prepare(const Checkpoint& checkpoint, const LoadRequest& request, StreamWait wait) {
  const Clock::time_point begin = Clock::now();
  std::unique_ptr<ReadAhead> ahead;
  if (!is_open(request.device)) ahead = std::make_unique<ReadAhead>(checkpoint, request, store_);
  const std::shared_ptr<Gpu> gpu = gpu_of(request.device);
  if (ahead != nullptr) ahead->end();
  LoadRequest bound = request;
  bound.device = gpu->device();  // with its UUID, as the plan knows it
  Machine facts = machine(bound.device, checkpoint.path());
  if (wait == StreamWait::wait_value) leave_what_waits_for_the_device(facts);
  if (gpu->streams_wait()) facts.page_cache_windows = false;  // which are unregistered one by one
  Plan plan = make_plan(checkpoint, bound, facts);
  if (gpu->is_host() && !request.allocate) require_host_memory(plan, request, facts);
  std::shared_ptr<CufileOpening> cufile = open_cufile(plan, bound, gpu);
  return {.checkpoint = checkpoint,
          .request = std::move(bound),
          .plan = std::move(plan),
          .gpu = gpu,
          .store = store_,
          .pool = pool_,
          .io_uring = options_.io_uring,
          .cufile = std::move(cufile),
          .log = log_,
          .ahead = std::move(ahead),
          .start = begin,
          .plan_seconds = seconds_between(begin, Clock::now())};
}

std::unique_ptr<Load> Loader::Impl::start(const Checkpoint& checkpoint, const LoadRequest& request) {
  auto load = std::make_unique<LoadImpl>(prepare(checkpoint, request, StreamWait::event));
  load->begin();
  return load;
}

std::unique_ptr<AsyncLoad> Loader::Impl::load_async(const Checkpoint& checkpoint, const LoadRequest& request,
                                                    StreamWait wait) {
  return start_async_load(prepare(checkpoint, async_request(request, wait), wait), wait);
}

void Loader::Impl::require_own_process() const {
  if (!is_own_process()) {
    throw Error(ErrorCode::invalid_request,
                "this Loader belongs to the parent process; a forked child needs a Loader of its own "
                "(with Python's multiprocessing: use spawn)");
  }
}

Loader::Loader(LoaderOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Loader::~Loader() {
  // In a forked child the threads exist only in the parent and the driver may not be touched: left to the end
  // of the process.
  if (!impl_->is_own_process()) static_cast<void>(impl_.release());
}

Machine Loader::machine(const Device& device, const std::string& path) {
  impl_->require_own_process();
  return impl_->machine(device, path);
}

std::vector<Device> Loader::devices() {
  impl_->require_own_process();
  return impl_->devices();
}

Device Loader::current_device() {
  impl_->require_own_process();
  return impl_->current_device();
}

std::unique_ptr<Load> Loader::start(const Checkpoint& checkpoint, const LoadRequest& request) {
  impl_->require_own_process();
  try {
    return impl_->start(checkpoint, request);
  } catch (const Error& error) {
    throw error.within("load " + engine::printable(checkpoint.path()));
  }
}

std::unique_ptr<AsyncLoad> Loader::load_async(const Checkpoint& checkpoint, const LoadRequest& request,
                                              StreamWait wait) {
  impl_->require_own_process();
  try {
    return impl_->load_async(checkpoint, request, wait);
  } catch (const Error& error) {
    throw error.within("load " + engine::printable(checkpoint.path()));
  }
}

void Loader::copy_to_host(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> target) {
  impl_->require_own_process();
  if (offset > tensor.size_bytes || target.size() > tensor.size_bytes - offset) {
    throw Error(ErrorCode::invalid_request, "copy_to_host: the range is outside the tensor");
  }
  if (target.empty()) return;
  impl_->gpu_of(tensor.device)->copy_to_host(static_cast<const std::byte*>(tensor.data) + offset, target);
}

ProbeReport Loader::probe(const std::string& path, const Device& device, const ProbeOptions& options) {
  impl_->require_own_process();
  return impl_->probe(path, device, options);
}

Limits Loader::measure_limits(const Checkpoint& checkpoint, const Device& device,
                              const LimitOptions& options) {
  impl_->require_own_process();
  try {
    return impl_->measure_limits(checkpoint, device, options);
  } catch (const Error& error) {
    throw error.within("limits of " + engine::printable(checkpoint.path()));
  }
}

void Loader::release_idle() {
  impl_->require_own_process();
  impl_->release_idle();
}

}  // namespace inrush::inline v0
