#include "cli/commands.hpp"

#include <inrush/checkpoint.hpp>
#include <inrush/plan.hpp>
#include <inrush/report.hpp>

#include "cli/output.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush inspect model.safetensors\n"
    "  inrush inspect /models/llama --only '*.q_proj.weight'\n"
    "  inrush inspect /models/llama | grep norm\n"
    "  inrush inspect /models/llama --json | jq '.tensors[].name'\n\n"
    "Reads the headers only. On a terminal the first 100 tensors are shown, elsewhere all; --limit says "
    "otherwise.\n";

// Enough to see the pattern of the names; a million lines on a terminal help nobody.
constexpr std::size_t terminal_rows_max = 100;
constexpr std::size_t metadata_value_characters_max = 60;

enum class Format { text, json };

struct InspectArguments {
  std::string path;
  std::vector<std::string> only;
  std::optional<std::size_t> limit;  // 0: all
  Format format = Format::text;
  DiscoverOptions discover;
};

// Checkpoint, and which of its tensors to show, in the order of the files.
struct Selection {
  Checkpoint checkpoint;
  std::vector<std::size_t> tensors;
  std::size_t shown_count = 0;  // the rest is cut off
};

// By planning, so that a pattern means here exactly what it means to `inrush load`.
std::vector<std::size_t> select_tensors(const Checkpoint& checkpoint, const std::vector<std::string>& only) {
  std::vector<std::size_t> selected;
  if (only.empty()) {
    for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) selected.push_back(i);
    return selected;
  }
  Machine machine;
  machine.devices = {Device{}};
  machine.paths = {{"staged", true, "any machine will do to select tensors", 0}};
  LoadRequest request;
  request.only = only;
  for (const Placement& placement : make_plan(checkpoint, request, machine).placements) {
    selected.push_back(placement.tensor);
  }
  std::ranges::sort(selected);
  return selected;
}

Selection select(const InspectArguments& arguments) {
  Selection selection;
  selection.checkpoint = discover(arguments.path, arguments.discover);
  selection.tensors = select_tensors(selection.checkpoint, arguments.only);
  const bool on_terminal = arguments.format == Format::text && ::isatty(STDOUT_FILENO) == 1;
  const std::size_t limit = arguments.limit.value_or(on_terminal ? terminal_rows_max : 0);
  selection.shown_count = limit == 0 ? selection.tensors.size() : std::min(limit, selection.tensors.size());
  return selection;
}

std::string file_name(const std::string& path) {
  return escape_text(path.substr(path.rfind('/') + 1), PATH_MAX);
}

std::string text_files(const Checkpoint& checkpoint) {
  std::vector<std::uint64_t> counts(checkpoint.files().size(), 0);
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) ++counts[checkpoint.tensor(i).file];
  Table table({Align::left, Align::right, Align::right, Align::left});
  table.add_row({"file", "tensors", "size", "metadata"});
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const CheckpointFile& file = checkpoint.files()[i];
    std::vector<std::string> metadata;
    for (const auto& [key, value] : file.metadata) {
      metadata.push_back(escape_text(key) + "=" + escape_text(value, metadata_value_characters_max));
    }
    table.add_row({file_name(file.path), grouped(counts[i]), format_bytes(file.identity.size_bytes),
                   fmt::format("{}", fmt::join(metadata, ", "))});
  }
  return table.text();
}

std::string text_dtypes(const Selection& selection) {
  struct Sum {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Sum> sums(dtype_count);
  for (const std::size_t index : selection.tensors) {
    const TensorInfo info = selection.checkpoint.tensor(index);
    Sum& sum = sums[static_cast<std::size_t>(info.dtype)];
    ++sum.count;
    sum.bytes += info.size_bytes;
  }
  Table table({Align::left, Align::right, Align::right});
  table.add_row({"dtype", "tensors", "size"});
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].count == 0) continue;
    const std::string name(dtype_name(static_cast<DType>(i)));
    table.add_row({name, grouped(sums[i].count), format_bytes(sums[i].bytes)});
  }
  return table.text();
}

std::string text_tensors(const Selection& selection) {
  Table table({Align::left, Align::left, Align::left, Align::right, Align::left});
  table.add_row({"tensor", "dtype", "shape", "size", "file"});
  for (std::size_t i = 0; i < selection.shown_count; ++i) {
    const TensorInfo info = selection.checkpoint.tensor(selection.tensors[i]);
    table.add_row({escape_text(info.name), std::string(dtype_name(info.dtype)),
                   fmt::format("[{}]", fmt::join(info.shape, ", ")), format_bytes(info.size_bytes),
                   file_name(selection.checkpoint.files()[info.file].path)});
  }
  return table.text();
}

std::string inspect_text(const Selection& selection) {
  const Checkpoint& checkpoint = selection.checkpoint;
  std::string text =
      fmt::format("{}: {}, {} of tensors in {}\n\n", escape_text(checkpoint.path(), PATH_MAX),
                  counted(checkpoint.tensor_count(), "tensor"), format_bytes(checkpoint.size_bytes()),
                  counted(checkpoint.files().size(), "file"));
  text += text_files(checkpoint) + "\n" + text_dtypes(selection) + "\n" + text_tensors(selection);
  const std::size_t cut = selection.tensors.size() - selection.shown_count;
  if (cut > 0) text += fmt::format("  ... and {} more: --limit 0 shows all\n", grouped(cut));
  // The library wrote the notes and made what they quote safe for a terminal.
  for (const std::string& note : checkpoint.notes()) text += "\nnote: " + note;
  if (!checkpoint.notes().empty()) text += "\n";
  return text;
}

boost::json::array json_files(const Checkpoint& checkpoint) {
  boost::json::array files;
  for (const CheckpointFile& file : checkpoint.files()) {
    boost::json::object metadata;
    for (const auto& [key, value] : file.metadata) metadata[key] = value;
    files.push_back({{"path", json_path(file.path)},
                     {"size_bytes", file.identity.size_bytes},
                     {"data_offset", file.data_offset},
                     {"metadata", metadata}});
  }
  return files;
}

std::string json_tensor(const TensorInfo& info) {
  boost::json::array shape;
  for (const std::uint64_t extent : info.shape) shape.emplace_back(extent);
  return boost::json::serialize(boost::json::object{{"name", info.name},
                                                    {"dtype", dtype_name(info.dtype)},
                                                    {"shape", shape},
                                                    {"file", info.file},
                                                    {"offset", info.offset},
                                                    {"size_bytes", info.size_bytes}});
}

std::string inspect_json(const Selection& selection) {
  boost::json::array notes;
  for (const std::string& note : selection.checkpoint.notes()) notes.emplace_back(note);
  const boost::json::object head = {{"schema_version", 1},
                                    {"path", json_path(selection.checkpoint.path())},
                                    {"size_bytes", selection.checkpoint.size_bytes()},
                                    {"tensor_count", selection.checkpoint.tensor_count()},
                                    {"selected_count", selection.tensors.size()},
                                    {"notes", notes},
                                    {"files", json_files(selection.checkpoint)}};
  // Tensor by tensor: a value of a million tensors would take several times the memory of their text.
  std::string text = boost::json::serialize(head);
  text.back() = ',';
  text += "\"tensors\":[";
  for (std::size_t i = 0; i < selection.shown_count; ++i) {
    text += (i == 0 ? "" : ",") + json_tensor(selection.checkpoint.tensor(selection.tensors[i]));
  }
  return text + "]}\n";
}

void inspect(const InspectArguments& arguments) {
  const Selection selection = select(arguments);
  write_stdout(arguments.format == Format::json ? inspect_json(selection) : inspect_text(selection));
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "Show the files and tensors of a checkpoint");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("PATH", arguments->path, ".safetensors file, folder, or index.json")
      ->type_name("")
      ->required();
  command->add_option("--only", arguments->only, "only tensors of this name or glob; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command->add_option("--limit", arguments->limit, "show this many tensors at most; 0: all")
      ->type_name("N")
      ->check(CLI::Range(0, 2'000'000'000));
  add_discover_options(*command, arguments->discover);
  command->add_flag_callback(
      "--json", [arguments] { arguments->format = Format::json; }, "one JSON document");
  command->footer(std::string(examples));
  command->callback([arguments] { inspect(*arguments); });
}

}  // namespace inrush::engine
