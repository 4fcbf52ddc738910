#include "cli/commands.hpp"

#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include "cli/output.hpp"

#include <memory>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush stats --gds                           what nvidia-fs counted, for all processes\n"
    "  inrush stats --gds --json | jq .reads        for programs\n\n"
    "Only nvidia-fs counts here: neither compat mode nor P2PDMA, which do not go through it. The report of "
    "a\n"
    "load says which way its own bytes took.\n";

enum class Format { text, json };

void stats_command(Format format) {
  const std::optional<GdsDriverStats> stats = read_gds_driver_stats();
  if (!stats) {
    throw Error(ErrorCode::environment_unfit,
                "nvidia-fs is not loaded: no /proc/driver/nvidia-fs/stats. GPUDirect Storage by P2PDMA needs "
                "no nvidia-fs and has no such statistics; to load it: modprobe nvidia-fs");
  }
  write_stdout(format == Format::json ? gds_driver_stats_to_json(*stats) + "\n"
                                      : gds_driver_stats_to_text(*stats));
}

}  // namespace

void add_stats_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("stats", "Print what the kernel driver of GPUDirect Storage counted");
  const auto format = std::make_shared<Format>(Format::text);
  command->add_flag("--gds")->description("of nvidia-fs")->required();
  command->add_flag_callback(
      "--json", [format] { *format = Format::json; }, "one JSON document");
  command->footer(std::string(examples));
  command->callback([format] { stats_command(*format); });
}

}  // namespace inrush::engine
