// The text of /proc/driver/nvidia-fs/stats as a value, and that as text and JSON. The layouts: nvfs-stat.c of
// NVIDIA/gds-nvidia-fs, 2.3 to 2.28.
#include <inrush/report.hpp>

#include "base/text.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace inrush::inline v0 {

namespace {

// Raised when a field changes its meaning or goes away; new fields do not raise it.
constexpr std::uint64_t stats_schema_version = 1;
constexpr std::string_view blanks = " \t\r";

using Number = std::optional<std::uint64_t>;

// Where a number stands in the driver's text, and under which names it is in the JSON.
struct Field {
  std::string_view line;   // "Reads"
  std::string_view key;    // "n"
  std::string_view group;  // "reads"
  std::string_view name;   // "count"
  Number* value = nullptr;
};

std::vector<Field> fields_of(GdsDriverStats& stats) {
  GdsDriverIo& reads = stats.reads;
  GdsDriverIo& writes = stats.writes;
  GdsDriverIo& batches = stats.batches;
  GdsDriverMaps& maps = stats.bar1_maps;
  GdsDriverErrors& errors = stats.errors;
  GdsDriverOperations& operations = stats.operations;
  return {
      {"Reads", "n", "reads", "count", &reads.count},
      {"Reads", "ok", "reads", "ok_count", &reads.ok_count},
      {"Reads", "err", "reads", "error_count", &reads.error_count},
      {"Reads", "io_state_err", "reads", "state_error_count", &reads.state_error_count},
      {"Reads", "readMiB", "reads", "moved_mib", &reads.moved_mib},
      {"Reads", "Bandwidth(MiB/s)", "reads", "mib_per_second", &reads.mib_per_second},
      {"Reads", "Avg-Latency(usec)", "reads", "latency_microseconds", &reads.latency_microseconds},
      {"Writes", "n", "writes", "count", &writes.count},
      {"Writes", "ok", "writes", "ok_count", &writes.ok_count},
      {"Writes", "err", "writes", "error_count", &writes.error_count},
      {"Writes", "io_state_err", "writes", "state_error_count", &writes.state_error_count},
      {"Writes", "writeMiB", "writes", "moved_mib", &writes.moved_mib},
      {"Writes", "Bandwidth(MiB/s)", "writes", "mib_per_second", &writes.mib_per_second},
      {"Writes", "Avg-Latency(usec)", "writes", "latency_microseconds", &writes.latency_microseconds},
      {"Batches", "n", "batches", "count", &batches.count},
      {"Batches", "ok", "batches", "ok_count", &batches.ok_count},
      {"Batches", "err", "batches", "error_count", &batches.error_count},
      {"Batches", "Avg-Submit-Latency(usec)", "batches", "latency_microseconds",
       &batches.latency_microseconds},
      {"Bar1-map", "n", "bar1_maps", "count", &maps.count},
      {"Bar1-map", "ok", "bar1_maps", "ok_count", &maps.ok_count},
      {"Bar1-map", "err", "bar1_maps", "error_count", &maps.error_count},
      {"Bar1-map", "free", "bar1_maps", "free_count", &maps.free_count},
      {"Bar1-map", "callbacks", "bar1_maps", "callback_count", &maps.callback_count},
      {"Bar1-map", "active", "bar1_maps", "active_count", &maps.active_count},
      {"Bar1-map", "delay-frees", "bar1_maps", "delayed_free_count", &maps.delayed_free_count},
      {"Error", "cpu-gpu-pages", "errors", "mixed_page_count", &errors.mixed_page_count},
      {"Error", "sg-ext", "errors", "scatter_list_count", &errors.scatter_list_count},
      {"Error", "dma-map", "errors", "dma_map_count", &errors.dma_map_count},
      {"Error", "dma-ref", "errors", "dma_reference_count", &errors.dma_reference_count},
      {"Ops", "Read", "operations", "read_count", &operations.read_count},
      {"Ops", "Write", "operations", "write_count", &operations.write_count},
      {"Ops", "BatchIO", "operations", "batch_count", &operations.batch_count},
  };
}

std::array<Field, 4> fields_of(GdsDriverGpu& gpu) {
  return {{{"GPU", "Registered_MiB", "", "registered_mib", &gpu.registered_mib},
           {"GPU", "Cache_MiB", "", "cache_mib", &gpu.cache_mib},
           {"GPU", "max_pinned_MiB", "", "max_pinned_mib", &gpu.max_pinned_mib},
           {"GPU", "cross_root_port(%)", "", "cross_root_port_percent", &gpu.cross_root_port_percent}}};
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// The part of `text` before `mark`, which is taken off with it; all of it where there is none.
std::string_view take_until(std::string_view& text, std::string_view marks) {
  const std::size_t end = std::min(text.find_first_of(marks), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

Number number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The words of "n=3 ok=2" go to their fields; unknown ones and what is no number nowhere.
template <class Fields>
void read_pairs(std::string_view pairs, std::string_view line, const Fields& fields) {
  while (!pairs.empty()) {
    std::string_view value = take_until(pairs, blanks);
    const std::string_view key = take_until(value, "=");
    const auto field = std::ranges::find_if(
        fields, [&](const Field& candidate) { return candidate.line == line && candidate.key == key; });
    const Number number = number_of(value);
    if (field != fields.end() && number) *field->value = number;
  }
}

// "GPU 0000:65:00.0  uuid:f4ce0000-... : Registered_MiB=0 ..."
GdsDriverGpu parse_gpu(std::string_view line) {
  GdsDriverGpu gpu;
  read_pairs(line, "GPU", fields_of(gpu));
  take_until(line, blanks);
  while (!line.empty()) {
    const std::string_view word = take_until(line, blanks);
    if (word.starts_with("uuid:")) {
      gpu.uuid = word.substr(5);
    } else if (gpu.bdf.empty() && word.find(':') < word.find('.') && word.find('.') != word.npos) {
      gpu.bdf = word;
    }
  }
  return gpu;
}

// "NVFS Driver(version: 2.28.4)" with "(version:" gives "2.28.4". Early drivers have colons between.
std::string parenthesized(std::string_view line, std::string_view head) {
  const std::size_t start = line.find(head);
  if (start == std::string_view::npos) return {};
  std::string_view rest = line.substr(start + head.size());
  std::string version(trimmed(take_until(rest, ")")));
  std::ranges::replace(version, ':', '.');
  return version;
}

std::optional<bool> enabled(std::string_view line, std::string_view name) {
  const std::size_t start = line.find(name);
  if (start == std::string_view::npos) return std::nullopt;
  std::string_view rest = trimmed(line.substr(start + name.size()));
  const std::string_view word = trimmed(take_until(rest, ","));
  if (word == "Enabled") return true;
  if (word == "Disabled") return false;
  return std::nullopt;
}

// Lines without pairs, at the top of the text.
void read_heading(std::string_view line, GdsDriverStats& stats) {
  if (line.starts_with("NVFS statistics")) {
    stats.layout_version = parenthesized(line, "(ver:");
  } else if (line.starts_with("NVFS Driver")) {
    stats.driver_version = parenthesized(line, "(version:");
  } else if (line.starts_with("IO stats:")) {
    stats.io_stats_enabled = enabled(line, "IO stats:");
    stats.peer_stats_enabled = enabled(line, "peer IO stats:");
  } else {
    const std::string_view label = trimmed(take_until(line, ":"));
    if (label == "GDS Version") stats.gds_version = trimmed(line);
    if (label == "Active Shadow-Buffer (MiB)") stats.shadow_buffer_mib = number_of(trimmed(line));
    if (label == "Active Process") stats.active_process_count = number_of(trimmed(line));
  }
}

std::string known(const std::string& text) { return text.empty() ? "unknown" : engine::printable(text); }

std::string cell(const Number& number) { return number ? fmt::format("{}", *number) : "-"; }

std::string switch_text(const std::optional<bool>& value) {
  if (!value) return "unknown";
  return *value ? "enabled" : "disabled";
}

void add_line(std::string& text, std::string_view label, std::string_view line) {
  text += fmt::format("  {:<11} {}\n", label, line);
}

void add_switches(std::string& text, const GdsDriverStats& stats) {
  add_line(text, "I/O counts", switch_text(stats.io_stats_enabled));
  if (stats.io_stats_enabled == false) {
    add_line(text, "", "reads, writes and batches are not counted; to count them, as root:");
    add_line(text, "", "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled");
  }
  add_line(text, "peer counts", switch_text(stats.peer_stats_enabled));
  add_line(text, "in use by",
           fmt::format("{} processes, {} MiB of shadow buffers", cell(stats.active_process_count),
                       cell(stats.shadow_buffer_mib)));
}

void add_io(std::string& text, const GdsDriverStats& stats) {
  constexpr std::string_view row = "  {:<11} {:>12} {:>12} {:>8} {:>12} {:>8} {:>8} {:>12}\n";
  text += fmt::format(row, "", "count", "ok", "failed", "MiB", "MiB/s", "us each", "state errors");
  const std::array<std::pair<std::string_view, const GdsDriverIo*>, 3> rows = {
      {{"reads", &stats.reads}, {"writes", &stats.writes}, {"batches", &stats.batches}}};
  for (const auto& [name, io] : rows) {
    text += fmt::format(row, name, cell(io->count), cell(io->ok_count), cell(io->error_count),
                        cell(io->moved_mib), cell(io->mib_per_second), cell(io->latency_microseconds),
                        cell(io->state_error_count));
  }
}

void add_counters(std::string& text, const GdsDriverStats& stats) {
  const GdsDriverMaps& maps = stats.bar1_maps;
  add_line(text, "BAR1 maps",
           fmt::format("{} asked, {} ok, {} failed, {} active", cell(maps.count), cell(maps.ok_count),
                       cell(maps.error_count), cell(maps.active_count)));
  add_line(text, "",
           fmt::format("{} freed, {} freed late, {} taken back by the GPU's driver", cell(maps.free_count),
                       cell(maps.delayed_free_count), cell(maps.callback_count)));
  const GdsDriverErrors& errors = stats.errors;
  add_line(text, "errors",
           fmt::format("{} mixed pages, {} scatter lists, {} DMA mappings, {} DMA references",
                       cell(errors.mixed_page_count), cell(errors.scatter_list_count),
                       cell(errors.dma_map_count), cell(errors.dma_reference_count)));
  const GdsDriverOperations& operations = stats.operations;
  add_line(text, "in progress",
           fmt::format("{} reads, {} writes, {} batches", cell(operations.read_count),
                       cell(operations.write_count), cell(operations.batch_count)));
}

void add_gpu(std::string& text, const GdsDriverGpu& gpu) {
  add_line(text, "GPU", fmt::format("{}, {}", known(gpu.bdf), known(gpu.uuid)));
  std::string line = fmt::format("registered {} MiB, cache {} MiB, at most pinned {} MiB",
                                 cell(gpu.registered_mib), cell(gpu.cache_mib), cell(gpu.max_pinned_mib));
  if (gpu.cross_root_port_percent) {
    line += fmt::format(", {} % between root ports", *gpu.cross_root_port_percent);
  }
  add_line(text, "", line);
}

boost::json::value json_number(const Number& number) {
  return number ? boost::json::value(*number) : boost::json::value(nullptr);
}

// The driver's text is not ours: JSON must be UTF-8 whatever it holds.
boost::json::value json_text(const std::string& text) {
  return text.empty() ? boost::json::value(nullptr) : boost::json::value(engine::printable(text));
}

boost::json::value json_switch(const std::optional<bool>& value) {
  return value ? boost::json::value(*value) : boost::json::value(nullptr);
}

boost::json::array json_gpus(std::vector<GdsDriverGpu>& gpus) {
  boost::json::array array;
  for (GdsDriverGpu& gpu : gpus) {
    boost::json::object object = {{"bdf", json_text(gpu.bdf)}, {"uuid", json_text(gpu.uuid)}};
    for (const Field& field : fields_of(gpu)) object[field.name] = json_number(*field.value);
    array.push_back(std::move(object));
  }
  return array;
}

}  // namespace

GdsDriverStats parse_gds_driver_stats(std::string_view text) {
  // The driver ends every line. Where the text does not end in one it was cut, and a number at its end may be
  // another with fewer digits.
  text = text.substr(0, text.find_last_of(" \t\n") + 1);
  GdsDriverStats stats;
  const std::vector<Field> fields = fields_of(stats);
  while (!text.empty()) {
    const std::string_view line = trimmed(take_until(text, "\n"));
    if (line.starts_with("GPU ") || line.starts_with("GPU\t")) {
      stats.gpus.push_back(parse_gpu(line));
      continue;
    }
    read_heading(line, stats);
    std::string_view pairs = line;
    const std::string_view label = trimmed(take_until(pairs, ":"));
    read_pairs(pairs, label, fields);
  }
  return stats;
}

std::string gds_driver_stats_to_json(const GdsDriverStats& stats) {
  GdsDriverStats copy = stats;  // fields_of() points into it
  boost::json::object object = {{"schema_version", stats_schema_version},
                                {"driver_version", json_text(stats.driver_version)},
                                {"gds_version", json_text(stats.gds_version)},
                                {"layout_version", json_text(stats.layout_version)},
                                {"io_stats_enabled", json_switch(stats.io_stats_enabled)},
                                {"peer_stats_enabled", json_switch(stats.peer_stats_enabled)},
                                {"active_process_count", json_number(stats.active_process_count)},
                                {"shadow_buffer_mib", json_number(stats.shadow_buffer_mib)}};
  for (const Field& field : fields_of(copy)) {
    boost::json::value& group = object[field.group];
    if (!group.is_object()) group.emplace_object();
    group.get_object()[field.name] = json_number(*field.value);
  }
  object["gpus"] = json_gpus(copy.gpus);
  return boost::json::serialize(object);
}

std::string gds_driver_stats_to_text(const GdsDriverStats& stats) {
  std::string text =
      fmt::format("nvidia-fs {}, GDS {}\n", known(stats.driver_version), known(stats.gds_version));
  add_switches(text, stats);
  add_io(text, stats);
  add_counters(text, stats);
  for (const GdsDriverGpu& gpu : stats.gpus) add_gpu(text, gpu);
  text +=
      "Counted for all processes. Compat mode and P2PDMA do not go through nvidia-fs: not counted here.\n";
  return text;
}

}  // namespace inrush::inline v0
