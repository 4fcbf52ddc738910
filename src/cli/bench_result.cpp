#include "cli/bench_result.hpp"

#include <inrush/report.hpp>

#include "cli/output.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <set>
#include <string_view>
#include <utility>

namespace inrush::engine {

namespace {

constexpr double mostly = 0.5;
// Pages of a header, or a window that was read ahead: no reason to call a load anything else.
constexpr double few = 0.005;
// Above this a load outran its limit by more than two runs of one measurement differ.
constexpr double above_limit = 1.05;

std::string_view state_name(BenchState state) { return state == BenchState::cold ? "cold" : "warm"; }

double rate_of(const BenchLoad& load) {
  return load.seconds > 0 ? static_cast<double>(load.report.loaded_bytes) / load.seconds : 0;
}

// Of the loaded bytes, those of ways whose name has these words.
double share_by(const Report& report, std::string_view words) {
  std::uint64_t bytes = 0;
  for (const PathBytes& way : report.bytes_by_path) {
    if (way.path.find(words) != std::string::npos) bytes += way.bytes;
  }
  return report.loaded_bytes == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(report.loaded_bytes);
}

double storage_share(const Report& report) {
  return share_by(report, "storage ->") + share_by(report, "O_DIRECT ->");
}

std::string gigabytes(double bytes_per_second) { return fmt::format("{:.2f}", bytes_per_second / 1e9); }

std::string seconds_text(double seconds) {
  return seconds < 0.0995 ? fmt::format("{:.1f} ms", seconds * 1000) : fmt::format("{:.2f} s", seconds);
}

std::string limit_text(const Limit& limit) {
  return limit.bytes_per_second > 0 ? gigabytes(limit.bytes_per_second) + " GB/s" : "not measured";
}

std::string limits_table(const Limits& limits) {
  Table table({Align::left, Align::right, Align::left});
  for (const auto& [name, limit] : {std::pair<const char*, const Limit&>{"storage", limits.storage},
                                    {"page cache", limits.page_cache},
                                    {"pinned", limits.pinned}})
    table.add_row({name, limit_text(limit), limit.bytes_per_second > 0 ? limit.how : limit.reason});
  return table.text();
}

// By the page cache just before the load, and by the report.
std::string source_text(const BenchLoad& load) {
  const double share = load.resident_share;
  const std::string resident = fmt::format("{:.0f} % was in the page cache", share * 100);
  if (load.state == BenchState::cold) {
    if (share > mostly) return "not cold: " + resident + ", its pages would not go";
    return share > few ? "storage; " + resident : "storage";
  }
  if (share < 1 - few) return "not warm: " + resident;
  const double again = storage_share(load.report);
  if (again <= few) return "page cache";
  return fmt::format("page cache; {:.0f} % storage, its pages were taken meanwhile", again * 100);
}

std::string share_text(const BenchLoad& load, const Limits& limits) {
  const BenchBound bound = bound_of(limits, load);
  if (bound.name.empty()) return "-";
  return fmt::format("{:.0f} % of {}", 100 * rate_of(load) / bound.bytes_per_second, bound.name);
}

std::string loads_table(const BenchResult& result) {
  Table table({Align::left, Align::left, Align::right, Align::right, Align::left, Align::right, Align::left});
  table.add_row({"state", "load", "seconds", "GB/s", "of the limit", "CPU-s", "bytes came from"});
  for (const BenchLoad& load : result.loads) {
    table.add_row({std::string(state_name(load.state)), load.which, fmt::format("{:.3f}", load.seconds),
                   gigabytes(rate_of(load)), share_text(load, result.limits),
                   fmt::format("{:.2f}", load.cpu_seconds), source_text(load)});
  }
  return table.text();
}

// Each stage by the time since the one before it. Allocating goes on beside the others.
std::string stages_text(const BenchLoad& load) {
  const Stages& ends = load.report.seconds;
  const std::array<std::pair<std::string_view, double>, 5> stages = {{{"plan", ends.plan},
                                                                      {"files and headers", ends.headers},
                                                                      {"first byte", ends.first_byte},
                                                                      {"all bytes", ends.last_byte},
                                                                      {"last tensor taken", load.seconds}}};
  std::string text;
  double before = 0;
  for (const auto& [name, end] : stages) {
    if (end < before) continue;  // not reached, or at once
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, seconds_text(end - before));
    before = end;
  }
  text += fmt::format("; CPUs busy for {}", seconds_text(load.cpu_seconds));
  if (ends.allocate > 0) text += fmt::format("; all memory allocated at {}", seconds_text(ends.allocate));
  return text;
}

const BenchLoad* slowest_of(const BenchResult& result, BenchState state) {
  const BenchLoad* slowest = nullptr;
  for (const BenchLoad& load : result.loads) {
    if (load.state == state && (slowest == nullptr || load.seconds > slowest->seconds)) slowest = &load;
  }
  return slowest;
}

// What holds for the whole of it, and what each load had to do without.
std::vector<std::string> notes_of(const BenchResult& result) {
  std::vector<std::string> notes;
  if (result.device.kind == DeviceKind::cpu)
    notes.emplace_back(
        "the device is the CPU: this is how fast host memory is filled, and says nothing of a GPU");
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  std::set<std::string> seen;
  for (const BenchLoad& load : result.loads) {
    const BenchBound bound = bound_of(result.limits, load);
    std::vector<std::string> said;
    if (!bound.name.empty() && rate_of(load) > above_limit * bound.bytes_per_second)
      said.push_back(
          fmt::format("a {} load was faster than the limit \"{}\": the machine was busier while "
                      "that was measured, or it was measured too shortly (--seconds)",
                      state_name(load.state), bound.name));
    for (const Fallback& fallback : load.report.fallbacks)
      said.push_back(fmt::format("without {}: {}", fallback.what, fallback.reason));
    for (std::string& line : said) {
      if (seen.insert(line).second) notes.push_back(std::move(line));
    }
  }
  return notes;
}

boost::json::object json_limit(const Limit& limit) {
  return {{"bytes_per_second",
           limit.bytes_per_second > 0 ? boost::json::value(limit.bytes_per_second) : boost::json::value()},
          {"how", limit.how},
          {"reason", limit.reason}};
}

boost::json::object json_load(const BenchLoad& load, const Limits& limits) {
  const BenchBound bound = bound_of(limits, load);
  boost::json::value share = nullptr;
  boost::json::value name = nullptr;
  if (!bound.name.empty()) {
    name = bound.name;
    share = rate_of(load) / bound.bytes_per_second;
  }
  return {{"state", state_name(load.state)},
          {"load", load.which},
          {"seconds", load.seconds},
          {"bytes_per_second", rate_of(load)},
          {"cpu_seconds", load.cpu_seconds},
          {"resident_share", load.resident_share},
          {"limit", name},
          {"limit_share", share},
          {"equal", true},
          {"report", boost::json::parse(report_to_json(load.report))}};
}

}  // namespace

BenchBound bound_of(const Limits& limits, const BenchLoad& load) {
  const bool is_cached = load.resident_share > mostly;
  const bool is_windowed = share_by(load.report, "registered windows") > mostly;
  std::vector<BenchBound> bounds;
  if (!is_cached) bounds.push_back({"storage", limits.storage.bytes_per_second});
  if (is_cached && !is_windowed) bounds.push_back({"page cache", limits.page_cache.bytes_per_second});
  if (load.report.device.kind != DeviceKind::cpu)
    bounds.push_back({"pinned", limits.pinned.bytes_per_second});
  if (bounds.empty()) return {};
  const BenchBound least = *std::ranges::min_element(bounds, {}, &BenchBound::bytes_per_second);
  return least.bytes_per_second > 0 ? least : BenchBound{};
}

std::string bench_text(const BenchResult& result) {
  std::string text = fmt::format("{}: {} in {} of {}, to {}; {}\n\n", escape_text(result.path, PATH_MAX),
                                 format_bytes(result.size_bytes), counted(result.tensor_count, "tensor"),
                                 counted(result.file_count, "file"), device_name(result.device),
                                 counted(result.cpu_count, "CPU"));
  text += "what the machine gives\n" + limits_table(result.limits);
  text += "\nwhat loads reach; every byte was compared after the clock had stopped, and is equal\n" +
          loads_table(result);
  text += "\nwhere the time of the slowest went\n";
  for (const BenchState state : {BenchState::cold, BenchState::warm}) {
    const BenchLoad* const slowest = slowest_of(result, state);
    if (slowest == nullptr) continue;
    text += fmt::format("  {}, {}: {}\n", state_name(state), slowest->which, stages_text(*slowest));
  }
  text += "\n";
  for (const std::string& note : notes_of(result)) text += "note: " + note + "\n";
  return text + "Other loaders beside this one: make bench, in the source of Inrush (docs/performance.md).\n";
}

std::string bench_json(const BenchResult& result) {
  boost::json::array loads;
  for (const BenchLoad& load : result.loads) loads.push_back(json_load(load, result.limits));
  boost::json::array notes;
  for (const std::string& note : notes_of(result)) notes.emplace_back(note);
  const boost::json::object object = {{"schema_version", 1},
                                      {"checkpoint", json_path(result.path)},
                                      {"device", device_name(result.device)},
                                      {"cpu_count", result.cpu_count},
                                      {"file_count", result.file_count},
                                      {"tensor_count", result.tensor_count},
                                      {"size_bytes", result.size_bytes},
                                      {"limits",
                                       {{"storage", json_limit(result.limits.storage)},
                                        {"page_cache", json_limit(result.limits.page_cache)},
                                        {"pinned", json_limit(result.limits.pinned)}}},
                                      {"loads", loads},
                                      {"notes", notes}};
  return boost::json::serialize(object) + "\n";
}

}  // namespace inrush::engine
