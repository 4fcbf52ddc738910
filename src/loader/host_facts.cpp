#include "loader/host_facts.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace inrush::engine {

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
// 1/32 of the host's memory, and of each cgroup's limit, stays free of what page_cache_room_bytes() grants:
// the kernel starts to reclaim before all is taken.
constexpr std::uint64_t kept_share = 32;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line: "MemAvailable:  123 kB" with key "MemAvailable:".
std::optional<std::uint64_t> number_after(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(key) || line.size() == key.size()) continue;
    std::istringstream rest(line.substr(key.size()));
    std::uint64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

// "max" and an unreadable file both mean: no limit here.
std::uint64_t read_limit(const std::string& path) {
  std::istringstream text(read_text(path));
  std::uint64_t value = 0;
  return text >> value ? value : unlimited;
}

// "/a/b" of the line "N:controllers:/a/b" that lists `controller` ("" is the one hierarchy of cgroup v2).
std::optional<std::string> cgroup_of(const std::string& text, std::string_view controller) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string listed = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool found = controller.empty()
                           ? listed == ",,"
                           : listed.find("," + std::string(controller) + ",") != std::string::npos;
    if (found) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Files that say the same in the two versions of cgroups.
struct CgroupNames {
  std::string mount, limit, usage, stat_prefix;
  std::string throttle;  // from there on the kernel reclaims from the group; empty: there is no such limit
};

const CgroupNames v2_names = {"/sys/fs/cgroup", "memory.max", "memory.current", "", "memory.high"};
const CgroupNames v1_names = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_", ""};

// Which file pages count as free. Not "file" or "cache" as a whole: those count tmpfs too, which cannot be
// dropped.
enum class FreePages {
  reclaimable,  // all that the kernel can drop
  unused,       // what it drops first, since nobody used it twice or lately
};

std::uint64_t file_bytes(const std::string& stat, const CgroupNames& names, FreePages pages) {
  const std::uint64_t inactive = number_after(stat, names.stat_prefix + "inactive_file ").value_or(0);
  if (pages == FreePages::unused) return inactive;
  return inactive + number_after(stat, names.stat_prefix + "active_file ").value_or(0);
}

std::uint64_t limit_of(const std::string& folder, const CgroupNames& names, FreePages pages) {
  std::uint64_t limit = read_limit(folder + names.limit);
  if (pages == FreePages::reclaimable) return limit;
  if (!names.throttle.empty()) limit = std::min(limit, read_limit(folder + names.throttle));
  return limit == unlimited ? unlimited : limit - limit / kept_share;
}

// Walks from our own cgroup up to the root of the mount: a limit of any ancestor binds. In a container with a
// cgroup namespace of the host the path of /proc may not exist below the mount; the mount itself is looked at
// in any case.
std::uint64_t cgroup_free_bytes(const std::string& root, const CgroupNames& names, std::string path,
                                FreePages pages) {
  std::uint64_t least = unlimited;
  while (true) {
    const std::string folder = root + names.mount + (path == "/" ? "" : path) + "/";
    const std::uint64_t limit = limit_of(folder, names, pages);
    const std::uint64_t usage = read_limit(folder + names.usage);
    if (limit != unlimited && usage != unlimited) {
      const std::uint64_t held =
          usage - std::min(usage, file_bytes(read_text(folder + "memory.stat"), names, pages));
      least = std::min(least, limit - std::min(limit, held));
    }
    if (path.empty() || path == "/") return least;
    path.resize(path.find_last_of('/'));
  }
}

std::uint64_t cgroups_free_bytes(const std::string& root, const std::string& own_cgroups, FreePages pages) {
  return std::min(cgroup_free_bytes(root, v2_names, cgroup_of(own_cgroups, "").value_or(""), pages),
                  cgroup_free_bytes(root, v1_names, cgroup_of(own_cgroups, "memory").value_or(""), pages));
}

std::uint32_t quota_cpus(const std::string& root, const std::string& own_cgroups) {
  std::string path = cgroup_of(own_cgroups, "").value_or("");
  std::uint64_t least = std::numeric_limits<std::uint32_t>::max();
  while (true) {
    std::istringstream text(read_text(root + v2_names.mount + (path == "/" ? "" : path) + "/cpu.max"));
    std::uint64_t quota = 0;
    std::uint64_t period = 0;
    if (text >> quota >> period && period > 0)
      least = std::min(least, std::max<std::uint64_t>(1, quota / period));
    if (path.empty() || path == "/") return static_cast<std::uint32_t>(least);
    path.resize(path.find_last_of('/'));
  }
}

std::uint32_t affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

HostFacts read_host_facts(const std::string& root) {
  const std::string own_cgroups = read_text(root + "/proc/self/cgroup");
  const auto available_kib = number_after(read_text(root + "/proc/meminfo"), "MemAvailable:");
  HostFacts facts;
  facts.cpu_count = std::min(affinity_cpus(), quota_cpus(root, own_cgroups));
  facts.free_bytes =
      std::min(available_kib ? *available_kib * 1024 : unlimited,  // /proc may be hidden: no reason to refuse
               cgroups_free_bytes(root, own_cgroups, FreePages::reclaimable));
  return facts;
}

std::uint64_t page_cache_room_bytes(const std::string& root) {
  const std::string memory = read_text(root + "/proc/meminfo");
  const auto total_kib = number_after(memory, "MemTotal:");
  const auto free_kib = number_after(memory, "MemFree:");
  if (!total_kib || !free_kib) return 0;  // what nobody knows to be free is not taken
  const std::uint64_t host_kib = *free_kib + number_after(memory, "Inactive(file):").value_or(0);
  const std::uint64_t kept_kib = *total_kib / kept_share;
  return std::min((host_kib - std::min(host_kib, kept_kib)) * 1024,
                  cgroups_free_bytes(root, read_text(root + "/proc/self/cgroup"), FreePages::unused));
}

std::uint64_t peak_resident_bytes() {
  return number_after(read_text("/proc/self/status"), "VmHWM:").value_or(0) * 1024;
}

}  // namespace inrush::engine
