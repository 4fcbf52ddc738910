#include "loader/host_facts.hpp"

#include "fakes/temp_folder.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace inrush::engine {
namespace {

// A tree that looks like /proc and /sys.
class HostFactsTest : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) { root_.write(path.substr(1), text); }
  HostFacts read() { return read_host_facts(root_.path()); }

  fakes::TempFolder root_;
};

constexpr std::uint64_t gib = 1ULL << 30;

TEST_F(HostFactsTest, WithoutLimitsTheHostCounts) {
  put("/proc/meminfo", "MemTotal:       33554432 kB\nMemFree:  1 kB\nMemAvailable:   16777216 kB\n");
  put("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(read().free_bytes, 16 * gib);
  EXPECT_GE(read().cpu_count, 1U);
}

TEST_F(HostFactsTest, WhatCannotBeReadBindsNothing) {
  put("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(read().free_bytes, std::numeric_limits<std::uint64_t>::max());
}

TEST_F(HostFactsTest, TheTightestAncestorOfCgroupV2Binds) {
  put("/proc/meminfo", "MemAvailable: 16777216 kB\n");
  put("/proc/self/cgroup", "0::/pods/pod1/app\n");
  put("/sys/fs/cgroup/pods/pod1/app/memory.max", "max\n");
  put("/sys/fs/cgroup/pods/pod1/app/memory.current", "1000\n");
  put("/sys/fs/cgroup/pods/pod1/memory.max", std::to_string(4 * gib) + "\n");
  put("/sys/fs/cgroup/pods/pod1/memory.current", std::to_string(3 * gib) + "\n");
  EXPECT_EQ(read().free_bytes, 1 * gib);
}

TEST_F(HostFactsTest, CleanFilePagesCountAsFreeAndTmpfsDoesNot) {
  put("/proc/meminfo", "MemAvailable: 16777216 kB\n");
  put("/proc/self/cgroup", "0::/app\n");
  put("/sys/fs/cgroup/app/memory.max", std::to_string(4 * gib) + "\n");
  put("/sys/fs/cgroup/app/memory.current", std::to_string(4 * gib) + "\n");
  put("/sys/fs/cgroup/app/memory.stat",
      "anon 10\nfile " + std::to_string(3 * gib) + "\nshmem " + std::to_string(1 * gib) + "\ninactive_file " +
          std::to_string(1 * gib) + "\nactive_file " + std::to_string(1 * gib) + "\n");
  EXPECT_EQ(read().free_bytes, 2 * gib);
}

TEST_F(HostFactsTest, RoomForPagesIsWhatNobodyUses) {
  EXPECT_EQ(page_cache_room_bytes(root_.path()), 0U) << "nothing is known";
  put("/proc/self/cgroup", "0::/app\n");
  // 32 GiB, of which 1/32 is kept.
  put("/proc/meminfo",
      "MemTotal: 33554432 kB\nMemFree: 4194304 kB\nMemAvailable: 16777216 kB\n"
      "Active(file): 8388608 kB\nInactive(file): 2097152 kB\n");
  EXPECT_EQ(page_cache_room_bytes(root_.path()), (4 + 2 - 1) * gib);
  put("/sys/fs/cgroup/app/memory.max", std::to_string(8 * gib) + "\n");
  put("/sys/fs/cgroup/app/memory.current", std::to_string(6 * gib) + "\n");
  put("/sys/fs/cgroup/app/memory.stat",
      "inactive_file " + std::to_string(1 * gib) + "\nactive_file " + std::to_string(3 * gib) + "\n");
  EXPECT_EQ(page_cache_room_bytes(root_.path()), (8 - 6 + 1) * gib - 8 * gib / 32);
  put("/sys/fs/cgroup/app/memory.high", std::to_string(6 * gib) + "\n");
  EXPECT_EQ(page_cache_room_bytes(root_.path()), (6 - 6 + 1) * gib - 6 * gib / 32) << "there it is throttled";
  put("/sys/fs/cgroup/app/memory.current", std::to_string(9 * gib) + "\n");
  EXPECT_EQ(page_cache_room_bytes(root_.path()), 0U) << "no wrap below zero";
}

TEST_F(HostFactsTest, ASmallGroupOnALargeHostHasRoom) {
  put("/proc/self/cgroup", "0::/pod\n");
  put("/proc/meminfo", "MemTotal: 2147483648 kB\nMemFree: 1073741824 kB\n");
  put("/sys/fs/cgroup/pod/memory.max", std::to_string(32 * gib) + "\n");
  put("/sys/fs/cgroup/pod/memory.current", "0\n");
  EXPECT_EQ(page_cache_room_bytes(root_.path()), 31 * gib);
}

TEST_F(HostFactsTest, CgroupV1AndItsUnlimitedValue) {
  put("/proc/meminfo", "MemAvailable: 16777216 kB\n");
  put("/proc/self/cgroup", "9:cpu,memory:/job\n3:pids:/x\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(2 * gib) + "\n");
  put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(1 * gib) + "\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  EXPECT_EQ(read().free_bytes, 1 * gib);
}

TEST_F(HostFactsTest, ANamespacedCgroupFindsItsLimitAtTheMount) {
  put("/proc/meminfo", "MemAvailable: 16777216 kB\n");
  put("/proc/self/cgroup", "0::/kubepods/not-below-our-mount\n");
  put("/sys/fs/cgroup/memory.max", std::to_string(1 * gib) + "\n");
  put("/sys/fs/cgroup/memory.current", "0\n");
  EXPECT_EQ(read().free_bytes, 1 * gib);
}

TEST_F(HostFactsTest, ACpuQuotaLimitsTheReaders) {
  put("/proc/meminfo", "MemAvailable: 1 kB\n");
  put("/proc/self/cgroup", "0::/app\n");
  put("/sys/fs/cgroup/app/cpu.max", "150000 100000\n");
  EXPECT_EQ(read().cpu_count, 1U);
}

TEST(HostFacts, ThisProcessHasAPeak) { EXPECT_GT(peak_resident_bytes(), 1'000'000U); }

}  // namespace
}  // namespace inrush::engine
