#include "cli/commands.hpp"

#include "cli/bench_run.hpp"
#include "cli/output.hpp"

#include <memory>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush bench /models/llama                   limits of this machine, cold and warm loads, and their "
    "share of them\n"
    "  inrush bench /models/llama --state warm      without pushing its pages out of the page cache\n"
    "  inrush bench /models/llama --seconds 10      longer, for limits that vary less\n"
    "  inrush bench /models/llama --json | jq '.loads[] | [.state, .seconds, .limit_share]'\n\n"
    "Cold loads drop the pages of these files from the page cache, and each is by a new loader; warm loads\n"
    "read them in first, and all but the first are by the same loader. What was in the page cache just "
    "before\n"
    "a load is counted: the last column says where its bytes came from. Every byte of every load is "
    "compared\n"
    "with the files: exit code 5 "
    "where one differs. Best while nothing else runs on the machine.\n";

enum class Format { text, json };

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure what the machine gives, and how much of it loads reach");
  const auto arguments = std::make_shared<BenchArguments>();
  const auto format = std::make_shared<Format>(Format::text);
  command->add_option("PATH", arguments->path, ".safetensors file, folder, or index.json")
      ->type_name("")
      ->required();
  command
      ->add_option("--device", arguments->device,
                   "auto (the first GPU, else cpu), cpu, cuda:N, or a GPU's UUID")
      ->type_name("DEVICE");
  command->add_option("--state", arguments->state, "loads to measure: cold, warm, both; else both")
      ->check(CLI::IsMember({"cold", "warm", "both"}))
      ->type_name("STATE");
  command->add_option("--loads", arguments->load_count, "loads of each state, 1 to 100; else 3")
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  command->add_option("--seconds", arguments->seconds, "time to measure each limit for; else 2")
      ->type_name("TIME");
  command->add_flag_callback(
      "--json", [format] { *format = Format::json; }, "one JSON document, no progress");
  add_discover_options(*command, arguments->discover);
  command->footer(std::string(examples));
  command->callback([arguments, format] {
    arguments->progress = *format == Format::json ? ProgressMode::none : progress_mode_of_stderr();
    const BenchResult result = run_bench(*arguments);
    write_stdout(*format == Format::json ? bench_json(result) : bench_text(result));
  });
}

}  // namespace inrush::engine
