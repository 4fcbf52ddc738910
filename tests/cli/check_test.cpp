#include "cli/check.hpp"

#include <gtest/gtest.h>

#include "fakes/safetensors_text.hpp"
#include "fakes/temp_folder.hpp"

#include <algorithm>

namespace inrush::engine {
namespace {

constexpr std::string_view header = R"({"a":{"dtype":"F32","shape":[3,4,5],"data_offsets":[0,240]},)"
                                    R"("b":{"dtype":"U8","shape":[0],"data_offsets":[240,240]},)"
                                    R"("c":{"dtype":"U8","shape":[16],"data_offsets":[240,256]}})";

// A checkpoint of three tensors, loaded into host memory with a slice of the first.
class CheckTest : public testing::Test {
 protected:
  CheckTest() {
    path_ = folder_.write("model.safetensors", fakes::safetensors_file(header, 256));
    checkpoint_ = discover(path_);
    const auto load = loader_.start(checkpoint_, {.slices = slices_});
    while (std::optional<Tensor> tensor = load->next()) tensors_.push_back(*tensor);
  }

  Tensor& tensor(std::string_view name) {
    const auto found = std::ranges::find(tensors_, name, &Tensor::name);
    return *found;
  }

  CheckResult check() {
    return check_tensors(loader_, {checkpoint_, slices_, tensors_}, [](const Progress&) {});
  }

  std::string failure(ErrorCode code = ErrorCode::corrupt_checkpoint) {
    try {
      (void)check();
    } catch (const Error& error) {
      EXPECT_EQ(error_code_name(error.code()), error_code_name(code));
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  fakes::TempFolder folder_;
  std::string path_;
  std::map<std::string, Slice> slices_ = {{"a", {1, 1, 2}}};
  Loader loader_;
  Checkpoint checkpoint_;
  std::vector<Tensor> tensors_;
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_F(CheckTest, EqualBytesPass) {
  const CheckResult result = check();
  EXPECT_EQ(result.tensor_count, 3U);
  EXPECT_EQ(result.bytes, 3U * 2 * 5 * 4 + 16);
}

TEST_F(CheckTest, EveryFlippedByteIsFoundAndPlaced) {
  Tensor& sliced = tensor("a");
  auto* const bytes = static_cast<unsigned char*>(sliced.data);
  for (std::uint64_t i = 0; i < sliced.size_bytes; ++i) {
    bytes[i] ^= 1;
    EXPECT_TRUE(has(failure(), "tensor a: byte " + std::to_string(i) + " is")) << i;
    bytes[i] ^= 1;
  }
  EXPECT_EQ(check().tensor_count, 3U);
}

TEST_F(CheckTest, PlaceInTheFileCountsTheRowsThatWereSkipped) {
  // Byte 45 of the slice is byte 5 of its second row; rows are 80 bytes apart and the first starts 20 in.
  static_cast<unsigned char*>(tensor("a").data)[45] ^= 1;
  const std::uint64_t expected = checkpoint_.files()[0].data_offset + 20 + 80 + 5;
  const std::string message = failure();
  EXPECT_TRUE(has(message, "at " + std::to_string(expected) + " of " + path_)) << message;
}

TEST_F(CheckTest, FileThatChangedIsFound) {
  std::string text = fakes::safetensors_file(header, 256);
  text.back() = static_cast<char>(~text.back());
  folder_.write("model.safetensors", text);
  EXPECT_TRUE(has(failure(), "tensor c: byte 15 is"));
}

TEST_F(CheckTest, FileThatWasCutShortIsFound) {
  folder_.write("model.safetensors", fakes::safetensors_file(header, 250));
  EXPECT_TRUE(has(failure(), "cut short"));
}

TEST_F(CheckTest, FileThatWentAwayIsNotFound) {
  std::filesystem::remove(path_);
  EXPECT_TRUE(has(failure(ErrorCode::not_found), path_));
}

TEST_F(CheckTest, WrongSizeTypeNameOrRepetitionIsFound) {
  const std::vector<Tensor> good = tensors_;
  tensor("c").size_bytes = 15;
  EXPECT_TRUE(has(failure(), "tensor c: 15 bytes"));
  tensors_ = good;
  tensor("c").dtype = DType::i8;
  EXPECT_TRUE(has(failure(), "of I8 came"));
  tensors_ = good;
  tensor("c").name = "d";
  EXPECT_TRUE(has(failure(), "no such tensor"));
  tensors_ = good;
  tensors_.push_back(good.front());
  EXPECT_TRUE(has(failure(), "handed out twice"));
}

}  // namespace
}  // namespace inrush::engine
