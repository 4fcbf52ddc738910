// What a plan chooses and says why: the device, the path, the page-cache rule.
#pragma once

#include <inrush/plan.hpp>

#include <cstdint>
#include <string>

namespace inrush::engine {

// Throws environment_unfit where the machine has no such device; lists those it has.
void require_device(const Device& device, const Machine& machine);

struct PathDecision {
  std::string name;
  std::string rule;  // with the figures that it was chosen by
};

// Throws environment_unfit, with the reasons, where what was asked for cannot be used.
[[nodiscard]] PathDecision choose_path(PathPreference preference, const Machine& machine);

struct PageCacheChoice {
  PageCachePolicy policy = PageCachePolicy::bypass;  // never automatic
  std::string rule;
};

// `host_bytes`: what the load would take of the host's memory if the pages were kept.
[[nodiscard]] PageCacheChoice choose_page_cache(PageCachePolicy policy, std::uint64_t host_bytes,
                                                const Machine& machine);

}  // namespace inrush::engine
