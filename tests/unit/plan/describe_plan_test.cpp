#include <inrush/plan.hpp>

#include "unit/plan/checkpoint_builder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace inrush::tests {

namespace {

Machine two_paths() {
  Machine machine;
  machine.devices = {Device{}};
  machine.paths = {{"staged", true, "", 2e9}, {"gds", false, "not built", 0}};
  machine.host_free_bytes = 1'000'000;
  machine.cpu_count = 1;
  return machine;
}

}  // namespace

TEST(DescribePlan, SaysEveryChoice) {
  CheckpointBuilder builder;
  builder.file("dir/a.safetensors", 100)
      .tensor("bad\x1b[31m", DType::bf16, {4, 8})
      .tensor("0.grün", DType::f32, {0});
  const Checkpoint checkpoint = builder.build();
  LoadRequest request;
  request.slices = {{"bad\x1b[31m", {1, 2, 4}}};
  const std::string text = describe_plan(checkpoint, make_plan(checkpoint, request, two_paths()));
  EXPECT_EQ(text, R"(Plan: 2 tensors, 32 B, from model
  device      cpu
  path        staged: chosen, 2.00 GB/s at 0 CPU-s/GB measured
              gds: not usable (not built)
              staged, since: measured here: staged 2.00 GB/s and 0 CPU-s/GB
  page cache  keep (automatic: 88 B and 10 % fit in the 1.00 MB of host memory that is free)
  ring        1 reader, 2 slots of 4.10 kB, 8.19 kB together
  reads       1 piece, 56 B, 1.75 times what is loaded; 1 segment
Slabs
   slab  size  pieces  memory
      0  32 B       1  allocated
Pieces
   piece  slab  tensors  segments  size  file           range
       0     0        1         1  56 B  a.safetensors  bytes [104, 160)
Tensors
   slab  offset  size  dtype  name         shape   part
      -       -   0 B  F32    0.grün       [0]     all
      0       0  32 B  BF16   bad\x1b[31m  [4, 8]  dimension 1, [2, 6)
)");
}

TEST(DescribePlan, CutsItsTables) {
  CheckpointBuilder builder;
  builder.file("a", 100);
  for (int i = 0; i < 10; ++i) builder.tensor("t" + std::to_string(i), DType::u8, {4});
  const Checkpoint checkpoint = builder.build();
  const std::string text = describe_plan(checkpoint, make_plan(checkpoint, {}, two_paths()), 3);
  EXPECT_NE(text.find("... and 7 more\n"), std::string::npos);
  EXPECT_EQ(text.find(" t3 "), std::string::npos);
}

TEST(DescribePlan, EmptyPlan) {
  const Checkpoint checkpoint;
  const std::string text = describe_plan(checkpoint, make_plan(checkpoint, {}, two_paths()));
  EXPECT_EQ(text.find("Slabs"), std::string::npos);
  EXPECT_NE(text.find("0 tensors"), std::string::npos);
}

}  // namespace inrush::tests
