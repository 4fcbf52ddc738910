#include "transfer/copy_runs.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inrush::engine {
namespace {

constexpr std::uint64_t mib = 1ULL << 20;

// Notes what it is asked for; nothing ends before end().
class NotedStream final : public CopyStream {
 public:
  std::uint64_t copy(std::span<const Copy> copies) override {
    calls.emplace_back(copies.begin(), copies.end());
    return copies.size();
  }
  void use_kernel(KernelUse /*use*/, std::uint64_t /*reserved_bytes*/) override {}
  [[nodiscard]] const std::string& kernel_refusal() const noexcept override { return no_refusal_; }
  [[nodiscard]] const std::string& stage_refusal() const noexcept override { return no_refusal_; }
  [[nodiscard]] std::uint64_t record() override { return ++recorded_; }
  [[nodiscard]] std::uint64_t reached() override { return reached_; }
  void wait(std::uint64_t ticket) override { reached_ = ticket; }
  void order_after(void* /*stream*/) override {}
  void order_before(void* /*stream*/) override {}
  [[nodiscard]] void* handle() const noexcept override { return nullptr; }
  void fill(void* /*target*/, std::uint64_t /*size_bytes*/, std::byte /*value*/) override {}

  void end(std::uint64_t ticket) { reached_ = ticket; }

  std::vector<std::vector<Copy>> calls;

 private:
  const std::string no_refusal_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
};

// Addresses that nobody follows: slots and pieces of a MiB each.
std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

Copy of_slot(std::uint32_t slot, std::uint64_t place) {
  return {.source = at(mib * (100 + slot)), .target = at(mib * (1000 + place)), .row_bytes = mib};
}

class CopyRunsTest : public testing::Test {
 protected:
  void add(std::uint32_t slot, std::uint64_t place, std::uint32_t pin_group = 0) {
    const Copy copy = of_slot(slot, place);
    runs_.add({slot, pin_group}, {&copy, 1});
  }
  std::vector<std::uint64_t> start() {
    std::vector<std::uint64_t> operations;
    for (const StartedSlot& slot : runs_.start()) operations.push_back(slot.operation_count);
    return operations;
  }
  std::vector<std::uint32_t> take_ended() {
    const auto ended = runs_.take_ended();
    return {ended.begin(), ended.end()};
  }

  NotedStream stream_;
  CopyRuns runs_{stream_};
};

TEST_F(CopyRunsTest, NeighboursGoAsOneInWhateverOrderTheyCame) {
  add(6, 12);
  add(4, 10);
  add(5, 11);
  EXPECT_TRUE(runs_.has_waiting());
  EXPECT_EQ(start(), (std::vector<std::uint64_t>{1, 0, 0}));
  EXPECT_FALSE(runs_.has_waiting());
  ASSERT_EQ(stream_.calls.size(), 1U);
  ASSERT_EQ(stream_.calls[0].size(), 1U);
  EXPECT_EQ(stream_.calls[0][0].source, at(mib * 104));
  EXPECT_EQ(stream_.calls[0][0].target, at(mib * 1010));
  EXPECT_EQ(stream_.calls[0][0].row_bytes, 3 * mib);
  EXPECT_EQ(take_ended(), std::vector<std::uint32_t>{});
  stream_.end(1);
  EXPECT_EQ(take_ended(), (std::vector<std::uint32_t>{4, 5, 6}));
  EXPECT_FALSE(runs_.has_running());
}

TEST_F(CopyRunsTest, WhatIsNoNeighbourGoesAlone) {
  add(1, 10);
  add(2, 12);     // elsewhere on the device
  add(4, 13);     // a slot between them
  add(5, 14, 1);  // pinned by another call
  EXPECT_EQ(start(), (std::vector<std::uint64_t>{1, 1, 1, 1}));
  EXPECT_EQ(stream_.calls.size(), 4U);
}

TEST_F(CopyRunsTest, ACopyFromTheDeviceDoesNotJoinOneFromTheHost) {
  add(1, 10);
  Copy copy = of_slot(2, 11);
  copy.from = CopySource::device;
  runs_.add({2, 0}, {&copy, 1});
  EXPECT_EQ(start(), (std::vector<std::uint64_t>{1, 1}));
}

TEST_F(CopyRunsTest, RowsAndPiecesOfManyCopiesStayWhole) {
  const std::vector<Copy> two = {of_slot(1, 10), of_slot(1, 30)};
  Copy rows = of_slot(3, 12);
  rows.row_count = 2;
  runs_.add({1, 0}, two);
  add(2, 11);
  runs_.add({3, 0}, {&rows, 1});
  add(4, 13);
  EXPECT_EQ(start(), (std::vector<std::uint64_t>{2, 1, 1, 1}));
  EXPECT_EQ(stream_.calls[2][0].row_count, 2U);
}

TEST_F(CopyRunsTest, PiecesOfManyCopiesGoTogetherWhereTheyWerePinnedTogether) {
  const std::vector<Copy> two = {of_slot(1, 10), of_slot(1, 30)};
  for (std::uint32_t slot = 1; slot < 4; ++slot) runs_.add({slot, slot / 3}, two);
  EXPECT_EQ(start(), (std::vector<std::uint64_t>{4, 0, 2}));
  EXPECT_EQ(stream_.calls.size(), 2U);
  stream_.end(1);
  EXPECT_EQ(take_ended(), (std::vector<std::uint32_t>{1, 2}));
}

TEST_F(CopyRunsTest, ARunIsAtMostWhatOneCallPins) {
  for (std::uint32_t slot = 0; slot < 20; ++slot) add(slot, slot);
  static_cast<void>(start());
  ASSERT_EQ(stream_.calls.size(), 2U);
  EXPECT_EQ(stream_.calls[0][0].row_bytes, 16 * mib);
  EXPECT_EQ(stream_.calls[1][0].row_bytes, 4 * mib);
}

TEST_F(CopyRunsTest, IsBusyUntilFewCopiesAreLeft) {
  for (std::uint32_t slot = 0; slot < 6; slot += 2) {
    EXPECT_FALSE(runs_.is_busy());
    add(slot, slot);
    static_cast<void>(start());
  }
  EXPECT_TRUE(runs_.is_busy());
  stream_.end(1);
  EXPECT_EQ(take_ended(), std::vector<std::uint32_t>{0});
  EXPECT_FALSE(runs_.is_busy());
}

}  // namespace
}  // namespace inrush::engine
