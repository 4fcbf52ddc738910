#include "cli/commands.hpp"

#include "cli/load_run.hpp"
#include "cli/output.hpp"

#include <memory>
#include <string_view>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush load /models/llama                        into the first GPU, or into memory without one\n"
    "  inrush load /models/llama --check                and compare every byte with the files\n"
    "  inrush load model.safetensors --device cuda:1    into the second GPU\n"
    "  inrush load /models/llama --plan                 say what would be done, and do nothing\n"
    "  inrush load /models/llama --only '*.norm.*'      some tensors\n"
    "  inrush load /models/llama --slice lm_head.weight=0:0:1024    1024 rows of one tensor, all of the "
    "others\n"
    "  inrush load /models/llama --json | jq .loads[0].report.bytes_per_second\n\n"
    "Exit codes: 0 loaded, 1 failed, 2 usage, 3 no such device or path here, 4 not found, 5 corrupt or not "
    "equal,\n"
    "6 out of memory, 7 timed out, 130 interrupted. `inrush env` lists the settings.\n";

enum class Quiet { no, yes };

void add_selection_options(CLI::App& command, LoadArguments& arguments) {
  command
      .add_option("--device", arguments.device,
                  "auto (the first GPU, else cpu), cpu, cuda:N, or a GPU's UUID")
      ->type_name("DEVICE");
  command.add_option("--only", arguments.request.only, "only tensors of this name or glob; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command
      .add_option("--slice", arguments.slices,
                  "of this tensor only LENGTH elements of dimension DIM; may be repeated")
      ->type_name("NAME=DIM:START:LENGTH")
      ->allow_extra_args(false);
}

void add_way_options(CLI::App& command, LoadArguments& arguments) {
  command
      .add_option("--path", arguments.path,
                  "how bytes travel: auto (what `inrush probe` measured to be best), staged, gds (GPUDirect "
                  "Storage or fail), cufile-compat (to compare with)")
      ->check(CLI::IsMember({"auto", "staged", "gds", "cufile-compat"}))
      ->type_name("PATH");
  command
      .add_option("--page-cache", arguments.page_cache,
                  "what a cold read does to the page cache: auto, keep, bypass")
      ->check(CLI::IsMember({"auto", "keep", "bypass"}))
      ->type_name("POLICY");
  command.add_option("--deadline", arguments.deadline, "fail if the load takes longer: 30, 500ms, 2m")
      ->type_name("TIME");
  command.add_option("--window", arguments.window, "device memory to fill ahead of the consumer: 512MiB, 2G")
      ->type_name("SIZE");
}

}  // namespace

void add_discover_options(CLI::App& command, DiscoverOptions& options) {
  command.add_flag_callback(
      "--follow-links", [&options] { options.links = LinkPolicy::follow; },
      "follow links of shards out of the folder");
  CLI::Option* ignore = command.add_flag_callback(
      "--ignore-index", [&options] { options.index = IndexPolicy::ignore; },
      "take all *.safetensors of the folder");
  command
      .add_flag_callback(
          "--strict-index", [&options] { options.index = IndexPolicy::strict; },
          "a tensor that the index does not list is an error")
      ->excludes(ignore);
}

void add_load_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("load", "Load checkpoints into a device, and report how it went");
  const auto arguments = std::make_shared<LoadArguments>();
  const auto quiet = std::make_shared<Quiet>(Quiet::no);
  command
      ->add_option("PATH", arguments->paths, ".safetensors file, folder, or index.json; several load in turn")
      ->type_name("")
      ->required();
  add_selection_options(*command, *arguments);
  CLI::Option* check = command->add_flag_callback(
      "--check", [arguments] { arguments->action = LoadAction::load_and_check; },
      "compare every loaded byte with the files");
  command
      ->add_flag_callback(
          "--plan", [arguments] { arguments->action = LoadAction::plan; }, "print the plan, load nothing")
      ->excludes(check);
  command->add_flag_callback(
      "--json", [arguments] { arguments->format = OutputFormat::json; }, "one JSON document, no progress");
  command->add_flag_callback(
      "--quiet,-q", [quiet] { *quiet = Quiet::yes; }, "no progress and no report: only the exit code");
  add_way_options(*command, *arguments);
  add_discover_options(*command, arguments->discover);
  command->footer(std::string(examples));
  command->callback([arguments, quiet] {
    const bool silent = *quiet == Quiet::yes || arguments->format == OutputFormat::json;
    arguments->progress = silent ? ProgressMode::none : progress_mode_of_stderr();
    const bool shows = *quiet == Quiet::no || arguments->format == OutputFormat::json;
    run_load(*arguments, [shows](std::string_view text) {
      if (shows) write_stdout(text);
    });
  });
}

}  // namespace inrush::engine
