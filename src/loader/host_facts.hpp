// What this host and the cgroups above us allow: CPUs and memory. Read from /proc and /sys; tests give
// another root.
#pragma once

#include <cstdint>
#include <string>

namespace inrush::engine {

struct HostFacts {
  std::uint32_t cpu_count = 1;   // by affinity and by the cgroups' CPU quota
  std::uint64_t free_bytes = 0;  // least of MemAvailable and of what each cgroup up to the root leaves,
                                 // reclaimable cache counted as free
};

// Bytes that new pages of files may take without pushing out what is in use: the least of what the host and
// each cgroup up to the root have free or hold in file pages that the kernel counts as inactive, each less
// 1/32 of its memory or limit. 0 where the host does not tell.
[[nodiscard]] std::uint64_t page_cache_room_bytes(const std::string& root = "");

// `root` is "" on a real machine. What cannot be read does not limit.
[[nodiscard]] HostFacts read_host_facts(const std::string& root = "");

// Peak resident memory of this process in bytes (VmHWM); 0 where the kernel does not tell.
[[nodiscard]] std::uint64_t peak_resident_bytes();

}  // namespace inrush::engine
