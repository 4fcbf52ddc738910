#include "transfer/residency_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace inrush::engine {
namespace {

constexpr std::uint64_t mib = 1ULL << 20;

// Says what the test set, and keeps which offsets it was asked about.
class AskedFile final : public File {
 public:
  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] FileStatus status() const override { return {}; }
  [[nodiscard]] ReadOutcome read(ReadMode, std::uint64_t, std::span<std::byte>) const noexcept override {
    return {};
  }
  [[nodiscard]] int descriptor(ReadMode) const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override { return 0; }
  [[nodiscard]] std::string direct_refusal() const override { return {}; }
  [[nodiscard]] bool is_resident(ByteRange range) const noexcept override {
    asked_.insert(range.offset);
    return is_resident_;
  }

  bool is_resident_ = false;
  mutable std::multiset<std::uint64_t> asked_;

 private:
  const std::string path_ = "asked.bin";
};

// Pieces of 4 MiB: `counts[i]` of them in file i.
Plan plan_of(const std::vector<std::uint32_t>& counts) {
  Plan plan;
  for (std::uint32_t file = 0; file < counts.size(); ++file) {
    for (std::uint32_t i = 0; i < counts[file]; ++i)
      plan.pieces.push_back({.file = file, .offset = i * 4 * mib, .size_bytes = 4 * mib});
  }
  return plan;
}

TEST(ResidencyAheadTest, WhatTheKernelReadsAheadWasNotThere) {
  const Plan plan = plan_of({20});
  ResidencyAhead residency(plan);
  AskedFile file;
  EXPECT_FALSE(residency.was_resident(0, file));
  file.is_resident_ = true;  // the first read brought all of it
  for (std::uint32_t piece = 1; piece < 20; ++piece)
    EXPECT_FALSE(residency.was_resident(piece, file)) << piece;
}

TEST(ResidencyAheadTest, EachPieceIsAskedAboutOnceAndInTime) {
  const Plan plan = plan_of({100});
  ResidencyAhead residency(plan);
  AskedFile file;
  for (std::uint32_t piece = 0; piece < 100; ++piece) {
    static_cast<void>(residency.was_resident(piece, file));
    for (std::uint32_t near = piece; near < std::min(piece + 32, 100U); ++near)
      ASSERT_EQ(file.asked_.count(near * 4 * mib), 1U) << near << " at the turn of " << piece;
  }
  EXPECT_EQ(file.asked_.size(), 100U);
}

TEST(ResidencyAheadTest, OfItsOwnFileOnlyAndInAnyOrder) {
  const Plan plan = plan_of({3, 3});
  ResidencyAhead residency(plan);
  AskedFile first;
  AskedFile second;
  second.is_resident_ = true;
  EXPECT_TRUE(residency.was_resident(4, second));  // a tensor that was asked for by name
  EXPECT_FALSE(residency.was_resident(1, first));
  EXPECT_FALSE(residency.was_resident(0, first));
  EXPECT_TRUE(residency.was_resident(3, second));
  EXPECT_TRUE(residency.was_resident(5, second));
  EXPECT_FALSE(residency.was_resident(2, first));
  EXPECT_EQ(first.asked_.size(), 3U);
  EXPECT_EQ(second.asked_.size(), 3U);
}

}  // namespace
}  // namespace inrush::engine
