#include "cli/commands.hpp"

#include <inrush/error.hpp>
#include <inrush/loader.hpp>
#include <inrush/report.hpp>

#include "cli/arguments.hpp"
#include "cli/device_choice.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <memory>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush probe /models/llama                  each path from there into the first GPU\n"
    "  inrush probe /models/llama --device cuda:1  into the second\n"
    "  inrush probe /models/llama --bytes 4G       longer, for figures that vary less\n"
    "  inrush probe /models/llama --json | jq -r .chosen\n\n"
    "Each path runs in a process of its own, and every byte is compared with the file. Loads from this file\n"
    "system into this GPU use the result until driver, kernel, libcufile or its configuration change. Exit\n"
    "code 0 also where GPUDirect Storage is impossible: that is an answer; 1 where bytes were wrong.\n";

enum class Format { text, json };

struct ProbeArguments {
  std::string path;
  std::string device = "auto";
  std::string bytes;
  std::string timeout;
  Format format = Format::text;
};

ProbeOptions make_options(const ProbeArguments& arguments) {
  ProbeOptions options;
  try {
    if (!arguments.bytes.empty()) options.bytes = parse_bytes(arguments.bytes);
  } catch (const Error& error) {
    throw error.within("--bytes");
  }
  try {
    if (!arguments.timeout.empty()) options.timeout = parse_duration(arguments.timeout);
  } catch (const Error& error) {
    throw error.within("--timeout");
  }
  options.interrupted = [] {
    require_no_interrupt();
    return false;
  };
  return options;
}

ProbeReport run_probe_of(const ProbeArguments& arguments) {
  const ProbeOptions options = make_options(arguments);
  Loader loader(options_from_environment());
  const Device device = choose_device_named(loader, arguments.device);
  const InterruptDeferral deferral;  // the child must end with us
  try {
    return loader.probe(arguments.path, device, options);
  } catch (const Interrupted&) {
    write_stderr_line("interrupted");
    throw;
  }
}

// After the result is written: the exit code must not be overlooked by a program, nor the line by people.
void require_right_bytes(const ProbeReport& report) {
  const auto wrong = std::ranges::find(report.candidates, true, &ProbeCandidate::wrong_bytes);
  if (wrong == report.candidates.end()) return;
  throw Error(ErrorCode::device_failed, fmt::format("probe: the path \"{}\" delivered {}; do not use it here",
                                                    wrong->path, wrong->reason));
}

void probe_command(const ProbeArguments& arguments) {
  const ProbeReport report = run_probe_of(arguments);
  write_stdout(arguments.format == Format::json ? probe_to_json(report) + "\n" : probe_to_text(report));
  require_right_bytes(report);
}

}  // namespace

void add_probe_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("probe", "Measure each way from a file system into a device, for loads to choose");
  const auto arguments = std::make_shared<ProbeArguments>();
  command->add_option("PATH", arguments->path, "file, or folder: the largest file of its checkpoint is read")
      ->type_name("")
      ->required();
  command
      ->add_option("--device", arguments->device,
                   "auto (the first GPU, else cpu), cpu, cuda:N, or a GPU's UUID")
      ->type_name("DEVICE");
  command->add_option("--bytes", arguments->bytes, "read at most this much by each path; else 1GiB")
      ->type_name("SIZE");
  command->add_option("--timeout", arguments->timeout, "give up a path after this time; else 60s")
      ->type_name("TIME");
  command->add_flag_callback(
      "--json", [arguments] { arguments->format = Format::json; }, "one JSON document");
  command->footer(std::string(examples));
  command->callback([arguments] { probe_command(*arguments); });
}

}  // namespace inrush::engine
