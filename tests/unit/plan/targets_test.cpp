// Plans of loads into memory that exists: nothing is written here, so any address will do.
#include "plan/targets.hpp"

#include <inrush/error.hpp>
#include <inrush/plan.hpp>

#include "plan/slabs.hpp"
#include "unit/plan/checkpoint_builder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace inrush::tests {

namespace {

constexpr std::uint64_t mib = 1ULL << 20;

Machine plain_machine() {
  Machine machine;
  machine.devices = {Device{}};
  machine.paths = {{"staged", true, "", 0}};
  machine.cpu_count = 16;
  machine.host_free_bytes = 1000;
  return machine;
}

Target target(std::uint64_t address, std::uint64_t size_bytes) {
  return {reinterpret_cast<void*>(address), size_bytes};
}

Checkpoint three() {
  CheckpointBuilder builder;
  builder.file("a.safetensors", 100);
  builder.tensor("a", DType::f32, {4, 2}).tensor("b", DType::u8, {5}).tensor("c", DType::bf16, {3});
  return builder.build();
}

Plan plan_of(const Checkpoint& checkpoint, const std::map<std::string, Target>& by_name,
             const Machine& machine = plain_machine()) {
  LoadRequest request;
  request.targets.by_name = by_name;
  return make_plan(checkpoint, request, machine);
}

std::string refusal(const LoadRequest& request) {
  try {
    static_cast<void>(make_plan(three(), request, plain_machine()));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_request);
    return error.what();
  }
  return "";
}

std::string refusal(const std::map<std::string, Target>& by_name) {
  LoadRequest request;
  request.targets.by_name = by_name;
  return refusal(request);
}

// Tensors "0", "1", ... of one size, and a target each: side by side, or a byte apart.
struct Model {
  Checkpoint checkpoint;
  std::map<std::string, Target> by_name;
};

Model small_tensors(int count, std::uint64_t size_bytes, std::uint64_t gap_bytes) {
  CheckpointBuilder builder;
  builder.file("a.safetensors", 100);
  Model model;
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::to_string(i);
    builder.tensor(name, DType::u8, {size_bytes});
    model.by_name[name] =
        target(0x1001 + static_cast<std::uint64_t>(i) * (size_bytes + gap_bytes), size_bytes);
  }
  model.checkpoint = builder.build();
  return model;
}

}  // namespace

TEST(Targets, OneGroupWhoseOffsetsStartAtTheLowest) {
  const Plan plan =
      plan_of(three(), {{"a", target(0x3001, 32)}, {"b", target(0x1007, 5)}, {"c", target(0x2000, 6)}});
  EXPECT_EQ(plan.slabs, (std::vector<Slab>{{{}, 43, 1, 0, 1, 0x1007}}));
  EXPECT_EQ(plan.placements,
            (std::vector<Placement>{
                {0, 0, 0x3001 - 0x1007, 32, {}}, {1, 0, 0, 5, {}}, {2, 0, 0x2000 - 0x1007, 6, {}}}))
      << "in the order of the file, wherever they lie";
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_EQ(plan.segments, (std::vector<Segment>{{0, 32, 0x3001 - 0x1007, 32, 32, 1},
                                                 {32, 5, 0, 5, 5, 1},
                                                 {37, 6, 0x2000 - 0x1007, 6, 6, 1}}));
}

TEST(Targets, NeighboursInFileAndMemoryAreOneSegment) {
  const Plan plan =
      plan_of(three(), {{"a", target(0x1001, 32)}, {"b", target(0x1021, 5)}, {"c", target(0x1026, 6)}});
  EXPECT_EQ(plan.segments, (std::vector<Segment>{{0, 43, 0, 43, 43, 1}}));
  const Plan turned =
      plan_of(three(), {{"a", target(0x1006, 32)}, {"b", target(0x1001, 5)}, {"c", target(0x1026, 6)}});
  EXPECT_EQ(turned.segments.size(), 3U);
}

TEST(Targets, ManySmallTensorsAreFewReads) {
  const Model model = small_tensors(40'000, 1000, 24);
  const Plan plan = plan_of(model.checkpoint, model.by_name);
  const Plan allocated = plan_of(model.checkpoint, {});
  EXPECT_EQ(plan.slabs.size(), 1U);
  EXPECT_EQ(plan.segments.size(), 40'000U + plan.pieces.size() - 1)
      << "one a tensor, but for those that are cut";
  EXPECT_EQ(plan.pieces.size(), allocated.pieces.size());
  EXPECT_LT(plan.pieces.size(), 50U);
  const Model adjacent = small_tensors(40'000, 1000, 0);
  const Plan merged = plan_of(adjacent.checkpoint, adjacent.by_name);
  EXPECT_EQ(merged.segments.size(), merged.pieces.size());
}

TEST(Targets, GroupsEndWhereTheirBytesReachTheLimit) {
  const Model model = small_tensors(10, 100, 5000);
  Machine machine = plain_machine();
  machine.slab_bytes_max = 400;
  const Plan plan = plan_of(model.checkpoint, model.by_name, machine);
  ASSERT_EQ(plan.slabs.size(), 3U);
  EXPECT_EQ(plan.slabs[0].size_bytes, 400U);
  EXPECT_EQ(plan.slabs[1].target_address, 0x1001U + 4 * 5100);
  EXPECT_EQ(plan.slabs[2].size_bytes, 200U);
}

TEST(Targets, NeitherTheWindowNorTheSizeOfATensorCutsAGroup) {
  CheckpointBuilder builder;
  builder.file("a.safetensors", 100).tensor("small", DType::u8, {7}).tensor("large", DType::u8, {100 * mib});
  builder.tensor("last", DType::u8, {9});
  const Checkpoint checkpoint = builder.build();
  LoadRequest request;
  request.window_bytes_max = 1000;
  request.targets.by_name = {
      {"small", target(1, 7)}, {"large", target(1000, 100 * mib)}, {"last", target(100, 9)}};
  const Plan plan = make_plan(checkpoint, request, plain_machine());
  ASSERT_EQ(plan.slabs.size(), 1U);
  EXPECT_EQ(plan.pieces.size(), 26U) << "cut at multiples of 4 MiB alone";
}

TEST(Targets, TheOthersAreAllocatedAsEver) {
  const Plan plan = plan_of(three(), {{"b", target(0x1007, 5)}});
  ASSERT_EQ(plan.slabs.size(), 2U);
  EXPECT_EQ(plan.slabs[0].target_address, 0U);
  EXPECT_EQ(plan.slabs[0].size_bytes, 256U + 6);
  EXPECT_EQ(plan.slabs[1].target_address, 0x1007U);
  ASSERT_EQ(plan.placements.size(), 3U);
  EXPECT_EQ(plan.placements[1].tensor, 2U);
  EXPECT_EQ(plan.placements[2], (Placement{1, 1, 0, 5, {}}));
  EXPECT_EQ(engine::allocated_bytes(plan), 38U);
}

TEST(Targets, TensorsWithoutBytesNeedNoMemory) {
  CheckpointBuilder builder;
  builder.file("a.safetensors", 100).tensor("none", DType::f32, {0, 3}).tensor("w", DType::u8, {8});
  const Checkpoint checkpoint = builder.build();
  LoadRequest request;
  request.slices = {{"w", {0, 3, 0}}};
  request.targets.by_name = {{"none", {}}, {"w", target(0x1000, 0)}};
  const Plan plan = make_plan(checkpoint, request, plain_machine());
  EXPECT_TRUE(plan.slabs.empty());
  EXPECT_EQ(plan.placements.size(), 2U);
}

TEST(Targets, OnTheCpuTheyTakeNoFurtherHostMemory) {
  CheckpointBuilder builder;
  builder.file("a.safetensors", 100).tensor("w", DType::u8, {500});
  const Checkpoint checkpoint = builder.build();
  EXPECT_EQ(plan_of(checkpoint, {}).page_cache, PageCachePolicy::bypass);
  EXPECT_EQ(plan_of(checkpoint, {{"w", target(0x1000, 500)}}).page_cache, PageCachePolicy::keep);
}

TEST(Targets, UnknownTensorsAreRefused) {
  EXPECT_EQ(refusal({{"bb", target(0x1000, 5)}}),
            "a target of 5 bytes is given for tensor \"bb\", which model does not have: the nearest names "
            "are \"b\"");
  EXPECT_NE(refusal({{"x", target(0x1000, 5)}, {"y", {}}, {"a", target(0x2000, 32)}})
                .find("tensor \"x\" (and 1 more), which model"),
            std::string::npos);
}

TEST(Targets, TensorsThatAreNotSelectedAreRefused) {
  LoadRequest request;
  request.only = {"b"};
  request.targets.by_name = {{"a", target(0x1000, 32)}, {"b", target(0x2000, 5)}};
  EXPECT_EQ(refusal(request),
            "a target of 32 bytes is given for tensor \"a\", F32 [4, 2], which the request does not select; "
            "select it, or leave its target out");
}

TEST(Targets, AnotherSizeIsRefused) {
  for (const std::uint64_t size_bytes : {0U, 31U, 33U}) {
    EXPECT_EQ(
        refusal({{"a", target(0x1000, size_bytes)}}),
        fmt::format("tensor \"a\", F32 [4, 2]: its target has {} bytes, and 32 are loaded; give it memory "
                    "of that size",
                    size_bytes));
  }
  LoadRequest request;
  request.slices = {{"a", {0, 1, 2}}};
  request.targets.by_name = {{"a", target(0x1000, 32)}};
  EXPECT_EQ(refusal(request),
            "tensor \"a\", F32 [4, 2], slice of dimension 0, start 1, length 2: its target has 32 bytes, and "
            "16 are "
            "loaded; give it memory of that size");
  request.targets.by_name = {{"a", target(0x1000, 16)}};
  EXPECT_EQ(refusal(request), "");
}

TEST(Targets, NullAndTheEndOfMemoryAreRefused) {
  EXPECT_EQ(refusal({{"b", target(0, 5)}}),
            "tensor \"b\", U8 [5]: its target is null; give it memory of 5 bytes, or no target");
  EXPECT_NE(refusal({{"b", target(UINT64_MAX - 2, 5)}}).find("ends beyond all memory"), std::string::npos);
}

TEST(Targets, OverlapsNameBoth) {
  EXPECT_EQ(
      refusal({{"a", target(0x1000, 32)}, {"b", target(0x101f, 5)}}),
      "the targets of tensor \"a\", F32 [4, 2] (32 bytes at 0x1000) and tensor \"b\", U8 [5] (5 bytes at "
      "0x101f) overlap; give each memory of its own, or load one of them");
  EXPECT_NE(refusal({{"a", target(0x1000, 32)}, {"c", target(0x1010, 6)}}), "") << "inside";
  EXPECT_NE(refusal({{"b", target(0x1001, 5)}, {"c", target(0x1000, 6)}}), "");
  EXPECT_EQ(refusal({{"a", target(0x1000, 32)}, {"b", target(0x1020, 5)}}), "") << "side by side";
}

TEST(Targets, ThePlanSaysSo) {
  const Checkpoint checkpoint = three();
  const std::string text = describe_plan(checkpoint, plan_of(checkpoint, {{"b", target(0x1007, 5)}}));
  EXPECT_NE(text.find("  targets     1 tensor, 5 B, go to memory of the caller\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("   slab   size  pieces  memory\n"
                      "      0  262 B       1  allocated\n"
                      "      1    5 B       1  targets from 0x1007\n"),
            std::string::npos)
      << text;
}

}  // namespace inrush::tests
