#include "cli/commands.hpp"

#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include "cli/arguments.hpp"
#include "cli/output.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <memory>
#include <optional>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush explain 5027                             a code of cuFile, also as -5027\n"
    "  inrush explain CU_FILE_IO_NOT_SUPPORTED         the same by its name\n"
    "  inrush explain corrupt_checkpoint               a code of ours\n"
    "  inrush explain                                  all of them\n"
    "  inrush explain --json | jq '.codes[].name'      for programs\n";

// What one code means, whoever gives it.
struct Entry {
  std::optional<int> code;       // cuFile's number; ours have none
  std::optional<int> exit_code;  // of the command; cuFile's have none
  std::string_view name;
  std::string_view meaning;
  std::string_view cause;
  std::string_view remedy;
};

struct OwnCode {
  ErrorCode code;
  std::string_view meaning;
  std::string_view cause;
  std::string_view remedy;
};

constexpr std::array<OwnCode, 10> own_codes = {{
    {ErrorCode::invalid_request, "the request contradicts itself or the checkpoint",
     "a name, slice, option or setting that fits nothing", "change the request"},
    {ErrorCode::environment_unfit, "this machine does not have the device or the path that was asked for",
     "no GPU or driver, or --path gds where GPUDirect Storage cannot be used",
     "choose another device or path, or another machine"},
    {ErrorCode::not_found, "a file or folder is missing or may not be opened",
     "a mistyped path, a shard that was not downloaded, or permissions",
     "check the path and its permissions"},
    {ErrorCode::corrupt_checkpoint, "the bytes are not what the format or the index says",
     "a download that was cut short, a Git LFS pointer, or a file that changed during the load",
     "get the file again"},
    {ErrorCode::storage_failed, "the storage refused or failed a read",
     "a disk or network that fails; for results also a full disk", "check the disk or the network"},
    {ErrorCode::out_of_memory, "host, pinned or device memory ran out",
     "a model larger than the GPU, other processes on it, or a memory limit",
     "load less (--only, --window), or free some"},
    {ErrorCode::device_failed, "the GPU or its driver returned an error",
     "a GPU that fell off the bus, or an earlier error of the same process",
     "check the GPU and the kernel's log (nvidia-smi, dmesg)"},
    {ErrorCode::timed_out, "the deadline of the request passed",
     "slow or hanging storage, or a deadline that is too short", "allow more time, or check the storage"},
    {ErrorCode::cancelled, "the load was cancelled", "somebody called cancel(), or interrupted it",
     "load again"},
    {ErrorCode::internal, "a bug of Inrush", "not known", "report it with the message"},
}};

std::vector<Entry> all_entries() {
  std::vector<Entry> entries;
  for (const OwnCode& own : own_codes) {
    entries.push_back({.code = {},
                       .exit_code = exit_code(own.code),
                       .name = error_code_name(own.code),
                       .meaning = own.meaning,
                       .cause = own.cause,
                       .remedy = own.remedy});
  }
  for (const Explanation& known : cufile_errors()) {
    entries.push_back({.code = known.code,
                       .exit_code = {},
                       .name = known.name,
                       .meaning = known.meaning,
                       .cause = known.cause,
                       .remedy = known.remedy});
  }
  return entries;
}

bool same_letters(std::string_view left, std::string_view right) {
  return std::ranges::equal(
      left, right, [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

std::optional<int> number_of(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

Error unknown(const std::string& word, const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.emplace_back(entry.name);
  std::string lower = word;
  std::string upper = word;
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  std::ranges::transform(upper, upper.begin(), [](unsigned char letter) { return std::toupper(letter); });
  std::string near = nearest_word(lower, names);
  if (near.empty()) near = nearest_word(upper, names);
  return {ErrorCode::invalid_request,
          fmt::format("unknown code \"{}\"{}; there are the numbers {} to {} of cuFile, with gaps, its names "
                      "CU_FILE_..., and ours such as corrupt_checkpoint (all: inrush explain)",
                      escape_text(word), near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
                      cufile_errors().front().code, cufile_errors().back().code)};
}

Entry entry_of(const std::string& word, const std::vector<Entry>& entries) {
  const std::optional<int> number = number_of(word);
  const Explanation* const known = number ? explain_cufile_error(*number) : nullptr;
  const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
    return known != nullptr ? entry.code == known->code : same_letters(entry.name, word);
  });
  if (found == entries.end()) throw unknown(word, entries);
  return *found;
}

std::string entry_text(const Entry& entry) {
  const std::string number =
      entry.code ? fmt::format("{}", *entry.code) : fmt::format("exit code {}", entry.exit_code.value_or(0));
  return fmt::format("{} ({})\n  meaning  {}\n  likely   {}\n  remedy   {}\n", entry.name, number,
                     entry.meaning, entry.cause, entry.remedy);
}

std::string table_text(const std::vector<Entry>& entries) {
  Table table({Align::right, Align::right, Align::left, Align::left});
  table.add_row({"code", "exit", "name", "meaning"});
  for (const Entry& entry : entries) {
    table.add_row({entry.code ? fmt::format("{}", *entry.code) : "",
                   entry.exit_code ? fmt::format("{}", *entry.exit_code) : "", std::string(entry.name),
                   std::string(entry.meaning)});
  }
  return table.text() + "inrush explain CODE says the likely cause and the remedy.\n";
}

std::string json_text(const std::vector<Entry>& entries) {
  const auto number = [](const std::optional<int>& value) {
    return value ? boost::json::value(*value) : boost::json::value(nullptr);
  };
  boost::json::array rows;
  for (const Entry& entry : entries) {
    rows.push_back({{"code", number(entry.code)},
                    {"exit_code", number(entry.exit_code)},
                    {"name", entry.name},
                    {"meaning", entry.meaning},
                    {"cause", entry.cause},
                    {"remedy", entry.remedy}});
  }
  return boost::json::serialize(boost::json::object{{"schema_version", 1}, {"codes", rows}}) + "\n";
}

enum class Format { text, json };

struct ExplainArguments {
  std::vector<std::string> codes;
  Format format = Format::text;
};

void explain_command(const ExplainArguments& arguments) {
  const std::vector<Entry> entries = all_entries();
  std::vector<Entry> chosen;
  for (const std::string& word : arguments.codes) chosen.push_back(entry_of(word, entries));
  if (arguments.format == Format::json) {
    write_stdout(json_text(arguments.codes.empty() ? entries : chosen));
  } else if (arguments.codes.empty()) {
    write_stdout(table_text(entries));
  } else {
    std::string text;
    for (const Entry& entry : chosen) text += (text.empty() ? "" : "\n") + entry_text(entry);
    write_stdout(text);
  }
}

}  // namespace

void add_explain_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("explain", "Say what an error code means and what to do");
  const auto arguments = std::make_shared<ExplainArguments>();
  command->add_option("CODE", arguments->codes, "number or name of cuFile's, or name of ours; none: all")
      ->type_name("");
  command->add_flag_callback(
      "--json", [arguments] { arguments->format = Format::json; }, "one JSON document");
  command->footer(std::string(examples));
  command->callback([arguments] { explain_command(*arguments); });
}

}  // namespace inrush::engine
