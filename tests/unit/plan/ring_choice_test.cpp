#include "plan/ring_choice.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

namespace inrush::engine {

namespace {

constexpr std::uint64_t mib = 1ULL << 20;
constexpr std::uint64_t long_load_bytes = 12'000 * mib;

Machine with_cpus(std::uint32_t cpu_count) {
  Machine machine;
  machine.cpu_count = cpu_count;
  return machine;
}

RingChoice choose(const Machine& machine, std::uint64_t wanted_bytes) {
  return choose_ring(machine, wanted_bytes, PageCachePolicy::keep);
}

}  // namespace

TEST(RingChoice, FollowsTheMeasuredSweep) {
  EXPECT_EQ(choose(with_cpus(16), long_load_bytes), (RingChoice{12, 24, 4 * mib}));
  EXPECT_EQ(choose(with_cpus(8), long_load_bytes), (RingChoice{8, 16, 4 * mib}));
  EXPECT_EQ(choose(with_cpus(4), long_load_bytes), (RingChoice{4, 12, 2 * mib, true}));
  EXPECT_EQ(choose(with_cpus(1), long_load_bytes), (RingChoice{1, 3, 2 * mib, true}));
}

TEST(RingChoice, ThePathReadsWhereReadersWouldTakeEveryCpu) {
  Machine machine = with_cpus(4);
  EXPECT_TRUE(choose(machine, long_load_bytes).path_reads);
  machine.reader_count_max = 3;
  EXPECT_FALSE(choose(machine, long_load_bytes).path_reads) << "it has a CPU of its own";
  EXPECT_FALSE(choose(with_cpus(5), long_load_bytes).path_reads);
  EXPECT_TRUE(choose(with_cpus(1), long_load_bytes).path_reads);
  Plan plan;
  plan.pieces.resize(1);
  fit_ring(choose(with_cpus(4), long_load_bytes), plan);
  EXPECT_FALSE(plan.path_reads) << "one reader, a thread of its own: the path must be there for a deadline";
}

TEST(RingChoice, DirectReadsAreLarger) {
  const auto direct = [](const Machine& machine) {
    return choose_ring(machine, long_load_bytes, PageCachePolicy::bypass);
  };
  EXPECT_EQ(direct(with_cpus(16)), (RingChoice{12, 16, 8 * mib}));
  EXPECT_EQ(direct(with_cpus(4)), (RingChoice{4, 12, 8 * mib, true}));
  Machine machine = with_cpus(16);
  machine.piece_bytes_max = 4 * mib - 4096;
  EXPECT_EQ(direct(machine), (RingChoice{12, 24, 4 * mib - 4096})) << "somebody asked for small ones";
  machine = with_cpus(64);
  machine.reader_count_max = 32;
  EXPECT_EQ(direct(machine), (RingChoice{32, 33, 8 * mib})) << "more than readers";
  machine.staging_bytes_max = 128 * mib - 1;
  EXPECT_EQ(direct(machine).piece_bytes, 4 * mib) << "the budget is for more than a few";
}

TEST(RingChoice, SharesTheCpusWithNeighbours) {
  Machine machine = with_cpus(16);
  machine.loading_process_count = 2;
  EXPECT_EQ(choose(machine, long_load_bytes).reader_count, 8U);
  machine.loading_process_count = 100;
  EXPECT_EQ(choose(machine, long_load_bytes).reader_count, 1U);
}

TEST(RingChoice, ShortLoadsHaveSmallerPieces) {
  EXPECT_EQ(choose(with_cpus(16), 90 * mib).piece_bytes, 2 * mib);
  EXPECT_EQ(choose(with_cpus(16), mib).piece_bytes, mib);
  Machine machine = with_cpus(16);
  machine.piece_bytes_max = 5000;
  EXPECT_EQ(choose(machine, mib).piece_bytes, 4096U) << "whole blocks";
}

TEST(RingChoice, GivesUpSlotsThenReadersThenPieceSize) {
  Machine machine = with_cpus(16);
  machine.staging_bytes_max = 80 * mib;
  EXPECT_EQ(choose(machine, long_load_bytes), (RingChoice{12, 20, 4 * mib}));
  machine.staging_bytes_max = 21 * mib;
  EXPECT_EQ(choose(machine, long_load_bytes), (RingChoice{4, 5, 4 * mib}));
  machine.staging_bytes_max = 4 * mib + 100;
  EXPECT_EQ(choose(machine, long_load_bytes), (RingChoice{1, 2, 2 * mib}));
  machine.staging_bytes_max = 8192;
  EXPECT_EQ(choose(machine, long_load_bytes), (RingChoice{1, 2, 4096}));
  machine.staging_bytes_max = 8191;
  EXPECT_THROW(static_cast<void>(choose(machine, long_load_bytes)), Error);
}

TEST(RingChoice, SlotsFillOrDivideHugePages) {
  EXPECT_EQ(slot_bytes_for(8 * mib), 8 * mib);
  EXPECT_EQ(slot_bytes_for(4096), 4096U);
  EXPECT_EQ(slot_bytes_for(100), 8192U) << "may lie across two blocks";
  EXPECT_EQ(slot_bytes_for(3 * mib), 4 * mib);
  EXPECT_EQ(slot_bytes_for(mib + 4096), 2 * mib);
}

TEST(RingChoice, FitsWhatThePiecesCanUse) {
  Plan plan;
  plan.pieces.resize(3);
  plan.pieces[1].size_bytes = 10'000;
  fit_ring({12, 24, 8 * mib}, plan);
  EXPECT_EQ(plan.reader_count, 3U);
  EXPECT_EQ(plan.slot_count, 3U);
  EXPECT_EQ(plan.slot_bytes, 16'384U);
  plan.pieces.resize(1);
  fit_ring({12, 24, 8 * mib}, plan);
  EXPECT_EQ(plan.slot_count, 2U);
  plan.pieces.clear();
  fit_ring({12, 24, 8 * mib}, plan);
  EXPECT_EQ(plan.slot_count, 0U);
  EXPECT_EQ(plan.slot_bytes, 0U);
}

TEST(RingChoice, OneAndTwoCpusTakeWindows) {
  EXPECT_TRUE(takes_windows(with_cpus(1)));
  EXPECT_TRUE(takes_windows(with_cpus(2)));
  EXPECT_FALSE(takes_windows(with_cpus(3)));
  Machine shared = with_cpus(16);
  shared.loading_process_count = 8;
  EXPECT_TRUE(takes_windows(shared));
}

TEST(RingChoice, WindowsGiveWayToSmallPiecesAndSmallBudgets) {
  Machine pieces = with_cpus(1);
  pieces.piece_bytes_max = 2 << 20;
  EXPECT_FALSE(takes_windows(pieces));
  Machine budget = with_cpus(1);
  budget.staging_bytes_max = (64ULL << 20) - 1;
  EXPECT_FALSE(takes_windows(budget));
}

TEST(RingChoice, WindowsShrinkWithTheLoad) {
  EXPECT_EQ(choose_window_ring(with_cpus(1), 1ULL << 30), (RingChoice{1, 2, 32ULL << 20}));
  EXPECT_EQ(choose_window_ring(with_cpus(2), 64ULL << 20), (RingChoice{2, 2, 16ULL << 20}));
  EXPECT_EQ(choose_window_ring(with_cpus(1), 1), (RingChoice{1, 2, 4ULL << 20}));
}

}  // namespace inrush::engine
