#include "cli/load_run.hpp"

#include <inrush/loader.hpp>

#include "cli/arguments.hpp"
#include "cli/check.hpp"
#include "cli/cufile_environment.hpp"
#include "cli/device_choice.hpp"
#include "cli/interrupt.hpp"
#include "cli/load_result.hpp"
#include "cli/output.hpp"

#include <fmt/format.h>

#include <climits>
#include <memory>
#include <utility>

namespace inrush::engine {

namespace {

// How often the loop looks for Ctrl-C while no tensor arrives.
constexpr std::chrono::milliseconds poll_interval{50};

// The request as far as the command line alone decides it.
LoadRequest make_request(const LoadArguments& arguments) {
  LoadRequest request = arguments.request;
  for (const std::string& spelling : arguments.slices) {
    auto [name, slice] = parse_slice(spelling);
    if (!request.slices.emplace(name, slice).second) {
      throw Error(ErrorCode::invalid_request, fmt::format("--slice names {} twice", escape_text(name)));
    }
  }
  if (arguments.path == "staged") request.path = PathPreference::staged;
  if (arguments.path == "gds") request.path = PathPreference::gds;
  if (arguments.path == "cufile-compat") request.path = PathPreference::cufile_compat;
  if (arguments.page_cache == "keep") request.page_cache = PageCachePolicy::keep;
  if (arguments.page_cache == "bypass") request.page_cache = PageCachePolicy::bypass;
  try {
    if (!arguments.deadline.empty()) request.deadline = parse_duration(arguments.deadline);
  } catch (const Error& error) {
    throw error.within("--deadline");
  }
  try {
    if (!arguments.window.empty()) request.window_bytes_max = parse_bytes(arguments.window);
  } catch (const Error& error) {
    throw error.within("--window");
  }
  return request;
}

// Carries the command out for one checkpoint after the other, with one Loader.
class LoadCommand {
 public:
  explicit LoadCommand(const LoadArguments& arguments)
      : arguments_(arguments), request_(make_request(arguments)), loader_(options_from_environment()) {
    has_device_ = arguments.device != "auto" || arguments.action == LoadAction::plan;
    if (has_device_) request_.device = choose_device_named(loader_, arguments.device);
  }

  // What goes to stdout: nothing before all has succeeded, so that nobody takes half for the whole.
  std::string run() {
    std::string text;
    for (const std::string& path : arguments_.paths) {
      const std::string result = run_one(path);
      if (!text.empty()) text += arguments_.format == OutputFormat::json ? "," : "\n";
      text += result;
    }
    if (arguments_.format == OutputFormat::text) return text;
    const std::string_view list = arguments_.action == LoadAction::plan ? "plans" : "loads";
    return fmt::format(R"({{"schema_version":1,"{}":[{}]}})", list, text) + "\n";
  }

 private:
  std::string run_one(const std::string& path) {
    const Checkpoint checkpoint = discover(path, arguments_.discover);
    if (arguments_.action == LoadAction::plan) return plan(checkpoint);
    const std::unique_ptr<Load> load = start(checkpoint);
    const InterruptDeferral deferral;
    try {
      const std::vector<Tensor> tensors = take_all(*load, path);
      const Report report = load->report();
      const auto check = check_all(checkpoint, tensors);
      if (arguments_.format == OutputFormat::json) return load_result_json(json_path(path), report, check);
      return (arguments_.paths.size() > 1 ? path_line(path) : "") + load_result_text(report, check);
    } catch (const Interrupted&) {
      // Said before the load drains, which takes as long as its slowest read.
      write_stderr_line("interrupted");
      load->cancel();
      throw;
    }
  }

  // The first GPU is asked for before anybody knows that there is one: the Loader reads ahead while its
  // driver starts.
  std::unique_ptr<Load> start(const Checkpoint& checkpoint) {
    if (!std::exchange(has_device_, true)) {
      request_.device = {DeviceKind::cuda, 0};
      try {
        return loader_.start(checkpoint, request_);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::environment_unfit) throw;
        request_.device = choose_device_named(loader_, arguments_.device);
        if (request_.device.kind == DeviceKind::cuda) throw;
      }
    }
    return loader_.start(checkpoint, request_);
  }

  static std::string path_line(const std::string& path) { return escape_text(path, PATH_MAX) + "\n"; }

  std::string plan(const Checkpoint& checkpoint) {
    const Plan plan = make_plan(checkpoint, request_, loader_.machine(request_.device, checkpoint.path()));
    if (arguments_.format == OutputFormat::json) return plan_json(checkpoint, plan, request_.device);
    return describe_plan(checkpoint, plan);
  }

  // All of them are kept until the last has come: that is what the user of a model does, and what is measured
  // here.
  std::vector<Tensor> take_all(Load& load, const std::string& path) {
    ProgressDisplay display(arguments_.progress, "loading", escape_text(path, PATH_MAX));
    const std::size_t tensor_count = load.plan().placements.size();
    std::vector<Tensor> tensors;
    tensors.reserve(tensor_count);
    for (;;) {
      std::optional<Tensor> tensor = load.next_for(poll_interval);
      require_no_interrupt();
      if (tensor) {
        tensors.push_back(std::move(*tensor));
      } else if (load.done()) {
        break;
      }
      if (display.is_due()) display.show(load.progress());
    }
    if (tensors.size() == tensor_count) return tensors;
    throw Error(ErrorCode::internal, fmt::format("{}: {} came, {} were planned", escape_text(path, PATH_MAX),
                                                 counted(tensors.size(), "tensor"), tensor_count));
  }

  std::optional<CheckResult> check_all(const Checkpoint& checkpoint, const std::vector<Tensor>& tensors) {
    if (arguments_.action != LoadAction::load_and_check) return std::nullopt;
    ProgressDisplay display(arguments_.progress, "checking", escape_text(checkpoint.path(), PATH_MAX));
    return check_tensors(loader_, {checkpoint, request_.slices, tensors}, [&](const Progress& progress) {
      require_no_interrupt();
      if (display.is_due()) display.show(progress);
    });
  }

  const LoadArguments& arguments_;
  LoadRequest request_;
  Loader loader_;
  bool has_device_ = false;
};

}  // namespace

void run_load(const LoadArguments& arguments, const std::function<void(std::string_view)>& write) {
  set_cufile_environment(make_request(arguments).path);  // before the Loader has threads
  LoadCommand command(arguments);
  write(command.run());
}

}  // namespace inrush::engine
