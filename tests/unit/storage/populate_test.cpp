// Turns of the populating call: one at a time, and none waits for one that is stuck.
#include "storage/populate.hpp"

#include "fakes/temp_folder.hpp"
#include "storage/local_store.hpp"
#include "storage/residency.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>

#include <thread>
#include <vector>

namespace inrush::engine {
namespace {

using fakes::patterned_bytes;
using fakes::TempFolder;

TEST(Populator, ManyThreadsBringAWholeFileIn) {
  constexpr std::uint64_t part_bytes = 3 << 20;
  constexpr std::uint64_t part_count = 8;
  const TempFolder folder;
  const auto file = LocalStore().open(folder.write("data.bin", patterned_bytes(part_bytes * part_count)));
  const int fd = file->descriptor(ReadMode::buffered);
  ASSERT_EQ(::fdatasync(fd), 0);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ASSERT_FALSE(is_range_resident(fd, {0, part_bytes}));
  Populator populator;
  std::vector<std::thread> threads;
  for (std::uint64_t part = 0; part < part_count; ++part) {
    threads.emplace_back([&, part] { EXPECT_TRUE(populator.populate(fd, {part * part_bytes, part_bytes})); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_range_resident(fd, {0, part_bytes * part_count}));
}

TEST(PopulatorTurn, AStuckOneIsNotWaitedFor) {
  PopulatorTurn turn(std::chrono::nanoseconds(0));
  EXPECT_TRUE(turn.begin());
  EXPECT_FALSE(turn.begin()) << "the first is past its patience";
  turn.end();
  EXPECT_TRUE(turn.begin());
}

TEST(PopulatorTurn, TheNextBeginsWhenOneEnds) {
  PopulatorTurn turn(std::chrono::hours(1));
  int inside_count = 0;  // guarded by the turn, as TSan would tell
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        if (!turn.begin()) return;
        ++inside_count;
        turn.end();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(inside_count, 8000);
}

}  // namespace
}  // namespace inrush::engine
