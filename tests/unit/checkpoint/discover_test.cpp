#include "checkpoint/discover.hpp"

#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace inrush::engine {

namespace {

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) names.emplace_back(checkpoint.tensor(i).name);
  return names;
}

using Names = std::vector<std::string>;

Error error_of(const Store& store, const std::string& path, const DiscoverOptions& options = {}) {
  try {
    static_cast<void>(discover_in(store, path, options));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "accepted"};
}

bool mentions(const Error& error, std::string_view text) {
  return std::string_view(error.what()).find(text) != std::string::npos;
}

bool mentions(std::span<const std::string> notes, std::string_view text) {
  for (const std::string& note : notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

std::string index_text(const std::string& members, const std::string& metadata = "{}") {
  return R"({"metadata":)" + metadata + R"(,"weight_map":{)" + members + "}}";
}

TEST(Checkpoint, DefaultIsEmpty) {
  const Checkpoint checkpoint;
  EXPECT_EQ(checkpoint.tensor_count(), 0U);
  EXPECT_TRUE(checkpoint.files().empty());
  EXPECT_TRUE(checkpoint.notes().empty());
  EXPECT_FALSE(checkpoint.find("a"));
  EXPECT_EQ(checkpoint.path(), "");
}

TEST(Discover, OneFileByName) {
  fakes::MemoryStore store;
  const std::string text =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}})";
  store.set("m/x.safetensors", fakes::safetensors_file(text, 8));
  store.set("m/y.safetensors", "broken, and not looked at");
  const Checkpoint checkpoint = discover_in(store, "m/x.safetensors", {});
  EXPECT_EQ(checkpoint.path(), "m/x.safetensors");
  ASSERT_EQ(checkpoint.files().size(), 1U);
  const CheckpointFile& file = checkpoint.files()[0];
  EXPECT_EQ(file.path, "m/x.safetensors");
  EXPECT_EQ(file.data_offset, 8 + text.size());
  EXPECT_EQ(file.identity.size_bytes, 16 + text.size());
  EXPECT_EQ(file.identity.inode, 1U);
  EXPECT_NE(file.identity.header_hash[0], 0U);
  EXPECT_EQ(file.metadata.at("format"), "pt");
  ASSERT_EQ(checkpoint.find("w"), 0U);
  const TensorInfo tensor = checkpoint.tensor(0);
  EXPECT_EQ(tensor.dtype, DType::f16);
  EXPECT_EQ((std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end())),
            (std::vector<std::uint64_t>{2, 2}));
  EXPECT_EQ(tensor.offset, file.data_offset);
  EXPECT_EQ(checkpoint.size_bytes(), 8U);
}

TEST(Discover, FolderWithoutIndexTakesAllFilesSortedByName) {
  fakes::MemoryStore store;
  store.set("m/part-2.safetensors", fakes::one_byte_tensors(std::array{"a", "z"}));
  store.set("m/part-10.safetensors", fakes::one_byte_tensors(std::array{"y", "x"}));
  store.set("m/sub/other.safetensors", "not looked at");
  store.set("m/._part-2.safetensors", "left by macOS, not looked at");
  store.set("m/config.json", "{}");
  const Checkpoint checkpoint = discover_in(store, "m/", {});
  EXPECT_EQ(names_of(checkpoint), (Names{"y", "x", "a", "z"}));
  EXPECT_EQ(checkpoint.tensor(0).file, 0U);
  EXPECT_EQ(checkpoint.tensor(2).file, 1U);
  EXPECT_EQ(checkpoint.files()[1].path, "m/part-2.safetensors");
  EXPECT_EQ(checkpoint.find("z"), 3U);
  EXPECT_EQ(checkpoint.tensor(3).shape.size(), 1U);
  EXPECT_EQ(checkpoint.size_bytes(), 4U);
}

TEST(Discover, ShapesStayWithTheirTensorsWhenFilesAreJoined) {
  fakes::MemoryStore store;
  for (const std::string name : {"2", "3", "5"}) {
    const std::string text =
        R"({"t)" + name + R"(":{"dtype":"U8","shape":[1,)" + name + R"(],"data_offsets":[0,)" + name + "]}}";
    store.set("m/" + name + ".safetensors", fakes::safetensors_file(text, std::stoul(name)));
  }
  const Checkpoint checkpoint = discover_in(store, "m", {});
  ASSERT_EQ(checkpoint.tensor_count(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    ASSERT_EQ(tensor.shape.size(), 2U);
    EXPECT_EQ(tensor.shape[1], tensor.size_bytes) << tensor.name;
    EXPECT_EQ(tensor.file, i);
  }
}

TEST(Discover, ModelFileComesBeforeTheOthers) {
  fakes::MemoryStore store;
  store.set("m/model.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("m/consolidated.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  const Checkpoint checkpoint = discover_in(store, "m", {});
  EXPECT_EQ(checkpoint.files().size(), 1U);
  EXPECT_TRUE(mentions(checkpoint.notes(), "only model.safetensors was read, 1 other"));
}

TEST(Discover, TheSameTensorInTwoFilesNeedsAnIndex) {
  fakes::MemoryStore store;
  store.set("m/a.safetensors", fakes::one_byte_tensors(std::array{"x", "same"}));
  store.set("m/b.safetensors", fakes::one_byte_tensors(std::array{"same"}));
  const Error error = error_of(store, "m");
  EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint);
  EXPECT_TRUE(mentions(error, "tensor \"same\" is in m/a.safetensors and in m/b.safetensors"))
      << error.what();
}

TEST(Discover, IndexDecides) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a", "old", "stray"}));
  store.set("m/2.safetensors", fakes::one_byte_tensors(std::array{"old", "b"}));
  store.set("m/3.safetensors", "not named by the index, not looked at");
  store.set("m/model.safetensors", "not named by the index, not looked at");
  store.set(
      "m/model.safetensors.index.json",
      index_text(R"("old":"2.safetensors","b":"2.safetensors","a":"1.safetensors")", R"({"total_size":3})"));
  const Checkpoint checkpoint = discover_in(store, "m", {});
  EXPECT_EQ(names_of(checkpoint), (Names{"a", "old", "b"}));
  EXPECT_EQ(checkpoint.tensor(1).file, 1U);
  EXPECT_EQ(checkpoint.find("old"), 1U);
  EXPECT_FALSE(checkpoint.find("stray"));
  EXPECT_EQ(checkpoint.size_bytes(), 3U);
  ASSERT_EQ(checkpoint.notes().size(), 3U);
  EXPECT_TRUE(mentions(checkpoint.notes(), "does not name 3.safetensors and 1 more beside it: left unread"));
  EXPECT_TRUE(mentions(checkpoint.notes(), "m/1.safetensors: 1 tensors are not in"));
  EXPECT_TRUE(mentions(checkpoint.notes(), "assigns to other files, the first is \"old\""));
}

TEST(Discover, StrictIndexAllowsCopiesButNoStrays) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a", "old"}));
  store.set("m/2.safetensors", fakes::one_byte_tensors(std::array{"old"}));
  store.set("m/model.safetensors.index.json", index_text(R"("old":"2.safetensors","a":"1.safetensors")"));
  EXPECT_EQ(discover_in(store, "m", {.index = IndexPolicy::strict}).tensor_count(), 2U);
}

TEST(Discover, WrongTotalSizeIsANote) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  for (const std::string_view metadata :
       {R"({"total_size":7})", R"({"total_size":"1 B"})", R"({"total_size":1.5})", "null", "{}"}) {
    store.set("m/x.safetensors.index.json", index_text(R"("a":"1.safetensors")", std::string(metadata)));
    const Checkpoint checkpoint = discover_in(store, "m", {});
    EXPECT_EQ(mentions(checkpoint.notes(), "total_size is 7, the tensors have 1 bytes"),
              metadata == R"({"total_size":7})")
        << metadata;
  }
}

TEST(Discover, ShardsMayLieInSubFolders) {
  fakes::MemoryStore store;
  store.set("m/parts/1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("m/model.safetensors.index.json", index_text(R"("a":"parts/1.safetensors")"));
  EXPECT_EQ(discover_in(store, "m", {}).files()[0].path, "m/parts/1.safetensors");
}

TEST(Discover, TwoIndexesAreAQuestionForTheUser) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("m/2.safetensors", fakes::one_byte_tensors(std::array{"b"}));
  store.set("m/model.safetensors.index.json", index_text(R"("a":"1.safetensors")"));
  store.set("m/model.fp16.safetensors.index.json", index_text(R"("b":"2.safetensors")"));
  const Error error = error_of(store, "m");
  EXPECT_EQ(error.code(), ErrorCode::invalid_request);
  EXPECT_TRUE(mentions(error, "model.fp16.safetensors.index.json, model.safetensors.index.json"))
      << error.what();
  EXPECT_EQ(names_of(discover_in(store, "m/model.fp16.safetensors.index.json", {})), Names{"b"});
  EXPECT_EQ(discover_in(store, "m", {.index = IndexPolicy::ignore}).tensor_count(), 2U);
}

TEST(Discover, IndexInTheCurrentFolder) {
  fakes::MemoryStore store;
  store.set("1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("model.safetensors.index.json", index_text(R"("a":"1.safetensors")"));
  EXPECT_EQ(discover_in(store, "model.safetensors.index.json", {}).tensor_count(), 1U);
}

TEST(Discover, NeverFallsThroughToPickles) {
  fakes::MemoryStore store;
  store.set("m/pytorch_model.bin", "PK");
  const Error error = error_of(store, "m");
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_TRUE(mentions(error, "pytorch_model.bin, which is never loaded instead")) << error.what();
}

TEST(Discover, CacheEntryIsNoSnapshot) {
  fakes::MemoryStore store;
  store.set("models--a--b/snapshots/123/model.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  EXPECT_TRUE(mentions(error_of(store, "models--a--b"), "name one of its snapshots/<commit> folders"));
}

TEST(Discover, AbsentOddAndForbiddenPaths) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("m/model.safetensors.index.json", index_text(R"("a":"1.safetensors")"));
  store.set_fifo("pipe");
  EXPECT_EQ(error_of(store, "gone").code(), ErrorCode::not_found);
  EXPECT_EQ(error_of(store, "").code(), ErrorCode::invalid_request);
  EXPECT_TRUE(mentions(error_of(store, "pipe"), "not a regular file"));
  store.set_failure("m/1.safetensors", EACCES);
  EXPECT_TRUE(mentions(error_of(store, "m"), "1.safetensors (Permission denied)"));
  store.set_failure("m/1.safetensors", EIO);
  const Error failed = error_of(store, "m");
  EXPECT_EQ(failed.code(), ErrorCode::storage_failed);
  EXPECT_TRUE(mentions(failed, "m/model.safetensors.index.json: m/1.safetensors: open failed"))
      << failed.what();
}

TEST(Discover, ManyShardsAreOpenedOneAtATime) {
  fakes::MemoryStore store;
  std::string members;
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = std::to_string(i);
    store.set("m/" + name + ".safetensors", fakes::one_byte_tensors(std::array{name}));
    members += (i == 0 ? "\"" : ",\"") + name + "\":\"" + name + ".safetensors\"";
  }
  store.set("m/model.safetensors.index.json", index_text(members));
  EXPECT_EQ(discover_in(store, "m", {}).tensor_count(), 10'000U);
  EXPECT_EQ(store.open_files().opened, 10'001U);
  EXPECT_LE(store.open_files().most, 2U);  // a shard, and the index
  EXPECT_EQ(store.open_files().now, 0U);
}

TEST(Discover, TooManyFilesInAFolder) {
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  store.set("m/2.safetensors", fakes::one_byte_tensors(std::array{"b"}));
  EXPECT_TRUE(mentions(error_of(store, "m", {.file_count_max = 1}), "DiscoverOptions::file_count_max"));
}

// A folder of nine files, once with an index and once without.
fakes::MemoryStore nine_files(bool has_index) {
  fakes::MemoryStore store;
  std::string members;
  for (int i = 0; i < 9; ++i) {
    const std::string name = std::to_string(i);
    store.set("m/" + name + ".safetensors", fakes::one_byte_tensors(std::array{name}));
    members += (i == 0 ? "\"" : ",\"") + name + "\":\"" + name + ".safetensors\"";
  }
  if (has_index) store.set("m/model.safetensors.index.json", index_text(members));
  return store;
}

TEST(Discover, InterruptedIsAskedBetweenFiles) {
  for (const bool has_index : {false, true}) {
    const fakes::MemoryStore store = nine_files(has_index);
    std::uint64_t asked_count = 0;
    const auto interrupted = [&] { return ++asked_count, false; };
    EXPECT_EQ(discover_in(store, "m", {.interrupted = interrupted}).tensor_count(), 9U);
    EXPECT_GE(asked_count, 9U);
    const std::uint64_t count = asked_count;
    for (std::uint64_t nth = 1; nth <= count; ++nth) {
      asked_count = 0;
      const auto nth_time = [&] { return ++asked_count == nth; };
      const Error error = error_of(store, "m", {.interrupted = nth_time});
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
      EXPECT_EQ(std::string(error.what()), "m: discovery was cancelled: `interrupted` said so");
      EXPECT_EQ(asked_count, nth) << "it ends there";
    }
  }
}

// Also where it looks like a missing shard, of which the rest would be listed.
TEST(Discover, WhatInterruptedThrowsPassesThrough) {
  for (const bool has_index : {false, true}) {
    const fakes::MemoryStore store = nine_files(has_index);
    for (std::uint64_t nth = 1; nth <= 10; ++nth) {
      std::uint64_t asked_count = 0;
      const auto throwing = [&]() -> bool {
        if (++asked_count == nth) throw Error(ErrorCode::not_found, "of the caller's");
        return false;
      };
      EXPECT_EQ(std::string(error_of(store, "m", {.interrupted = throwing}).what()), "of the caller's");
      EXPECT_EQ(asked_count, nth);
      asked_count = 0;
      const auto foreign = [&]() -> bool { return ++asked_count == nth ? throw 7 : false; };
      EXPECT_THROW(static_cast<void>(discover_in(store, "m", {.interrupted = foreign})), int);
    }
  }
}

TEST(Discover, InterruptedIsAskedInsideALargeHeaderAndALargeIndex) {
  constexpr std::size_t tensor_count = 20'000;
  std::vector<std::string> names;
  std::string members;
  for (std::size_t i = 0; i < tensor_count; ++i) {
    names.push_back(std::to_string(i));
    members += (i == 0 ? "\"" : ",\"") + names.back() + R"(":"1.safetensors")";
  }
  fakes::MemoryStore store;
  store.set("m/1.safetensors", fakes::one_byte_tensors(names));
  std::uint64_t asked_count = 0;
  const auto interrupted = [&] { return ++asked_count, false; };
  static_cast<void>(discover_in(store, "m/1.safetensors", {.interrupted = interrupted}));
  EXPECT_GE(asked_count, tensor_count / 5000);
  const std::uint64_t of_header = std::exchange(asked_count, 0);
  store.set("m/model.safetensors.index.json", index_text(members));
  static_cast<void>(discover_in(store, "m", {.interrupted = interrupted}));
  EXPECT_GE(asked_count, of_header + tensor_count / 5000);
}

// Discovery is a value: what changes on disk afterwards does not reach it, and copies share it.
TEST(Discover, CopiesOutliveTheFirst) {
  fakes::MemoryStore store;
  store.set("a.safetensors", fakes::one_byte_tensors(std::array{"a"}));
  Checkpoint copy;
  {
    const Checkpoint first = discover_in(store, "a.safetensors", {});
    copy = first;
  }
  store.remove("a.safetensors");
  EXPECT_EQ(copy.tensor(0).name, "a");
}

}  // namespace

}  // namespace inrush::engine
