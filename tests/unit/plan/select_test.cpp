#include "plan/select.hpp"

#include <inrush/error.hpp>

#include "unit/plan/checkpoint_builder.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inrush::engine {

namespace {

Checkpoint layers() {
  tests::CheckpointBuilder builder;
  builder.file("a.safetensors", 100);
  builder.tensor("model.layers.0.q.weight", DType::f32, {2, 2})
      .tensor("model.layers.0.bias", DType::f32, {2});
  builder.tensor("model.layers.1.q.weight", DType::f32, {2, 2}).tensor("empty", DType::f32, {0});
  builder.tensor("a[0]", DType::f32, {1}).tensor("a0", DType::f32, {1});
  return builder.build();
}

std::vector<std::uint64_t> selected_by(const LoadRequest& request) {
  std::vector<std::uint64_t> tensors;
  for (const Selected& one : select_tensors(layers(), request)) tensors.push_back(one.tensor);
  return tensors;
}

std::vector<std::uint64_t> selected_by(const std::vector<std::string>& only) {
  LoadRequest request;
  request.only = only;
  return selected_by(request);
}

std::string refusal(const LoadRequest& request) {
  try {
    static_cast<void>(selected_by(request));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_request);
    return error.what();
  }
  return "";
}

using Indices = std::vector<std::uint64_t>;

}  // namespace

TEST(Select, NamesAndGlobs) {
  EXPECT_EQ(selected_by(LoadRequest{}), (Indices{3, 0, 1, 2, 4, 5})) << "empty tensors come first";
  EXPECT_EQ(selected_by(std::vector<std::string>{"*.q.*", "a0", "a0", "*.q.weight"}), (Indices{0, 2, 5}));
  EXPECT_EQ(selected_by(std::vector<std::string>{"a[0]"}), (Indices{4, 5})) << "as a name and as a glob";
}

TEST(Select, AnEscapedPatternIsOneName) {
  EXPECT_EQ(selected_by(std::vector<std::string>{R"(a\[0])", R"(a\[0])"}), (Indices{4}));
  EXPECT_EQ(selected_by(std::vector<std::string>{R"(a\[0])", "a[0]", "a?"}), (Indices{4, 5}));
  EXPECT_EQ(selected_by(std::vector<std::string>{R"(a\[0])", R"(\a\[0\])"}), (Indices{4}))
      << "spelt in two ways";
  LoadRequest request;
  request.only = {"a[0]", R"(a\[1])"};
  EXPECT_NE(refusal(request), "") << "that name is not there";
}

TEST(Select, PredicateComesAfterThePatterns) {
  LoadRequest request;
  request.only = {"model.*"};
  request.select = [](const TensorInfo& tensor) { return tensor.shape.size() == 1; };
  EXPECT_EQ(selected_by(request), (Indices{1}));
  request.select = [](const TensorInfo&) { return false; };
  EXPECT_TRUE(selected_by(request).empty());
}

TEST(Select, PatternWithoutMatchNamesTheNearest) {
  LoadRequest request;
  request.only = {"model.*", "model.layers.1.k.weight"};
  EXPECT_EQ(refusal(request),
            "no tensor of model matches \"model.layers.1.k.weight\": the nearest names are "
            "\"model.layers.1.q.weight\", "
            "\"model.layers.0.q.weight\", \"model.layers.0.bias\"");
  request.only = {"BIAS"};
  EXPECT_NE(refusal(request).find("\"model.layers.0.bias\""), std::string::npos);
  request.only = {""};
  EXPECT_NE(refusal(request).find("it has 6 tensors"), std::string::npos);
}

TEST(Select, SlicesAreCheckedWhetherSelectedOrNot) {
  LoadRequest request;
  request.only = {"a0"};
  request.slices = {{"model.layers.0.bias", {0, 1, 1}}};
  EXPECT_EQ(refusal(request), "");
  request.slices = {{"model.layers.0.bias", {0, 1, 2}}};
  EXPECT_NE(refusal(request).find("the dimension has 2 elements"), std::string::npos);
  request.slices = {{"model.layers.0.biass", {0, 1, 1}}};
  EXPECT_NE(refusal(request).find("which model does not have: the nearest names are \"model.layers.0.bias\""),
            std::string::npos);
}

TEST(Select, SlicedToNothingIsEmpty) {
  LoadRequest request;
  request.slices = {{"model.layers.1.q.weight", {0, 0, 0}}};
  EXPECT_EQ(selected_by(request), (Indices{2, 3, 0, 1, 4, 5}));
}

}  // namespace inrush::engine
