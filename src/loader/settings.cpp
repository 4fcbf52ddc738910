// Settings from the environment and the configuration file. The only place of the library that reads either.
#include "loader/settings.hpp"

#include <inrush/loader.hpp>

#include "base/text.hpp"
#include "loader/config_file.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <system_error>

namespace inrush::inline v0 {

namespace {

constexpr std::string_view variable_prefix = "INRUSH_";
constexpr std::string_view config_variable = "INRUSH_CONFIG";
// A piece is read by O_DIRECT too, whose unit is at most a page on the file systems we know.
constexpr std::uint64_t piece_unit_bytes = 4096;

struct Bounds {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

constexpr Bounds reader_bounds = {1, 1024};
constexpr Bounds piece_bounds = {piece_unit_bytes, 1ULL << 30};
constexpr Bounds staging_bounds = {1ULL << 20, 1ULL << 40};
// CUDA_DEVICE_MAX_CONNECTIONS: 1 to 32, 8 where it is not set (CUDA C++ Programming Guide, "CUDA Environment
// Variables").
constexpr std::uint32_t queue_count_default = 8;
constexpr std::uint32_t queue_count_most = 32;
constexpr Bounds process_bounds = {1, 4096};

Error bad_value(const std::string& message) { return {ErrorCode::invalid_request, message}; }

std::uint64_t within(std::uint64_t value, const Bounds& bounds) {
  if (value >= bounds.least && value <= bounds.most) return value;
  throw bad_value(fmt::format("{} is outside {} to {}", value, bounds.least, bounds.most));
}

std::uint32_t parse_count(std::string_view text, const Bounds& bounds) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) {
    throw bad_value(fmt::format("\"{}\" is not a whole number", engine::printable(text)));
  }
  return static_cast<std::uint32_t>(within(parse_bytes(text), bounds));
}

void set_readers(LoaderOptions& options, std::string_view text) {
  options.reader_count_max = parse_count(text, reader_bounds);
}

void set_piece(LoaderOptions& options, std::string_view text) {
  options.piece_bytes_max = within(parse_bytes(text), piece_bounds);
  if (options.piece_bytes_max % piece_unit_bytes == 0) return;
  throw bad_value(fmt::format("{} is not a multiple of {}", options.piece_bytes_max, piece_unit_bytes));
}

void set_staging(LoaderOptions& options, std::string_view text) {
  options.staging_bytes_max = within(parse_bytes(text), staging_bounds);
}

void set_processes(LoaderOptions& options, std::string_view text) {
  options.loading_process_count = parse_count(text, process_bounds);
}

void set_io_uring(LoaderOptions& options, std::string_view text) {
  if (text != "auto" && text != "off")
    throw bad_value(fmt::format("\"{}\" is neither auto nor off", engine::printable(text)));
  options.io_uring = text == "auto" ? IoUring::automatic : IoUring::off;
}

void set_cufile_library(LoaderOptions& options, std::string_view text) {
  options.cufile_library = std::string(text);
}

// A relative one would be another folder for each place that a program is started in.
void set_state_folder(LoaderOptions& options, std::string_view text) {
  if (!text.starts_with('/'))
    throw bad_value(fmt::format("\"{}\" is not an absolute path", engine::printable(text)));
  options.state_folder = std::string(text);
}

// A setting, once: parsing, `inrush env` and the check for unknown names all walk this table.
struct Entry {
  std::string_view key;               // in the configuration file
  std::string_view variable;          // in the environment
  std::string_view foreign_variable;  // of another program, asked where `variable` is not set
  std::string_view help;
  void (*set)(LoaderOptions& options, std::string_view text);
  std::string (*show)(const LoaderOptions& options);
};

const std::array<Entry, 7>& entries() {
  static constexpr std::array<Entry, 7> table = {{
      {"readers", "INRUSH_READERS", "",
       "threads that read, at most; 1 to 1024, and never more than the CPUs allowed", set_readers,
       [](const LoaderOptions& options) { return std::to_string(options.reader_count_max); }},
      {"piece_bytes", "INRUSH_PIECE_BYTES", "",
       "size of one read: a multiple of 4096 up to 1GiB, as 8MiB, 4M or bytes", set_piece,
       [](const LoaderOptions& options) { return std::to_string(options.piece_bytes_max); }},
      {"staging_bytes", "INRUSH_STAGING_BYTES", "",
       "budget for the host memory that loads stage through; 1MiB or more", set_staging,
       [](const LoaderOptions& options) { return std::to_string(options.staging_bytes_max); }},
      {"io_uring", "INRUSH_IO_URING", "",
       "auto: io_uring where the kernel allows it; off: threads that pread", set_io_uring,
       [](const LoaderOptions& options) {
         return std::string(options.io_uring == IoUring::automatic ? "auto" : "off");
       }},
      {"processes", "INRUSH_PROCESSES", "LOCAL_WORLD_SIZE",
       "processes of this machine that load at the same time and share its CPUs; else LOCAL_WORLD_SIZE",
       set_processes,
       [](const LoaderOptions& options) { return std::to_string(options.loading_process_count); }},
      {"cufile_library", "INRUSH_CUFILE_LIBRARY", "",
       "path of a libcufile.so.0; else the one that is loaded, a wheel's, the system's", set_cufile_library,
       [](const LoaderOptions& options) { return options.cufile_library; }},
      {"state_folder", "INRUSH_STATE", "",
       "folder for results of `inrush probe` and cuFile's log; else inrush under $XDG_STATE_HOME or "
       "~/.local/state",
       set_state_folder, [](const LoaderOptions& options) { return options.state_folder; }},
  }};
  return table;
}

// Nothing also where the process runs with raised privileges: its environment then belongs to somebody else.
std::optional<std::string> variable_value(std::string_view name) {
  const char* value = ::secure_getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

void require_known_variables() {
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(variable_prefix) || name == config_variable) continue;
    const auto matches = [&](const Entry& entry) { return entry.variable == name; };
    if (std::ranges::any_of(entries(), matches)) continue;
    std::string known(config_variable);
    for (const Entry& entry : entries()) known += fmt::format(", {}", entry.variable);
    throw bad_value(fmt::format("environment variable {} is unknown: unset it, or use one of {}",
                                engine::printable(name), known));
  }
}

// The file that INRUSH_CONFIG names, else the first of the usual places that exists; empty: none.
std::string config_path() {
  if (const auto named = variable_value(config_variable); named && !named->empty()) return *named;
  std::vector<std::string> places;
  if (const auto folder = variable_value("XDG_CONFIG_HOME"); folder && folder->starts_with('/')) {
    places.push_back(*folder + "/inrush/config.json");
  }
  if (const auto home = variable_value("HOME"); home && home->starts_with('/')) {
    places.push_back(*home + "/.config/inrush/config.json");
  }
  places.emplace_back("/etc/inrush/config.json");
  const auto exists = [](const std::string& place) { return ::access(place.c_str(), F_OK) == 0; };
  const auto found = std::ranges::find_if(places, exists);
  return found == places.end() ? std::string() : *found;
}

// Where programs of this user keep what they found out; empty where there is no home.
std::string usual_state_folder() {
  if (const auto folder = variable_value("XDG_STATE_HOME"); folder && folder->starts_with('/'))
    return *folder + "/inrush";
  if (const auto home = variable_value("HOME"); home && home->starts_with('/'))
    return *home + "/.local/state/inrush";
  return {};
}

std::string scalar_text(const boost::json::value& value) {
  if (value.is_string()) return std::string(std::string_view(value.as_string()));
  if (value.is_int64() || value.is_uint64()) return boost::json::serialize(value);
  throw bad_value("neither a string nor a whole number");
}

struct Settings {
  LoaderOptions options;
  std::vector<std::string> sources;  // of each entry
  std::string config;                // path of the file; empty: none
};

void apply_config(Settings& settings) {
  for (const auto& [key, value] : engine::read_config_file(settings.config)) {
    const auto matches = [name = std::string_view(key)](const Entry& entry) { return entry.key == name; };
    const auto entry = std::ranges::find_if(entries(), matches);
    if (entry == entries().end()) {
      std::string known;
      for (const Entry& other : entries()) known += fmt::format("{}{}", known.empty() ? "" : ", ", other.key);
      throw engine::config_file_error(
          settings.config, fmt::format("\"{}\" is unknown: use {}", engine::printable(key), known), 0);
    }
    try {
      entry->set(settings.options, scalar_text(value));
    } catch (const Error& error) {
      throw engine::config_file_error(settings.config, fmt::format("{}: {}", entry->key, error.what()), 0);
    }
    settings.sources[static_cast<std::size_t>(entry - entries().begin())] = "file " + settings.config;
  }
}

void apply_variable(Settings& settings, std::size_t index) {
  const Entry& entry = entries()[index];
  for (const std::string_view name : {entry.variable, entry.foreign_variable}) {
    if (name.empty()) continue;
    const auto value = variable_value(name);
    if (!value || value->empty()) continue;  // empty means unset, as in most programs
    // What another program exports weighs less than a file written for us.
    if (name == entry.foreign_variable && settings.sources[index] != "default") continue;
    try {
      entry.set(settings.options, *value);
    } catch (const Error& error) {
      throw error.within(fmt::format("environment variable {}", name));
    }
    settings.sources[index] = fmt::format("environment {}", name);
    return;
  }
}

Settings read_settings() {
  Settings settings;
  settings.sources.assign(entries().size(), "default");
  settings.options.state_folder = usual_state_folder();
  require_known_variables();
  settings.config = config_path();
  if (!settings.config.empty()) apply_config(settings);
  for (std::size_t index = 0; index < entries().size(); ++index) apply_variable(settings, index);
  return settings;
}

}  // namespace

LoaderOptions options_from_environment() { return read_settings().options; }

std::vector<Setting> settings_from_environment() {
  const Settings settings = read_settings();
  std::vector<Setting> rows;
  for (std::size_t index = 0; index < entries().size(); ++index) {
    const Entry& entry = entries()[index];
    rows.push_back({std::string(entry.variable), entry.show(settings.options), settings.sources[index],
                    std::string(entry.help)});
  }
  const bool named =
      variable_value(config_variable).value_or("") == settings.config && !settings.config.empty();
  rows.push_back({std::string(config_variable), settings.config,
                  named ? fmt::format("environment {}", config_variable) : "default",
                  "configuration file (JSON, comments allowed); else inrush/config.json under "
                  "$XDG_CONFIG_HOME, ~/.config or /etc"});
  return rows;
}

}  // namespace inrush::inline v0

namespace inrush::engine {

std::uint32_t device_queue_count() {
  const std::string text = variable_value("CUDA_DEVICE_MAX_CONNECTIONS").value_or("");
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && count >= 1 && count <= queue_count_most ? count : queue_count_default;
}

}  // namespace inrush::engine
