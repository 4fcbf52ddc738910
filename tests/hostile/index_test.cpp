// Indexes that lie, lead elsewhere, or are damaged: each row must be refused with its code and with words
// that say why.
#include "checkpoint/discover.hpp"
#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace inrush::engine {

namespace {

using namespace std::string_literals;

struct BadIndex {
  std::string name;
  std::string text;
  std::string expected;  // in the message
  ErrorCode code = ErrorCode::corrupt_checkpoint;
};

// A folder with two good shards, {a1, a2} and {b1, shared}; "c.safetensors" holds {c1, shared} and
// d.safetensors is damaged.
fakes::MemoryStore folder_with(const std::string& index) {
  fakes::MemoryStore store;
  store.set("m/a.safetensors", fakes::one_byte_tensors(std::array{"a1", "a2"}));
  store.set("m/b.safetensors", fakes::one_byte_tensors(std::array{"b1", "shared"}));
  store.set("m/c.safetensors", fakes::one_byte_tensors(std::array{"c1", "shared"}));
  store.set("m/d.safetensors", "version https://git-lfs.github.com/spec/v1");
  store.set("secret.safetensors", fakes::one_byte_tensors(std::array{"a1"}));
  store.set("m/model.safetensors.index.json", index);
  return store;
}

std::string map(const std::string& members) { return "{\"weight_map\":{" + members + "}}"; }
std::string map_to(const std::string& file) { return map("\"a1\":\"" + file + "\""); }

class Index : public testing::TestWithParam<BadIndex> {};

TEST_P(Index, IsRefused) {
  const fakes::MemoryStore store = folder_with(GetParam().text);
  try {
    static_cast<void>(discover_in(store, "m", {}));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(GetParam().expected), std::string_view::npos)
        << error.what();
  }
  EXPECT_EQ(store.open_files().now, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Index,
    testing::Values(
        BadIndex{"empty", "", "not valid JSON"}, BadIndex{"null", "null", "not a JSON object"},
        BadIndex{"array", "[]", "not a JSON object"}, BadIndex{"number", "7", "not a JSON object"},
        BadIndex{"string", "\"a\"", "not a JSON object"}, BadIndex{"no_map", "{}", "has no weight_map"},
        BadIndex{"empty_map", map(""), "weight_map is empty"},
        BadIndex{"map_null", R"({"weight_map":null})", "not an object"},
        BadIndex{"map_array", R"({"weight_map":["a1"]})", "weight_map is not an object"},
        BadIndex{"map_string", R"({"weight_map":"a.safetensors"})", "weight_map is not an object"},
        BadIndex{"map_twice", R"({"weight_map":{"a1":"a.safetensors"},"weight_map":{}})",
                 "duplicate key \"weight_map\""},
        BadIndex{"map_twice_by_escape", R"({"weight_map":{"a1":"a.safetensors"},"weight\u005fmap":{}})",
                 "duplicate key"},
        BadIndex{"metadata_twice", R"({"metadata":{},"metadata":{},"weight_map":{}})",
                 "duplicate key \"metadata\""},
        BadIndex{"metadata_array", R"({"metadata":[],"weight_map":{}})", "metadata is not an object"},
        BadIndex{"metadata_number", R"({"metadata":1,"weight_map":{}})", "metadata is not an object"},
        BadIndex{"total_size_twice", R"({"metadata":{"total_size":1,"total_size":2}})",
                 "duplicate key \"total_size\""},
        BadIndex{"total_size_object", R"({"metadata":{"total_size":{}}})", "total_size is not a number"},
        BadIndex{"file_null", map(R"("a1":null)"), "the file of tensor \"a1\" is not a string"},
        BadIndex{"file_number", map(R"("a1":1)"), "is not a string"},
        BadIndex{"file_list", map(R"("a1":["a.safetensors"])"), "is not a string"},
        BadIndex{"file_object", map(R"("a1":{"file":"a.safetensors"})"), "is not a string"},
        BadIndex{"tensor_twice", map(R"("a1":"a.safetensors","a1":"a.safetensors")"), "duplicate key \"a1\""},
        BadIndex{"tensor_twice_other_file", map(R"("a1":"a.safetensors","a1":"b.safetensors")"),
                 "duplicate key \"a1\""},
        BadIndex{"tensor_twice_by_escape", map(R"("a1":"a.safetensors","\u0061\u0031":"a.safetensors")"),
                 "duplicate key"},
        BadIndex{"file_empty", map_to(""), "is empty"},
        BadIndex{"file_absolute", map_to("/secret.safetensors"), "absolute"},
        BadIndex{"file_parent", map_to("../secret.safetensors"), "component"},
        BadIndex{"file_parent_inside", map_to("sub/../../secret.safetensors"), "component"},
        BadIndex{"file_parent_by_escape", map_to("\\u002e\\u002e/secret.safetensors"), "component"},
        BadIndex{"file_parent_last", map_to("sub/.."), "does not end with .safetensors"},
        BadIndex{"file_dot", map_to("./a.safetensors"), "component"},
        BadIndex{"file_double_slash", map_to("sub//a.safetensors"), "component"},
        BadIndex{"file_backslash", map_to("..\\\\secret.safetensors"), "backslash"},
        BadIndex{"file_zero_byte", map_to("a.safetensors\\u0000.safetensors"), "zero byte"},
        BadIndex{"file_pickle", map_to("pytorch_model.bin"), "does not end with .safetensors"},
        BadIndex{"file_too_long", map_to(std::string(5000, 'x') + ".safetensors"), "longer than a path"},
        BadIndex{"file_escape_sequence", map_to("\\u001b[2J/secret"), "\\x1b[2J"},
        BadIndex{"missing_shard", map_to("gone.safetensors"),
                 "1 of the 1 files that weight_map names are missing: gone", ErrorCode::not_found},
        BadIndex{"missing_shards_all_listed",
                 map(R"("a1":"a.safetensors","x":"x.safetensors","y":"y.safetensors","z":"d.safetensors")"),
                 "2 of the 4 files that weight_map names are missing: x.safetensors, y.safetensors",
                 ErrorCode::not_found},
        BadIndex{"shard_is_a_folder", map_to("sub.safetensors"), "missing", ErrorCode::not_found},
        BadIndex{"damaged_shard", map(R"("a1":"a.safetensors","d1":"d.safetensors")"), "git lfs pull"},
        BadIndex{"stale", map(R"("old":"a.safetensors","a1":"a.safetensors")"),
                 "1 tensors are not in the file that weight_map names: \"old\" (expected in a.safetensors)"},
        BadIndex{"wrong_shard", map(R"("a1":"b.safetensors","a2":"a.safetensors")"),
                 "\"a1\" (expected in b.safetensors, found in a.safetensors)"},
        BadIndex{"many_stale",
                 map(R"("1":"a.safetensors","2":"a.safetensors","3":"a.safetensors","4":"a.safetensors",)"
                     R"("5":"a.safetensors","6":"a.safetensors")"),
                 " and 1 more"},
        BadIndex{"trailing_comma", "{\"weight_map\":{\"a1\":\"a.safetensors\",}}", "not valid JSON"},
        BadIndex{"trailing_text", map_to("a.safetensors") + "x", "more text follows the end"},
        BadIndex{"byte_order_mark", "\xEF\xBB\xBF" + map_to("a.safetensors"), "not valid JSON"},
        BadIndex{"not_utf8", map("\"\xFF\":\"a.safetensors\""), "not valid JSON"},
        BadIndex{"lone_surrogate", map("\"\\ud800\":\"a.safetensors\""), "not valid JSON"},
        BadIndex{"cut", map_to("a.safetensors").substr(0, 25), "not valid JSON"},
        BadIndex{"deep", "{\"x\":" + std::string(100'000, '[') + "}", "DiscoverOptions::nesting_max"},
        BadIndex{"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"},
        BadIndex{"html", "<!doctype html><title>Log in</title>", "HTML page"}),
    [](const testing::TestParamInfo<BadIndex>& row) { return row.param.name; });

std::string message_of(const fakes::MemoryStore& store, const DiscoverOptions& options) {
  try {
    static_cast<void>(discover_in(store, "m", options));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(IndexCap, EachIsNamedInItsError) {
  const fakes::MemoryStore store = folder_with(
      map(R"("a1":"a.safetensors","a2":"a.safetensors","b1":"b.safetensors","shared":"b.safetensors")"));
  EXPECT_EQ(message_of(store, {}), "accepted");
  EXPECT_NE(message_of(store, {.index_bytes_max = 20}).find("DiscoverOptions::index_bytes_max"),
            std::string::npos);
  EXPECT_NE(message_of(store, {.tensor_count_max = 3}).find("DiscoverOptions::tensor_count_max"),
            std::string::npos);
  EXPECT_NE(message_of(store, {.name_bytes_max = 5}).find("DiscoverOptions::name_bytes_max"),
            std::string::npos);
  EXPECT_NE(message_of(store, {.file_count_max = 1}).find("DiscoverOptions::file_count_max"),
            std::string::npos);
}

TEST(IndexStrict, RefusesTensorsOutsideIt) {
  fakes::MemoryStore store = folder_with(map(R"("a1":"a.safetensors")"));
  EXPECT_NE(message_of(store, {.index = IndexPolicy::strict}).find("does not name b.safetensors and 2 more"),
            std::string::npos);
  for (const char* name : {"b", "c", "d"}) store.remove("m/" + std::string(name) + ".safetensors");
  const std::string message = message_of(store, {.index = IndexPolicy::strict});
  EXPECT_NE(message.find("1 tensors are not in m/model.safetensors.index.json, the first is \"a2\""),
            std::string::npos)
      << message;
}

}  // namespace

}  // namespace inrush::engine
