#include "checkpoint/describe.hpp"

#include "fakes/memory_store.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace inrush::engine {
namespace {

class DescribeTest : public testing::Test {
 protected:
  DescribeTest() {
    store_.set("a.bin", std::string(100, 'a'));
    store_.set("b.bin", std::string(50, 'b'));
  }

  Checkpoint describe(std::vector<TensorPlace> tensors) {
    return describe_checkpoint_in(store_, "archive", files_, std::move(tensors));
  }

  // Code and text of the refusal; "accepted" where there was none.
  std::pair<ErrorCode, std::string> refusal(std::vector<TensorPlace> tensors) {
    try {
      static_cast<void>(describe(std::move(tensors)));
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::internal, "accepted"};
  }

  fakes::MemoryStore store_;
  std::vector<std::string> files_ = {"a.bin", "b.bin"};
};

TEST_F(DescribeTest, TensorsAreSortedByPlaceAndFoundByName) {
  const Checkpoint checkpoint = describe({{"late", DType::f32, {2, 5}, 0, 60},
                                          {"other", DType::u8, {50}, 1, 0},
                                          {"early", DType::bf16, {3}, 0, 1},
                                          {"scalar", DType::f64, {}, 0, 7}});
  ASSERT_EQ(checkpoint.tensor_count(), 4U);
  EXPECT_EQ(checkpoint.path(), "archive");
  EXPECT_EQ(checkpoint.tensor(0).name, "early");
  EXPECT_EQ(checkpoint.tensor(1).name, "scalar");
  EXPECT_EQ(checkpoint.tensor(2).name, "late");
  EXPECT_EQ(checkpoint.tensor(3).name, "other");
  const TensorInfo late = checkpoint.tensor(*checkpoint.find("late"));
  EXPECT_EQ(late.offset, 60U);
  EXPECT_EQ(late.size_bytes, 40U);
  EXPECT_EQ(std::vector(late.shape.begin(), late.shape.end()), (std::vector<std::uint64_t>{2, 5}));
  EXPECT_EQ(checkpoint.tensor(3).file, 1U);
  EXPECT_EQ(checkpoint.size_bytes(), 6U + 8U + 40U + 50U);
  EXPECT_EQ(checkpoint.files()[0].data_offset, 0U);
  EXPECT_EQ(checkpoint.files()[0].identity.size_bytes, 100U);
}

TEST_F(DescribeTest, ARangeMustLieInItsFile) {
  EXPECT_EQ(describe({{"t", DType::u8, {100}, 0, 0}}).size_bytes(), 100U);
  for (const TensorPlace& place :
       {TensorPlace{"t", DType::u8, {100}, 0, 1}, TensorPlace{"t", DType::u8, {1}, 0, 101},
        TensorPlace{"t", DType::u8, {8}, 0, ~std::uint64_t{0}}, TensorPlace{"t", DType::u8, {0}, 0, 101}}) {
    const auto [code, text] = refusal({place});
    EXPECT_EQ(code, ErrorCode::corrupt_checkpoint) << place.offset;
    EXPECT_NE(text.find("a.bin: tensor \"t\""), std::string::npos) << text;
  }
}

TEST_F(DescribeTest, RangesMustNotOverlap) {
  EXPECT_EQ(describe({{"s", DType::u8, {10}, 0, 0}, {"t", DType::u8, {10}, 0, 10}}).tensor_count(), 2U);
  const auto [code, text] = refusal({{"s", DType::u8, {11}, 0, 0}, {"t", DType::u8, {10}, 0, 10}});
  EXPECT_EQ(code, ErrorCode::corrupt_checkpoint);
  EXPECT_NE(text.find("overlaps tensor \"s\""), std::string::npos) << text;
  EXPECT_EQ(refusal({{"s", DType::u8, {10}, 0, 0}, {"t", DType::u8, {10}, 0, 0}}).first,
            ErrorCode::corrupt_checkpoint);
  // What has no bytes overlaps nothing.
  EXPECT_EQ(describe({{"s", DType::u8, {10}, 0, 0}, {"t", DType::u8, {0}, 0, 0}}).tensor_count(), 2U);
  EXPECT_EQ(describe({{"s", DType::u8, {10}, 0, 0}, {"t", DType::u8, {10}, 1, 0}}).tensor_count(), 2U);
}

TEST_F(DescribeTest, WhatCannotBeMeantIsRefused) {
  EXPECT_EQ(refusal({{"t", DType::u8, {1}, 2, 0}}).first, ErrorCode::invalid_request);
  EXPECT_EQ(refusal({{"t", DType::u8, {1}, 0, 0}, {"t", DType::u8, {1}, 1, 0}}).first,
            ErrorCode::invalid_request);
  EXPECT_EQ(refusal({{"t", DType::f4, {3}, 0, 0}}).first, ErrorCode::invalid_request);
  EXPECT_EQ(refusal({{"t", DType::f64, {1ULL << 62, 4}, 0, 0}}).first, ErrorCode::invalid_request);
  files_.emplace_back("absent.bin");
  EXPECT_EQ(refusal({{"t", DType::u8, {1}, 0, 0}}).first, ErrorCode::not_found);
}

}  // namespace
}  // namespace inrush::engine
