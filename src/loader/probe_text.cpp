// What a probe found, as text: for people, as JSON, and as configuration of libcufile.
#include <inrush/loader.hpp>

#include "base/text.hpp"
#include "loader/probe_cache.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <algorithm>
#include <array>
#include <climits>

namespace inrush::inline v0 {

using namespace engine;

namespace {

namespace json = boost::json;

constexpr std::uint32_t report_schema_version = 1;

std::string figure(double value, double unit) {
  return value > 0 ? fmt::format("{:.3g}", value / unit) : "-";
}

std::string device_text(const Device& device) { return printable(device_name(device)); }

}  // namespace

std::string probe_to_text(const ProbeReport& report) {
  std::string text;
  for (const ProbeCandidate& candidate : report.candidates) {
    if (candidate.wrong_bytes)
      text += fmt::format("!!! WRONG BYTES by the path \"{}\": {}\n!!! Do not use it on this machine.\n",
                          candidate.path, candidate.reason);
  }
  text += fmt::format("{} of {} ({}) to {} by each path\n", bytes_text(report.bytes),
                      printable(report.file, PATH_MAX), report.file_system, device_text(report.device));
  std::size_t way_width = 3;
  for (const ProbeCandidate& candidate : report.candidates)
    way_width = std::max(way_width, candidate.way.size());
  const auto row = [&](const std::array<std::string, 6>& cells) {
    return fmt::format("  {:<13}  {:<6}  {:>6}  {:>8}  {:<{}}  {}\n", cells[0], cells[1], cells[2], cells[3],
                       cells[4], way_width, cells[5]);
  };
  text += row({"path", "usable", "GB/s", "CPU-s/GB", "way", "reason"});
  for (const ProbeCandidate& candidate : report.candidates) {
    text += row({candidate.path, candidate.usable ? "yes" : "no", figure(candidate.bytes_per_second, 1e9),
                 figure(candidate.cpu_seconds_per_gb, 1), candidate.way.empty() ? "-" : candidate.way,
                 candidate.reason});
  }
  text += report.chosen.empty() ? fmt::format("chosen: none: {}\n", report.rule)
                                : fmt::format("chosen: {} ({})\n", report.chosen, report.rule);
  return text + (report.cached_in.empty()
                     ? fmt::format("not kept: {}\n", report.why_not_cached)
                     : fmt::format("kept in {}\n", printable(report.cached_in, PATH_MAX)));
}

std::string probe_to_json(const ProbeReport& report) {
  json::array candidates;
  bool wrong_bytes = false;
  for (const ProbeCandidate& candidate : report.candidates) {
    candidates.push_back(candidate_to_json(candidate));
    wrong_bytes = wrong_bytes || candidate.wrong_bytes;
  }
  const json::object object = {{"schema_version", report_schema_version},
                               {"file", printable(report.file, PATH_MAX)},
                               {"device", device_name(report.device)},
                               {"bytes", report.bytes},
                               {"file_system", report.file_system},
                               {"wrong_bytes", wrong_bytes},
                               {"candidates", candidates},
                               {"chosen", report.chosen},
                               {"rule", report.rule},
                               {"cached_in", printable(report.cached_in, PATH_MAX)},
                               {"why_not_cached", report.why_not_cached}};
  return json::serialize(object);
}

std::string cufile_configuration(PathPreference path, const std::string& log_folder) {
  const bool is_direct = path != PathPreference::cufile_compat;
  // P2PDMA is asked for in two places: since 1.16 also for each kind of block device.
  const json::object object = {
      {"logging", {{"dir", log_folder}, {"level", "WARN"}}},
      {"profile", {{"cufile_stats", 3}}},
      {"properties", {{"allow_compat_mode", !is_direct}, {"use_pci_p2pdma", is_direct}}},
      {"block", {{"nvme", {{"use_pci_p2pdma", is_direct}}}}}};
  return json::serialize(object) + "\n";
}

}  // namespace inrush::inline v0
