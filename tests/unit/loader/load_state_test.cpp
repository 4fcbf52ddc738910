#include "loader/load_state.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <set>

namespace inrush::engine {
namespace {

// Three slabs of two tensors, each tensor two pieces that it shares with nobody, and one tensor without
// bytes.
Plan make_test_plan() {
  Plan plan;
  for (std::uint32_t slab = 0; slab < 3; ++slab) {
    plan.slabs.push_back({.device = {},
                          .size_bytes = 1000,
                          .alignment_bytes = 256,
                          .first_piece = slab * 4,
                          .piece_count = 4});
    for (std::uint32_t i = 0; i < 2; ++i) {
      plan.placements.push_back(
          {.tensor = plan.placements.size(), .slab = slab, .slab_offset = i * 512, .size_bytes = 400});
      for (int half = 0; half < 2; ++half) {
        plan.pieces.push_back({.file = 0,
                               .offset = plan.pieces.size() * 200,
                               .size_bytes = 200,
                               .slab = slab,
                               .first_placement = static_cast<std::uint32_t>(plan.placements.size() - 1),
                               .placement_count = 1});
      }
    }
  }
  plan.placements.push_back({.tensor = 6, .slab = 2, .slab_offset = 912, .size_bytes = 0});
  return plan;
}

SlabMemory memory_of_slab() {
  const auto owner = std::make_shared<int>(0);
  return {reinterpret_cast<std::byte*>(owner.get()), owner, nullptr};
}

void allocate_all(LoadState& state) {
  while (const auto slab = state.slab_to_allocate()) state.allocated(*slab, memory_of_slab());
}

TEST(LoadState, GivesEveryPieceOnceInOrder) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  EXPECT_FALSE(state.take_piece()) << "nothing is allocated";
  allocate_all(state);
  EXPECT_TRUE(state.all_allocated());
  for (std::uint32_t piece = 0; piece < plan.pieces.size(); ++piece)
    EXPECT_EQ(state.take_piece()->piece, piece);
  EXPECT_FALSE(state.take_piece());
  EXPECT_TRUE(state.pieces_exhausted());
}

TEST(LoadState, OnlyTheFirstSlabCanBePromised) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  state.promise_first_slab();
  for (std::uint32_t piece = 0; piece < 4; ++piece) {
    const auto given = state.take_piece();
    ASSERT_TRUE(given) << piece;
    EXPECT_EQ(given->piece, piece);
    EXPECT_EQ(given->slab, nullptr);
  }
  EXPECT_FALSE(state.take_piece());
  EXPECT_EQ(state.memory_of(0).data, nullptr);
  state.wait_for_first_slab(Clock::now());
  const SlabMemory memory = memory_of_slab();
  state.allocated(0, memory);
  state.wait_for_first_slab(Clock::time_point::max());
  EXPECT_EQ(state.memory_of(0).data, memory.data);
}

TEST(LoadState, ATensorIsReadyWithItsLastPieceOnly) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  allocate_all(state);
  EXPECT_EQ(state.take_next()->placement, 6U) << "a tensor without bytes is complete from the start";
  EXPECT_EQ(state.arrived(3), 0U);
  EXPECT_FALSE(state.take_next());
  EXPECT_EQ(state.arrived(2), 1U);
  EXPECT_EQ(state.take_next()->placement, 1U);
  EXPECT_TRUE(state.is_taken(1));
}

TEST(LoadState, GivesAllThatIsReadyWithinTheLimits) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  allocate_all(state);
  static_cast<void>(state.take_next());  // the one without bytes
  for (std::uint32_t piece = 0; piece < 8; ++piece) state.arrived(piece);
  static_cast<void>(state.take(1));
  const auto taken_within = [&](const TakeLimits& limits) {
    std::vector<std::uint32_t> placements;
    for (const LoadState::Taken& taken : state.take_ready(limits)) placements.push_back(taken.placement);
    return placements;
  };
  EXPECT_EQ(taken_within({.count_max = 1}), std::vector<std::uint32_t>{0});
  EXPECT_EQ(taken_within({.bytes_max = 1}), std::vector<std::uint32_t>{2}) << "without the one taken by name";
  for (std::uint32_t piece = 8; piece < 12; ++piece) state.arrived(piece);
  EXPECT_EQ(taken_within({.bytes_max = 401}), (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(taken_within({}), std::vector<std::uint32_t>{5});
  EXPECT_TRUE(taken_within({}).empty());
  EXPECT_TRUE(state.all_taken());
  state.fail(std::make_exception_ptr(Error(ErrorCode::cancelled, "enough")));
  EXPECT_THROW(static_cast<void>(state.take_ready({})), Error);
}

TEST(LoadState, TheWindowBoundsWhatIsAllocatedAndNotTaken) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 1500);
  EXPECT_EQ(state.slab_to_allocate(), 0U);
  state.allocated(0, memory_of_slab());
  EXPECT_FALSE(state.slab_to_allocate());
  while (const auto piece = state.take_piece()) state.arrived(piece->piece);
  EXPECT_FALSE(state.slab_to_allocate()) << "complete is not taken";
  static_cast<void>(state.take(0));
  EXPECT_FALSE(state.slab_to_allocate()) << "600 + 1000 bytes";
  static_cast<void>(state.take(1));
  EXPECT_EQ(state.slab_to_allocate(), 1U) << "with the last tensor the padding counts as taken too";
}

TEST(LoadState, ASlabLargerThanTheWindowComesAlone) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 10);
  EXPECT_EQ(state.slab_to_allocate(), 0U);
  state.allocated(0, memory_of_slab());
  EXPECT_FALSE(state.slab_to_allocate());
}

TEST(LoadState, APreferredTensorIsReadFirstAndAllocatedBeforeItsTurn) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 1000);
  state.allocated(0, memory_of_slab());
  EXPECT_EQ(state.take_piece()->piece, 0U);
  state.allocated(2, memory_of_slab());
  state.prefer(5);
  EXPECT_EQ(state.take_piece()->piece, 10U);
  EXPECT_EQ(state.take_piece()->piece, 11U);
  EXPECT_EQ(state.take_piece()->piece, 1U);
  std::set<std::uint32_t> rest;
  while (const auto piece = state.take_piece()) rest.insert(piece->piece);
  EXPECT_EQ(rest, (std::set<std::uint32_t>{2, 3, 8, 9}))
      << "also the rest of the slab that was allocated before its turn";
  EXPECT_FALSE(state.pieces_exhausted());
}

TEST(LoadState, TheSlabGoesWithItsLastTensor) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  SlabMemory memory = memory_of_slab();
  const std::weak_ptr<void> watched = memory.owner;
  state.allocated(0, std::move(memory));
  while (const auto piece = state.take_piece()) state.arrived(piece->piece);
  auto first = state.take(0);
  auto second = state.take(1);
  EXPECT_EQ(first->memory.owner, second->memory.owner);
  first.reset();
  EXPECT_FALSE(watched.expired());
  second.reset();
  EXPECT_TRUE(watched.expired());
}

// The last slab of the three is a group of targets.
Plan make_plan_with_targets() {
  Plan plan = make_test_plan();
  plan.slabs[2].target_address = 0x1000;
  plan.slabs[2].alignment_bytes = 1;
  return plan;
}

TEST(LoadState, TargetsAreNeitherAllocatedNorCounted) {
  const Plan plan = make_plan_with_targets();
  LoadState state(plan, 1000);
  state.allocated(2, memory_of_slab());
  EXPECT_EQ(state.slab_to_allocate(), 0U);
  state.allocated(0, memory_of_slab());
  EXPECT_FALSE(state.slab_to_allocate());
  while (const auto piece = state.take_piece()) state.arrived(piece->piece);
  static_cast<void>(state.take(4));
  static_cast<void>(state.take(5));
  EXPECT_FALSE(state.slab_to_allocate()) << "taking targets makes no room";
  static_cast<void>(state.take(0));
  static_cast<void>(state.take(1));
  EXPECT_EQ(state.slab_to_allocate(), 1U);
  state.allocated(1, memory_of_slab());
  EXPECT_FALSE(state.slab_to_allocate());
  EXPECT_TRUE(state.all_allocated());
}

TEST(LoadState, AGroupOfTargetsIsGivenNotAllocated) {
  const Plan plan = make_plan_with_targets();
  LoadState state(plan, 0);
  allocate_all(state);
  EXPECT_FALSE(state.all_allocated());
  EXPECT_FALSE(state.is_allocated(2));
}

TEST(LoadState, OverwrittenAreTargetsWithAPieceThatWasGivenOnceTheLoadHasFailed) {
  const Plan plan = make_plan_with_targets();
  LoadState state(plan, 0);
  allocate_all(state);
  state.allocated(2, memory_of_slab());
  for (int i = 0; i < 9; ++i) static_cast<void>(state.take_piece());
  EXPECT_TRUE(state.overwritten_targets().empty());
  state.fail(std::make_exception_ptr(Error(ErrorCode::cancelled, "")));
  EXPECT_EQ(state.overwritten_targets(), std::vector<std::uint32_t>{4}) << "half of it";
  EXPECT_FALSE(state.take_piece()) << "so that the list stays true";
  EXPECT_EQ(state.overwritten_targets(), std::vector<std::uint32_t>{4});
}

TEST(LoadState, OverwrittenTargetsAreNamedOnce) {
  Plan plan = make_plan_with_targets();
  plan.pieces[9].placement_count = 2;  // the end of the first target, and the start of the second
  LoadState state(plan, 0);
  state.allocated(2, memory_of_slab());
  while (state.take_piece()) {
  }
  state.ended(std::make_exception_ptr(Error(ErrorCode::storage_failed, "")));
  EXPECT_EQ(state.overwritten_targets(), (std::vector<std::uint32_t>{4, 5}));
}

TEST(LoadState, TheFirstErrorStays) {
  const Plan plan = make_test_plan();
  LoadState state(plan, 0);
  state.fail(std::make_exception_ptr(Error(ErrorCode::out_of_memory, "first")));
  state.ended(std::make_exception_ptr(Error(ErrorCode::cancelled, "second")));
  try {
    static_cast<void>(state.take_next());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_THROW(static_cast<void>(state.finished()), Error);
}

}  // namespace
}  // namespace inrush::engine
