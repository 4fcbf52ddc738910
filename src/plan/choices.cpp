#include "plan/choices.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace inrush::engine {

namespace {

const PathChoice* find_path(const Machine& machine, std::string_view name) {
  const auto found = std::find_if(machine.paths.begin(), machine.paths.end(),
                                  [&](const PathChoice& path) { return path.name == name; });
  return found == machine.paths.end() ? nullptr : &*found;
}

// cuFile's compat mode has to win clearly: it is one more library in the way.
constexpr double compat_speed_ratio_min = 1.05;
// Speeds closer than this are called equal, and then the CPU time decides.
constexpr double equal_speed_ratio = 0.97;
constexpr double less_cpu_ratio_max = 0.8;

PathDecision forced_path(std::string_view name, const Machine& machine) {
  const PathChoice* const path = find_path(machine, name);
  if (path != nullptr && path->usable) return {path->name, "asked for"};
  throw Error(ErrorCode::environment_unfit,
              fmt::format("path \"{}\" was asked for and cannot be used: {}; ask for another path or none",
                          name, path != nullptr ? path->reason : "this machine does not offer it"));
}

[[noreturn]] void refuse_all_paths(const Machine& machine) {
  std::vector<std::string> reasons;
  for (const PathChoice& path : machine.paths)
    reasons.push_back(fmt::format("{}: {}", path.name, path.reason));
  throw Error(ErrorCode::environment_unfit,
              fmt::format("no path can be used on this machine: {}",
                          reasons.empty() ? "none is offered" : fmt::format("{}", fmt::join(reasons, "; "))));
}

std::string figures_of(const PathChoice& path) {
  return fmt::format("{} {}/s and {:.2g} CPU-s/GB", path.name,
                     bytes_text(static_cast<std::uint64_t>(path.measured_bytes_per_second)),
                     path.measured_cpu_seconds_per_gb);
}

// Whether `path` beats `best`, both measured here.
bool beats(const PathChoice& path, const PathChoice& best) {
  const double ratio = path.measured_bytes_per_second / best.measured_bytes_per_second;
  if (path.name == "cufile-compat") return ratio > compat_speed_ratio_min;
  return ratio > 1 ||
         (ratio >= equal_speed_ratio &&
          path.measured_cpu_seconds_per_gb <= less_cpu_ratio_max * best.measured_cpu_seconds_per_gb);
}

// Staged works everywhere and is known to be fast, so another path must have been measured, here, to be
// faster, or as fast for less CPU time.
PathDecision fastest_path(const Machine& machine) {
  const PathChoice* const staged = find_path(machine, "staged");
  const PathChoice* best = staged != nullptr && staged->usable ? staged : nullptr;
  const bool is_compared = best == nullptr || best->measured_bytes_per_second > 0;
  std::string figures;
  for (const PathChoice& path : machine.paths) {
    if (!path.usable || !is_compared) continue;
    if (path.measured_bytes_per_second > 0)
      figures += (figures.empty() ? "measured here: " : ", ") + figures_of(path);
    if (&path == best) continue;
    if (best == nullptr || (path.measured_bytes_per_second > 0 && beats(path, *best))) best = &path;
  }
  if (best == nullptr) refuse_all_paths(machine);
  return {best->name, figures.empty() ? "nothing else was measured on this file system" : figures};
}

}  // namespace

void require_device(const Device& device, const Machine& machine) {
  if (std::find(machine.devices.begin(), machine.devices.end(), device) != machine.devices.end()) return;
  std::vector<std::string> names;
  for (const Device& present : machine.devices) names.push_back(printable(device_name(present)));
  throw Error(ErrorCode::environment_unfit,
              fmt::format("device {} is not on this machine; it has {}", printable(device_name(device)),
                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

PathDecision choose_path(PathPreference preference, const Machine& machine) {
  switch (preference) {
    case PathPreference::staged:
      return forced_path("staged", machine);
    case PathPreference::gds:
      return forced_path("gds", machine);
    case PathPreference::cufile_compat:
      return forced_path("cufile-compat", machine);
    case PathPreference::automatic:
      break;
  }
  return fastest_path(machine);
}

PageCacheChoice choose_page_cache(PageCachePolicy policy, std::uint64_t host_bytes, const Machine& machine) {
  if (policy != PageCachePolicy::automatic) return {policy, "asked for"};
  // The next start is what people wait for, so pages stay where they do not push anything out.
  const bool fits = host_bytes + host_bytes / 10 <= machine.host_free_bytes;
  return {fits ? PageCachePolicy::keep : PageCachePolicy::bypass,
          fmt::format("automatic: {} and 10 % {} the {} of host memory that is free", bytes_text(host_bytes),
                      fits ? "fit in" : "exceed", bytes_text(machine.host_free_bytes))};
}

}  // namespace inrush::engine
