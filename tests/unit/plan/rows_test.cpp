#include "plan/rows.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace inrush::engine {

namespace {

std::string refusal(const TensorInfo& tensor, const Slice& slice) {
  try {
    static_cast<void>(slice_rows(tensor, slice));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_request);
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Rows, FirstDimensionIsOneRow) {
  const std::vector<std::uint64_t> shape = {4, 6};
  const TensorInfo tensor = {"w", DType::f32, shape, 3, 1000, 96};
  EXPECT_EQ(whole_rows(tensor), (Rows{3, 1000, 96, 96, 1}));
  EXPECT_EQ(slice_rows(tensor, {0, 1, 2}), (Rows{3, 1024, 48, 48, 1}));
  EXPECT_EQ(slice_rows(tensor, {1, 0, 6}), whole_rows(tensor));
}

TEST(Rows, InnerDimensionIsStrided) {
  const std::vector<std::uint64_t> shape = {4, 6};
  const TensorInfo tensor = {"w", DType::f32, shape, 0, 1000, 96};
  EXPECT_EQ(slice_rows(tensor, {1, 2, 3}), (Rows{0, 1008, 12, 24, 4}));
  EXPECT_EQ(slice_rows(tensor, {1, 6, 0}).size_bytes(), 0U);
}

TEST(Rows, RefusalsNameTensorShapeAndCause) {
  const std::vector<std::uint64_t> shape = {4, 6};
  const TensorInfo tensor = {"w\n", DType::f32, shape, 0, 1000, 96};
  EXPECT_EQ(refusal(tensor, {2, 0, 1}),
            "tensor \"w\\x0a\", F32 [4, 6]: slice of dimension 2, start 0, length 1: "
            "the tensor has 2 dimensions; they count from 0");
  EXPECT_NE(refusal(tensor, {1, 4, 3}).find("the dimension has 6 elements"), std::string::npos);
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_NE(refusal(tensor, {1, most, 2}).find("the dimension has 6 elements"), std::string::npos);
  EXPECT_NE(refusal({"s", DType::f32, {}, 0, 0, 4}, {0, 0, 1}).find("0 dimensions"), std::string::npos);
}

TEST(Rows, SubByteSlicesFallOnBytes) {
  const std::vector<std::uint64_t> shape = {3, 8};
  const TensorInfo f4 = {"f4", DType::f4, shape, 0, 0, 12};
  EXPECT_EQ(slice_rows(f4, {1, 2, 4}), (Rows{0, 1, 2, 4, 3}));
  EXPECT_NE(refusal(f4, {1, 1, 2}).find("multiples of 2"), std::string::npos);
  const TensorInfo f6 = {"f6", DType::f6_e3m2, shape, 0, 0, 18};
  EXPECT_EQ(slice_rows(f6, {1, 4, 4}), (Rows{0, 3, 3, 6, 3}));
  EXPECT_NE(refusal(f6, {1, 2, 4}).find("multiples of 4"), std::string::npos);
  const std::vector<std::uint64_t> odd = {2, 2, 5};
  EXPECT_NE(refusal({"odd", DType::f4, std::span(odd).first(3), 0, 0, 10}, {2, 0, 2}).find("take the whole"),
            std::string::npos);
}

// The extents of an empty tensor may multiply to anything.
TEST(Rows, EmptyTensorsWithHugeExtents) {
  const std::vector<std::uint64_t> shape = {0, 1ULL << 40, 1ULL << 40};
  EXPECT_EQ(slice_rows({"e", DType::f64, shape, 0, 64, 0}, {1, 5, 1ULL << 39}).size_bytes(), 0U);
}

}  // namespace inrush::engine
