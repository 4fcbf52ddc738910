#include "cli/commands.hpp"

#include <inrush/loader.hpp>

#include "cli/output.hpp"

#include <boost/json.hpp>

#include <memory>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush env                          each setting, its value and who set it\n"
    "  INRUSH_READERS=4 inrush env         the same with four readers\n"
    "  inrush env --json | jq .settings    for programs\n\n"
    "A variable outweighs the configuration file, and that outweighs the default. The file is JSON:\n"
    "  {\"readers\": 8, \"piece_bytes\": \"4MiB\"}  // comments are fine\n";

enum class Format { text, json };

std::string json_settings(const std::vector<Setting>& settings) {
  boost::json::array rows;
  for (const Setting& setting : settings) {
    rows.push_back({{"name", setting.name},
                    {"value", json_path(setting.value)},
                    {"source", json_path(setting.source)},
                    {"help", setting.help}});
  }
  return boost::json::serialize(boost::json::object{{"schema_version", 1}, {"settings", rows}}) + "\n";
}

std::string text_settings(const std::vector<Setting>& settings) {
  Table table({Align::left, Align::left, Align::left, Align::left});
  table.add_row({"setting", "value", "from", "meaning"});
  for (const Setting& setting : settings) {
    const std::string value = setting.value.empty() ? "(none)" : escape_text(setting.value, PATH_MAX);
    table.add_row({setting.name, value, escape_text(setting.source, PATH_MAX), setting.help});
  }
  return table.text();
}

}  // namespace

void add_env_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("env", "List the settings, their values and where each came from");
  const auto format = std::make_shared<Format>(Format::text);
  command->add_flag_callback(
      "--json", [format] { *format = Format::json; }, "one JSON document");
  command->footer(std::string(examples));
  command->callback([format] {
    const std::vector<Setting> settings = settings_from_environment();
    write_stdout(*format == Format::json ? json_settings(settings) : text_settings(settings));
  });
}

}  // namespace inrush::engine
