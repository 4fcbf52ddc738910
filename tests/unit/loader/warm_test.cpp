// A checkpoint brought into the page cache.
#include "loader/warm.hpp"

#include "base/unique_fd.hpp"
#include "fakes/temp_folder.hpp"
#include "fakes/test_files.hpp"
#include "storage/local_store.hpp"
#include "storage/residency.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace inrush {
namespace {

constexpr std::uint64_t mib = 1ULL << 20;

class WarmTest : public testing::Test {
 protected:
  // Two files of 20 MiB each whose pages were dropped.
  Checkpoint write() {
    for (const char* name : {"a.safetensors", "b.safetensors"}) {
      const std::string letter(1, name[0]);
      fakes::write_safetensors(
          folder_ / name,
          {{letter + ".first", DType::u8, {12 * mib}}, {letter + ".second", DType::u8, {8, mib}}}, 1);
    }
    const Checkpoint checkpoint = discover(folder_.path());
    for (std::size_t i = 0; i < 2; ++i) drop(checkpoint.files()[i].path);
    return checkpoint;
  }

  static void drop(const std::string& path) {
    const engine::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fdatasync(fd.get()), 0);
    ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  static bool is_resident(const Checkpoint& checkpoint, const std::string& name) {
    const TensorInfo tensor = checkpoint.tensor(checkpoint.find(name).value());
    const engine::UniqueFd fd(::open(checkpoint.files()[tensor.file].path.c_str(), O_RDONLY | O_CLOEXEC));
    return engine::is_range_resident(fd.get(), {tensor.offset, tensor.size_bytes});
  }

  template <typename Call>
  static ErrorCode code_of(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::internal;
  }

  fakes::TempFolder folder_;
  const engine::LocalStore store_;
};

TEST_F(WarmTest, AllIsResidentAfterwardsAndReadOnce) {
  const Checkpoint checkpoint = write();
  ASSERT_FALSE(is_resident(checkpoint, "b.second"));
  const WarmReport first = warm(checkpoint);
  for (const char* name : {"a.first", "a.second", "b.first", "b.second"})
    EXPECT_TRUE(is_resident(checkpoint, name)) << name;
  EXPECT_EQ(first.planned_bytes, checkpoint.size_bytes());
  EXPECT_EQ(first.resident_bytes + first.read_bytes, first.planned_bytes);
  EXPECT_EQ(first.left_bytes, 0U);
  EXPECT_GT(first.read_bytes, 0U);
  const WarmReport second = warm(checkpoint);
  EXPECT_EQ(second.resident_bytes, checkpoint.size_bytes());
  EXPECT_EQ(second.read_bytes, 0U);
}

TEST_F(WarmTest, OnlyWhatTheLoadWouldRead) {
  const Checkpoint checkpoint = write();
  LoadRequest request;
  request.only = {"b.*"};
  request.slices = {{"b.second", {0, 2, 4}}};
  const WarmReport report = warm(checkpoint, request);
  EXPECT_EQ(report.planned_bytes, 16 * mib);
  EXPECT_TRUE(is_resident(checkpoint, "b.first"));
  EXPECT_FALSE(is_resident(checkpoint, "a.first"));
}

TEST_F(WarmTest, ProgressEndsAtThePlan) {
  const Checkpoint checkpoint = write();
  std::vector<std::uint64_t> seen;
  static_cast<void>(warm(checkpoint, {}, [&](const Progress& progress) {
    EXPECT_EQ(progress.planned_bytes, checkpoint.size_bytes());
    seen.push_back(progress.loaded_bytes);
  }));
  ASSERT_GE(seen.size(), 4U) << "two windows of each file";
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), checkpoint.size_bytes());
}

TEST_F(WarmTest, InterruptedItStopsAndKeepsWhatCame) {
  const Checkpoint checkpoint = write();
  LoadRequest request;
  int asked = 0;
  // Four windows are looked at first, then the two of the first file are read.
  request.interrupted = [&] { return ++asked > 6; };
  EXPECT_EQ(code_of([&] { warm(checkpoint, request); }), ErrorCode::cancelled);
  EXPECT_TRUE(is_resident(checkpoint, "a.first"));
  EXPECT_FALSE(is_resident(checkpoint, "b.first"));
}

TEST_F(WarmTest, WhatHasNoRoomIsLeftOut) {
  const Checkpoint checkpoint = write();
  const auto within = [&](std::uint64_t room) {
    return engine::warm_within(checkpoint, {}, {.store = store_, .room_bytes = [room] { return room; }});
  };
  const WarmReport none = within(0);
  EXPECT_EQ(none.read_bytes, 0U);
  EXPECT_EQ(none.left_bytes, checkpoint.size_bytes());
  const WarmReport first = within(17 * mib);  // one window of 16 MiB
  EXPECT_EQ(first.read_bytes, 16 * mib);
  EXPECT_TRUE(is_resident(checkpoint, "a.first"));
  EXPECT_FALSE(is_resident(checkpoint, "b.first"));
  EXPECT_EQ(first.resident_bytes + first.read_bytes + first.left_bytes, checkpoint.size_bytes());
  // The pages that are there look free to the kernel and are not: no more may come.
  const WarmReport second = within(17 * mib);
  EXPECT_GE(second.resident_bytes, 16 * mib);
  EXPECT_EQ(second.read_bytes, 0U);
}

TEST_F(WarmTest, RoomThatOthersTakeMeanwhileIsGone) {
  fakes::write_safetensors(folder_ / "large.safetensors", {{"large", DType::u8, {200, mib}}}, 1);
  const Checkpoint checkpoint = discover(folder_ / "large.safetensors");
  drop(checkpoint.files()[0].path);
  int looks = 0;
  const WarmReport report = engine::warm_within(
      checkpoint, {}, {.store = store_, .room_bytes = [&] { return ++looks == 1 ? 1024 * mib : 0; }});
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(report.read_bytes, 128 * mib);
}

TEST_F(WarmTest, AFileThatChangedOrWentIsNamed) {
  const Checkpoint checkpoint = write();
  std::ofstream(folder_ / "b.safetensors", std::ios::app) << "more";
  try {
    warm(checkpoint);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint);
    EXPECT_NE(std::string(error.what()).find("b.safetensors"), std::string::npos) << error.what();
  }
  std::filesystem::remove(folder_ / "a.safetensors");
  EXPECT_EQ(code_of([&] { warm(checkpoint); }), ErrorCode::not_found);
}

}  // namespace
}  // namespace inrush
