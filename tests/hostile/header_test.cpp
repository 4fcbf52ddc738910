// Headers beyond the corpus: each row must be refused, with words that say why.
#include "checkpoint/discover.hpp"
#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <string>

namespace inrush::engine {

namespace {

using namespace std::string_literals;

struct BadFile {
  std::string name;
  std::string bytes;
  std::string expected;  // in the message
};

std::string message_of(const std::string& bytes, const DiscoverOptions& options = {}) {
  fakes::MemoryStore store;
  store.set("bad.safetensors", bytes);
  try {
    static_cast<void>(discover_in(store, "bad.safetensors", options));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint) << error.what();
    return error.what();
  }
  return "accepted";
}

std::string tensor(const std::string& name, const std::string& shape, const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string file(const std::string& members, std::size_t data_bytes) {
  return fakes::safetensors_file("{" + members + "}", data_bytes);
}

class BadHeader : public testing::TestWithParam<BadFile> {};

TEST_P(BadHeader, SaysWhy) {
  const std::string message = message_of(GetParam().bytes);
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with("bad.safetensors: ")) << message;
}

const std::string a = tensor("a", "[4]", "[0,4]");

INSTANTIATE_TEST_SUITE_P(
    Rows, BadHeader,
    testing::Values(
        BadFile{"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"s,
                "git lfs pull"},
        BadFile{"short_lfs_pointer", "version https://git-lfs"s, "git lfs pull"},
        BadFile{"html", "<!DOCTYPE html><html>Sign in</html>"s, "HTML page"},
        BadFile{"html_after_space", "\n\n  <HTML><body>403</body>"s, "HTML page"},
        BadFile{"xml", "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>"s, "XML text"},
        BadFile{"json", "{\"weight_map\": {\"a\": \"b.safetensors\"}}"s, "JSON text"},
        BadFile{"zip", "PK\x03\x04\x00\x00\x00\x00\x00\x00 archive/data.pkl"s, "zip archive"},
        BadFile{"pickle", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8"s, "Python pickle"},
        BadFile{"gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x00\x00"s, "gzip"},
        BadFile{"gguf", "GGUF\x03\x00\x00\x00\x00\x00\x00\x00"s, "GGUF"},
        BadFile{"hdf5", "\x89HDF\r\n\x1a\n and more"s, "HDF5"},
        BadFile{"zeros", std::string(10'000, '\0'), "zero bytes only"}, BadFile{"empty", ""s, "0 bytes"},
        BadFile{"cut_in_header", file(a, 4).substr(0, 30), "truncated inside the header: expected at least"},
        BadFile{"cut_in_data", file(a, 3), "truncated at tensor \"a\", bytes ["},
        BadFile{"cut_at_boundary", file(a + "," + tensor("b", "[2]", "[4,6]"), 4),
                "truncated at tensor \"b\""},
        BadFile{"one_byte_more", file(a, 5), "belong to no tensor"},
        BadFile{"data_beyond_64_bits",
                file(tensor("a", "[18446744073709551615]", "[0,18446744073709551615]"), 4),
                "overflows 64 bits"},
        BadFile{"data_ends_at_2_61", file(tensor("a", "[2305843009213693951]", "[0,2305843009213693951]"), 4),
                "truncated at tensor \"a\""},
        BadFile{"duplicate_same_range", file(a + "," + a, 4), "duplicate name: tensor \"a\""},
        BadFile{"duplicate_other_range", file(a + "," + tensor("a", "[4]", "[4,8]"), 8),
                "duplicate name: tensor \"a\""},
        BadFile{"duplicate_by_escape", file(a + "," + tensor("\\u0061", "[4]", "[4,8]"), 8),
                "duplicate name: tensor \"a\""},
        BadFile{"hole", file(a + "," + tensor("b", "[4]", "[5,9]"), 9),
                "tensor \"b\": data_offsets [5, 9) begin after the end (a hole)"},
        BadFile{"overlap", file(a + "," + tensor("b", "[4]", "[3,7]"), 7), "(an overlap)"},
        BadFile{"same_range_twice", file(a + "," + tensor("b", "[4]", "[0,4]"), 4), "(an overlap)"},
        BadFile{"reversed", file(tensor("a", "[4]", "[4,0]"), 4), "end before they begin"},
        BadFile{"empty_range_full_shape", file(tensor("a", "[1]", "[0,0]"), 0),
                "hold 0 bytes, its shape in U8 takes 1"},
        BadFile{"three_offsets", file(tensor("a", "[4]", "[0,4,4]"), 4), "more than two numbers"},
        BadFile{"one_offset", file(tensor("a", "[4]", "[0]"), 4), "fewer than two numbers"},
        BadFile{"negative_zero", file(tensor("a", "[-0]", "[0,0]"), 0), "not a natural number"},
        BadFile{"shape_null", file(tensor("a", "null", "[0,0]"), 0), "shape is not an array"},
        BadFile{"no_dtype", file(R"("a":{"shape":[1],"data_offsets":[0,1]})", 1),
                "tensor \"a\": has no dtype"},
        BadFile{"no_shape", file(R"("a":{"dtype":"U8","data_offsets":[0,1]})", 1), "has no shape"},
        BadFile{"no_offsets", file(R"("a":{"dtype":"U8","shape":[1]})", 1), "has no data_offsets"},
        BadFile{"duplicate_field",
                file(R"("a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1),
                "duplicate field dtype"},
        BadFile{"unknown_dtype", file(R"("a":{"dtype":"F7_X","shape":[1],"data_offsets":[0,1]})", 1),
                "tensor \"a\": dtype \"F7_X\" is none of the 22"},
        BadFile{"dtype_object", file(R"("a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]})", 1),
                "dtype is not a string"},
        BadFile{"tensor_array", file(R"("a":["U8",[1],[0,1]])", 1), "is not described by an object"},
        BadFile{"f6_twelve_bits", file(R"("a":{"dtype":"F6_E2M3","shape":[2],"data_offsets":[0,1]})", 1),
                "12 bits of F6_E2M3"},
        BadFile{"metadata_number", file(R"("__metadata__":{"step":0})", 0),
                "the value of \"step\" is not a string"},
        BadFile{"metadata_array", file(R"("__metadata__":[])", 0),
                "__metadata__ is neither an object nor null"},
        BadFile{"metadata_twice", file(R"("__metadata__":{},"__metadata__":{})", 0),
                "__metadata__ occurs twice"},
        BadFile{"metadata_duplicate", file(R"("__metadata__":{"k":"1","\u006b":"2"})", 0),
                "duplicate key \"k\""},
        BadFile{"huge_number_ignored",
                file(R"("a":{"x":1e999,"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1),
                "out of the range"},
        BadFile{"terminal_escape_in_name", file(tensor("\\u001b[31m", "[2]", "[0,1]"), 1),
                "tensor \"\\x1b[31m\""},
        BadFile{"syntax", fakes::safetensors_file("{\"a\":}", 0), "at byte 13: not valid JSON"},
        BadFile{"two_objects", fakes::safetensors_file("{}{}", 0), "more text follows the end"}),
    [](const testing::TestParamInfo<BadFile>& row) { return row.param.name; });

TEST(HeaderCap, EachIsNamedInItsError) {
  const std::string two = file(a + "," + tensor("b", "[1]", "[4,5]"), 5);
  EXPECT_NE(message_of(two, {.tensor_count_max = 1}).find("DiscoverOptions::tensor_count_max"),
            std::string::npos);
  EXPECT_NE(message_of(two, {.header_bytes_max = 20}).find("DiscoverOptions::header_bytes_max"),
            std::string::npos);
  const std::string long_name = file(tensor("four", "[1]", "[0,1]"), 1);
  EXPECT_NE(message_of(long_name, {.name_bytes_max = 3}).find("DiscoverOptions::name_bytes_max"),
            std::string::npos);
  EXPECT_EQ(message_of(long_name, {.name_bytes_max = 4}), "accepted");
  const std::string deep = file(R"("a":{"x":[[[1]]],"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1);
  EXPECT_NE(message_of(deep, {.nesting_max = 2}).find("DiscoverOptions::nesting_max"), std::string::npos);
  EXPECT_EQ(message_of(deep, {.nesting_max = 3}), "accepted");
  const std::string ranked = file(tensor("a", "[1,1,1]", "[0,1]"), 1);
  EXPECT_NE(message_of(ranked, {.rank_max = 2}).find("DiscoverOptions::rank_max"), std::string::npos);
  EXPECT_EQ(message_of(ranked, {.rank_max = 3}), "accepted");
  const std::string shapes = file(tensor("a", "[1,1]", "[0,1]") + "," + tensor("b", "[1]", "[1,2]"), 2);
  EXPECT_NE(message_of(shapes, {.dimension_count_max = 2}).find("DiscoverOptions::dimension_count_max"),
            std::string::npos);
  EXPECT_EQ(message_of(shapes, {.dimension_count_max = 3}), "accepted");
  const std::string metadata = file(R"("__metadata__":{"a":"","b":""})", 0);
  EXPECT_NE(message_of(metadata, {.metadata_count_max = 1}).find("DiscoverOptions::metadata_count_max"),
            std::string::npos);
  EXPECT_EQ(message_of(metadata, {.metadata_count_max = 2}), "accepted");
}

// The byte in the message shows that reading stopped at the 65th dimension and not after all of them.
TEST(HeaderBomb, RankStopsEarly) {
  std::string shape = "[1";
  for (int i = 0; i < 5'000'000; ++i) shape += ",1";
  const std::string message = message_of(file(tensor("a", shape + "]", "[0,1]"), 1));
  EXPECT_NE(message.find("at byte 165: tensor \"a\": more than 64 dimensions"), std::string::npos) << message;
}

TEST(HeaderBomb, IgnoredFieldLeavesNothingBehind) {
  std::string ignored = "[1";
  for (int i = 0; i < 5'000'000; ++i) ignored += ",1";
  fakes::MemoryStore store;
  store.set("bomb.safetensors",
            file(R"("a":{"x":)" + ignored + R"(],"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1));
  const Checkpoint checkpoint = discover_in(store, "bomb.safetensors", {});
  ASSERT_EQ(checkpoint.tensor_count(), 1U);
  ASSERT_EQ(checkpoint.notes().size(), 1U);
  EXPECT_NE(checkpoint.notes()[0].find("ignored 1 fields"), std::string::npos);
}

TEST(HeaderBomb, MetadataEntriesAreCounted) {
  std::string members;
  for (int i = 0; i < 65'537; ++i) members += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  const std::string message = message_of(file("\"__metadata__\":{" + members + "}", 0));
  EXPECT_NE(message.find("more than 65536 entries"), std::string::npos) << message;
}

TEST(HeaderBomb, NestingBeyondTheStackIsNoOption) {
  fakes::MemoryStore store;
  store.set("a.safetensors", file(a, 4));
  EXPECT_THROW(static_cast<void>(discover_in(store, "a.safetensors", {.nesting_max = 1'000'000})), Error);
}

}  // namespace

}  // namespace inrush::engine
