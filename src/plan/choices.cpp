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

std::string forced_path(std::string_view name, const Machine& machine) {
  const PathChoice* const path = find_path(machine, name);
  if (path != nullptr && path->usable) return path->name;
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

// Staged works everywhere and is known to be fast, so another path must have been measured, here, to be
// faster.
std::string fastest_path(const Machine& machine) {
  const PathChoice* const staged = find_path(machine, "staged");
  const PathChoice* best = staged != nullptr && staged->usable ? staged : nullptr;
  const bool is_compared = best == nullptr || best->measured_bytes_per_second > 0;
  for (const PathChoice& path : machine.paths) {
    if (!path.usable || !is_compared) continue;
    if (best == nullptr || path.measured_bytes_per_second > best->measured_bytes_per_second) best = &path;
  }
  if (best == nullptr) refuse_all_paths(machine);
  return best->name;
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

std::string choose_path(PathPreference preference, const Machine& machine) {
  switch (preference) {
    case PathPreference::staged:
      return forced_path("staged", machine);
    case PathPreference::gds:
      return forced_path("gds", machine);
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
