#include "checkpoint/header.hpp"

#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace inrush::engine {

namespace {

Header parse(const std::string& file_bytes, const DiscoverOptions& options = {}) {
  fakes::MemoryStore store;
  store.set("t.safetensors", file_bytes);
  const auto file = store.open("t.safetensors");
  const HeaderBytes bytes = read_header(*file, file->status(), options.header_bytes_max);
  return parse_header(bytes, {.path = file->path(), .file_bytes = file_bytes.size(), .name_seed = 1},
                      options);
}

TEST(Header, TensorsComeByOffsetWithPlacesInTheFile) {
  const std::string text = R"({"late":{"dtype":"F32","shape":[2,3],"data_offsets":[3,27]},)"
                           R"("early":{"shape":[3],"data_offsets":[0,3],"dtype":"U8"}})";
  const Header header = parse(fakes::safetensors_file(text, 27));
  const std::uint64_t data_offset = 8 + text.size();
  ASSERT_EQ(header.list.tensors.size(), 2U);
  EXPECT_EQ(header.list.name(0), "early");
  EXPECT_EQ(header.list.tensors[0].offset, data_offset);
  EXPECT_EQ(header.list.name(1), "late");
  EXPECT_EQ(header.list.tensors[1].offset, data_offset + 3);
  EXPECT_EQ(header.list.tensors[1].size_bytes, 24U);
  EXPECT_EQ(header.list.tensors[1].dtype, DType::f32);
  ASSERT_EQ(header.list.tensors[1].rank, 2U);
  EXPECT_EQ(header.list.dimensions[header.list.tensors[1].shape_offset], 2U);
  EXPECT_EQ(header.list.dimensions[header.list.tensors[1].shape_offset + 1], 3U);
}

TEST(Header, EveryDtypeTakesItsBits) {
  for (std::uint32_t number = 0; number < dtype_count; ++number) {
    const auto dtype = static_cast<DType>(number);
    const std::uint64_t size_bytes = 8ULL * dtype_bits(dtype) / 8;
    const std::string text = R"({"t":{"dtype":")" + std::string(dtype_name(dtype)) +
                             R"(","shape":[8],"data_offsets":[0,)" + std::to_string(size_bytes) + "]}}";
    const Header header = parse(fakes::safetensors_file(text, size_bytes));
    EXPECT_EQ(header.list.tensors.at(0).dtype, dtype);
    EXPECT_THROW(parse(fakes::safetensors_file(text, size_bytes + 1)), Error) << dtype_name(dtype);
  }
}

// Writers before 0.3.0 did not pad: the data starts where the header ends, wherever that is
// (llama.cpp#18291).
TEST(Header, DataStartsAtEveryResidue) {
  for (std::size_t padding = 0; padding < 16; ++padding) {
    const std::string text =
        R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" + std::string(padding, ' ');
    EXPECT_EQ(parse(fakes::safetensors_file(text, 4)).list.tensors.at(0).offset, 8 + text.size());
  }
}

TEST(Header, EmptyTensorsStandAnywhere) {
  const std::string text = R"({"first":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]},)"
                           R"("data":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("last":{"dtype":"I64","shape":[2,0,3],"data_offsets":[4,4]},)"
                           R"("also_first":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}})";
  const Header header = parse(fakes::safetensors_file(text, 4));
  ASSERT_EQ(header.list.tensors.size(), 4U);
  EXPECT_EQ(header.list.name(0), "first");
  EXPECT_EQ(header.list.name(1), "also_first");
  EXPECT_EQ(header.list.name(2), "data");
  EXPECT_EQ(header.list.name(3), "last");
}

TEST(Header, OnlyAnEmptyTensor) {
  const Header header =
      parse(fakes::safetensors_file(R"({"t":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", 0));
  EXPECT_EQ(header.list.tensors.at(0).size_bytes, 0U);
}

TEST(Header, ScalarHasNoDimensions) {
  const Header header =
      parse(fakes::safetensors_file(R"({"t":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8));
  EXPECT_EQ(header.list.tensors.at(0).rank, 0U);
}

TEST(Header, MetadataMayBeAbsentNullOrEmpty) {
  for (const char* text : {"{}", R"({"__metadata__":null})", R"({"__metadata__":{}})"}) {
    const Header header = parse(fakes::safetensors_file(text, 0));
    EXPECT_TRUE(header.metadata.empty());
    EXPECT_TRUE(header.list.tensors.empty());
  }
}

TEST(Header, MetadataIsDecodedAndMayComeLast) {
  const std::string text = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("\u005f_metadata__":{"format":"pt","n\u0061me":"x\ny"}})";
  const Header header = parse(fakes::safetensors_file(text, 1));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"name", "x\ny"}}));
  EXPECT_EQ(header.list.tensors.size(), 1U);
}

TEST(Header, NamesAreDecodedWhole) {
  const std::string plain(3000, 'n');
  const std::string text =
      R"({")" + plain + R"(\u0000\u00e4)" + plain + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string expected = plain + std::string(1, '\0') + "\xC3\xA4" + plain;
  EXPECT_EQ(parse(fakes::safetensors_file(text, 1)).list.name(0), expected);
}

TEST(Header, UnknownFieldsAreSkippedWhateverTheyHold) {
  const std::string text =
      R"({"t":{"x":{"dtype":[1,{"shape":null}],"y":"\u0041"},"dtype":"U8","z":[],"q":null,"r":true,)"
      R"("s":-1.5,"u":"text","shape":[1],"data_offsets":[0,1],"v":{}}})";
  const Header header = parse(fakes::safetensors_file(text, 1));
  EXPECT_EQ(header.list.tensors.at(0).size_bytes, 1U);
  EXPECT_EQ(header.unknown_field_count, 7U);
  EXPECT_EQ(header.unknown_field, "x");
}

TEST(HeaderBytes, LargeHeaderIsReadWhole) {
  std::string text = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  text += std::string(100'000, ' ');
  fakes::MemoryStore store;
  store.set("t", fakes::safetensors_file(text, 1));
  const auto file = store.open("t");
  const HeaderBytes bytes = read_header(*file, file->status(), text.size());
  EXPECT_EQ(bytes.text(), text);
  EXPECT_EQ(bytes.size_bytes, 8 + text.size());
  EXPECT_THROW(static_cast<void>(read_header(*file, file->status(), text.size() - 1)), Error);
}

TEST(HeaderBytes, HashCoversLengthAndText) {
  fakes::MemoryStore store;
  const auto hash_of = [&](const std::string& bytes) {
    store.set("t", bytes);
    const auto file = store.open("t");
    return hash_header(read_header(*file, file->status(), 1000));
  };
  const auto plain = hash_of(fakes::safetensors_file("{}", 0));
  EXPECT_EQ(plain, hash_of(fakes::safetensors_file("{}", 9)));  // data does not count
  EXPECT_NE(plain, hash_of(fakes::safetensors_file("{} ", 0)));
  EXPECT_NE(plain, hash_of(fakes::safetensors_file("{ }", 0)));
}

// The file shrank between status and read: an error, not a short header.
TEST(HeaderBytes, FileThatShrankIsRefused) {
  fakes::MemoryStore store;
  store.set("t", fakes::safetensors_file("{}", 0));
  const auto file = store.open("t");
  FileStatus status = file->status();
  ++status.size_bytes;
  EXPECT_THROW(static_cast<void>(read_header(*file, status, 1000)), Error);
}

}  // namespace

}  // namespace inrush::engine
