#include "cli/commands.hpp"

#include <inrush/error.hpp>
#include <inrush/loader.hpp>
#include <inrush/report.hpp>

#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_display.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <cerrno>
#include <climits>
#include <memory>
#include <system_error>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush warm /models/llama                   read it into the page cache, and say how much there was "
    "room for\n"
    "  inrush warm /models/llama --background      and return at once; then start the server\n"
    "  inrush warm /models/llama --only 'model.layers.0.*'\n\n"
    "Takes memory that is free or holds file pages not in use; what does not fit is left out and reported.\n";

enum class WarmOutput { text, json, none };

struct WarmArguments {
  std::string path;
  std::vector<std::string> only;
  bool background = false;
  WarmOutput output = WarmOutput::text;
  DiscoverOptions discover;
};

std::string warm_text(const WarmReport& report) {
  std::string text =
      fmt::format("{} of {} in the page cache: {} were there, {} read in {:.2f} s",
                  format_bytes(report.resident_bytes + report.read_bytes), format_bytes(report.planned_bytes),
                  format_bytes(report.resident_bytes), format_bytes(report.read_bytes), report.seconds);
  if (report.read_bytes > 0 && report.seconds > 0) {
    const double rate = static_cast<double>(report.read_bytes) / report.seconds;
    text += fmt::format(" ({}/s)", format_bytes(static_cast<std::uint64_t>(rate)));
  }
  if (report.left_bytes > 0) {
    text += fmt::format("\n{} left out: more would push out file pages that others use, or memory limits",
                        format_bytes(report.left_bytes));
  }
  return text + "\n";
}

std::string warm_json(const std::string& path, const WarmReport& report) {
  const boost::json::object object = {{"schema_version", 1},
                                      {"checkpoint", json_path(path)},
                                      {"planned_bytes", report.planned_bytes},
                                      {"resident_bytes", report.resident_bytes},
                                      {"read_bytes", report.read_bytes},
                                      {"left_bytes", report.left_bytes},
                                      {"seconds", report.seconds}};
  return boost::json::serialize(object) + "\n";
}

WarmReport run_warm(const WarmArguments& arguments, const Checkpoint& checkpoint, ProgressMode mode) {
  LoadRequest request;
  request.only = arguments.only;
  ProgressDisplay display(mode, "warming", escape_text(arguments.path, PATH_MAX));
  const InterruptDeferral deferral;
  request.interrupted = [] {
    require_no_interrupt();
    return false;
  };
  try {
    return warm(checkpoint, request, [&](const Progress& progress) {
      if (display.is_due()) display.show(progress);
    });
  } catch (const Interrupted&) {
    write_stderr_line("interrupted; what came stays in the page cache");
    throw;
  }
}

// Leaves the terminal and whoever started us. The command has no thread yet, so a fork takes all of it along.
// The parent gets the child's id, the child 0.
pid_t fork_into_background() {
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error(ErrorCode::out_of_memory,
                "--background: fork: " + std::system_category().message(errno) + "; warm in the foreground",
                errno);
  }
  if (child > 0) return child;
  ::setsid();
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, fd);
  if (nowhere > STDERR_FILENO) ::close(nowhere);
  return 0;
}

void tell_background(const WarmArguments& arguments, pid_t child) {
  if (arguments.output == WarmOutput::text) {
    write_stdout(fmt::format("warming {} in the background: process {}\n",
                             escape_text(arguments.path, PATH_MAX), child));
  } else if (arguments.output == WarmOutput::json) {
    const boost::json::object object = {
        {"schema_version", 1}, {"checkpoint", json_path(arguments.path)}, {"process", child}};
    write_stdout(boost::json::serialize(object) + "\n");
  }
}

void warm_command(const WarmArguments& arguments) {
  const Checkpoint checkpoint = discover(arguments.path, arguments.discover);
  const bool is_quiet = arguments.output != WarmOutput::text || arguments.background;
  if (arguments.background) {
    const pid_t child = fork_into_background();
    if (child > 0) {
      tell_background(arguments, child);
      return;
    }
  }
  const WarmReport report =
      run_warm(arguments, checkpoint, is_quiet ? ProgressMode::none : progress_mode_of_stderr());
  if (arguments.output == WarmOutput::none) return;
  write_stdout(arguments.output == WarmOutput::json ? warm_json(arguments.path, report) : warm_text(report));
}

}  // namespace

void add_warm_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("warm", "Read a checkpoint into the page cache, ahead of its load");
  const auto arguments = std::make_shared<WarmArguments>();
  command->add_option("PATH", arguments->path, ".safetensors file, folder, or index.json")
      ->type_name("")
      ->required();
  command->add_option("--only", arguments->only, "only tensors of this name or glob; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command->add_flag("--background", arguments->background,
                    "return at once and go on; faults found later are not reported");
  CLI::Option* json = command->add_flag_callback(
      "--json", [arguments] { arguments->output = WarmOutput::json; }, "one JSON document, no progress");
  command
      ->add_flag_callback(
          "--quiet,-q", [arguments] { arguments->output = WarmOutput::none; }, "no progress and no report")
      ->excludes(json);
  add_discover_options(*command, arguments->discover);
  command->footer(std::string(examples));
  command->callback([arguments] { warm_command(*arguments); });
}

}  // namespace inrush::engine
