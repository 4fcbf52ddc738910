// A Report as text: for people and as JSON.
#include <inrush/report.hpp>

#include "base/text.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <array>
#include <cmath>

namespace inrush::inline v0 {

namespace {

// Raised when a field changes its meaning or goes away; new fields do not raise it.
constexpr std::uint64_t report_schema_version = 1;
constexpr std::size_t rows_max = 20;

struct NamedStage {
  std::string_view name;
  double seconds = -1;
};

std::array<NamedStage, 7> stages_of(const Stages& stages) {
  return {{{"open", stages.open},
           {"headers", stages.headers},
           {"plan", stages.plan},
           {"allocate", stages.allocate},
           {"first_byte", stages.first_byte},
           {"first_tensor", stages.first_tensor},
           {"last_byte", stages.last_byte}}};
}

boost::json::array json_strings(const std::vector<std::string>& strings) {
  boost::json::array array;
  for (const std::string& text : strings) array.emplace_back(text);
  return array;
}

boost::json::object json_stages(const Stages& stages) {
  boost::json::object object;
  for (const NamedStage& stage : stages_of(stages)) {
    // JSON has no infinity, and a stage that was not reached has no time.
    const bool reached = stage.seconds >= 0 && std::isfinite(stage.seconds);
    object[stage.name] = reached ? boost::json::value(stage.seconds) : boost::json::value(nullptr);
  }
  return object;
}

boost::json::array json_ways(const std::vector<PathBytes>& ways) {
  boost::json::array array;
  for (const PathBytes& way : ways) array.push_back({{"path", way.path}, {"bytes", way.bytes}});
  return array;
}

boost::json::array json_fallbacks(const std::vector<Fallback>& fallbacks) {
  boost::json::array array;
  for (const Fallback& fallback : fallbacks) {
    array.push_back({{"what", fallback.what}, {"reason", fallback.reason}, {"count", fallback.count}});
  }
  return array;
}

std::string seconds_text(double seconds) {
  if (seconds < 0.0995) return fmt::format("{:.{}f} ms", seconds * 1000, seconds < 0.00995 ? 2 : 1);
  return fmt::format("{:.{}f} s", seconds, seconds < 9.995 ? 3 : 1);
}

std::string rate_text(double bytes_per_second) {
  if (!std::isfinite(bytes_per_second) || bytes_per_second < 0) return "-";
  return engine::bytes_text(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// One labelled line; further lines of the same label have an empty one.
void add_line(std::string& text, std::string_view label, std::string_view line) {
  text += fmt::format("  {:<10} {}\n", label, line);
}

void add_list(std::string& text, std::string_view label, const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i == rows_max) return add_line(text, "", fmt::format("... and {} more", lines.size() - rows_max));
    add_line(text, i == 0 ? label : "", lines[i]);
  }
}

// Notes and reasons were made safe where they were written; names are still as in the file.
std::vector<std::string> printable_names(std::string_view head, const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  lines.reserve(names.size());
  for (const std::string& name : names) lines.push_back(std::string(head) + engine::printable(name));
  return lines;
}

std::string first_line(const Report& report) {
  const std::string what =
      fmt::format("{}, {}", counted(report.tensor_count, "tensor"), engine::bytes_text(report.loaded_bytes));
  const std::string where = device_name(report.device);
  if (!report.complete) {
    return fmt::format("incomplete: {} of {} on {}\n", what, engine::bytes_text(report.planned_bytes), where);
  }
  const double seconds = report.seconds.last_byte;
  if (seconds < 0) return fmt::format("loaded {} to {}\n", what, where);
  return fmt::format("loaded {} to {} in {}: {}\n", what, where, seconds_text(seconds),
                     rate_text(report.bytes_per_second));
}

void add_ways(std::string& text, const Report& report) {
  std::vector<std::string> lines;
  for (const PathBytes& way : report.bytes_by_path) {
    const double share = report.loaded_bytes == 0
                             ? 0
                             : static_cast<double>(way.bytes) / static_cast<double>(report.loaded_bytes);
    lines.push_back(fmt::format("{} ({:.1f} %) {}", engine::bytes_text(way.bytes), share * 100, way.path));
  }
  add_list(text, "bytes", lines);
}

void add_reads(std::string& text, const Report& report) {
  std::string line = fmt::format("{} in {}, {} continued or repeated", engine::bytes_text(report.read_bytes),
                                 counted(report.read_count, "read"), report.retry_count);
  if (report.orphan_count > 0) line += fmt::format(", {} never returned", report.orphan_count);
  add_line(text, "reads", line);
  if (report.read_ahead_bytes > 0)
    add_line(text, "ahead",
             engine::bytes_text(report.read_ahead_bytes) +
                 " into the page cache while the device was being opened");
}

void add_copies(std::string& text, const Report& report) {
  if (report.copy_count == 0) return;  // reads into place need none
  const double per_gb =
      static_cast<double>(report.copy_count) * 1e9 / static_cast<double>(report.loaded_bytes);
  add_line(text, "copies", fmt::format("{} by the device, {:.0f} per GB", report.copy_count, per_gb));
}

void add_stages(std::string& text, const Stages& stages) {
  std::string line;
  for (const NamedStage& stage : stages_of(stages)) {
    if (stage.seconds < 0) continue;
    std::string name(stage.name);
    if (const std::size_t gap = name.find('_'); gap != std::string::npos) name[gap] = ' ';
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, seconds_text(stage.seconds));
  }
  if (!line.empty()) add_line(text, "stages", line + " (since the start)");
}

void add_fallbacks(std::string& text, const std::vector<Fallback>& fallbacks) {
  std::vector<std::string> lines;
  for (const Fallback& fallback : fallbacks) {
    const std::string times = fallback.count > 1 ? fmt::format(" ({} times)", fallback.count) : std::string();
    lines.push_back(fmt::format("without {}: {}{}", fallback.what, fallback.reason, times));
  }
  add_list(text, "fallbacks", lines);
}

}  // namespace

std::string report_to_json(const Report& report) {
  const double rate = report.bytes_per_second;
  boost::json::object object = {
      {"schema_version", report_schema_version},
      {"device", device_name(report.device)},
      {"path", report.path},
      {"complete", report.complete},
      {"tensor_count", report.tensor_count},
      {"planned_bytes", report.planned_bytes},
      {"loaded_bytes", report.loaded_bytes},
      {"read_bytes", report.read_bytes},
      {"read_ahead_bytes", report.read_ahead_bytes},
      {"bytes_by_path", json_ways(report.bytes_by_path)},
      {"seconds", json_stages(report.seconds)},
      {"bytes_per_second", std::isfinite(rate) ? boost::json::value(rate) : boost::json::value(nullptr)},
      {"read_count", report.read_count},
      {"copy_count", report.copy_count},
      {"retry_count", report.retry_count},
      {"orphan_count", report.orphan_count},
      {"fallbacks", json_fallbacks(report.fallbacks)},
      {"pinned_peak_bytes", report.pinned_peak_bytes},
      {"staging_peak_bytes", report.staging_peak_bytes},
      {"window_peak_bytes", report.window_peak_bytes},
      {"host_peak_bytes", report.host_peak_bytes},
      {"notes", json_strings(report.notes)},
      {"suspect_tensors", json_strings(report.suspect_tensors)},
      {"overwritten_targets", json_strings(report.overwritten_targets)},
  };
  return boost::json::serialize(object);
}

std::string report_to_text(const Report& report) {
  std::string text = first_line(report);
  add_line(text, "path", report.path);
  add_ways(text, report);
  add_reads(text, report);
  add_copies(text, report);
  add_stages(text, report.seconds);
  add_line(text, "memory",
           fmt::format(
               "staging peak {} ({} pinned), process peak {}", engine::bytes_text(report.staging_peak_bytes),
               engine::bytes_text(report.pinned_peak_bytes), engine::bytes_text(report.host_peak_bytes)));
  if (report.window_peak_bytes > 0)
    add_line(text, "windows",
             engine::bytes_text(report.window_peak_bytes) + " of page cache registered at one time");
  add_fallbacks(text, report.fallbacks);
  add_list(text, "notes", report.notes);
  add_list(text, "suspect", printable_names("", report.suspect_tensors));
  add_list(text, "targets", printable_names("overwritten: ", report.overwritten_targets));
  return text;
}

std::string format_bytes(std::uint64_t bytes) { return engine::bytes_text(bytes); }

std::string escape_text(std::string_view text, std::size_t size_max) {
  return engine::printable(text, size_max);
}

}  // namespace inrush::inline v0
