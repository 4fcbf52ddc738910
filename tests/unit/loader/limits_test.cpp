// What the machine gives: reads, page cache, pinned copies. Figures are of this machine, so that only what
// must hold for any of them is asked.
#include "loader/limits.hpp"

#include "fakes/fake_cuda_fixture.hpp"
#include "fakes/memory_store.hpp"
#include "storage/local_store.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

namespace inrush::tests {
namespace {

using namespace std::chrono_literals;
using Files = std::vector<std::shared_ptr<const engine::File>>;

constexpr auto soon = 10ms;

Files memory_files(std::initializer_list<std::uint64_t> sizes) {
  fakes::MemoryStore store;
  Files files;
  for (const std::uint64_t size : sizes) {
    const std::string path = "/m/" + std::to_string(files.size());
    store.set(path, std::string(size, 'x'));
    files.push_back(store.open(path));
  }
  return files;
}

// Where so many reads of that size go: file and offset.
std::vector<std::pair<std::string, std::uint64_t>> places_read(engine::ReadPlaces& places, int count,
                                                               std::uint64_t size) {
  std::vector<std::pair<std::string, std::uint64_t>> read;
  std::vector<std::byte> target(size);
  for (int i = 0; i < count; ++i) {
    engine::ReadRequest request;
    request.target = target;
    places.next(request);
    read.emplace_back(request.file->path(), request.offset);
  }
  return read;
}

TEST(ReadPlaces, AreWholeAndGoOnWhereTheyWere) {
  engine::ReadPlaces places = engine::places_of(memory_files({3 * mib + 1, 100, 2 * mib}));
  EXPECT_TRUE(places.has_room_for(2 * mib));
  EXPECT_FALSE(places.has_room_for(4 * mib));
  using Read = std::vector<std::pair<std::string, std::uint64_t>>;
  EXPECT_EQ(places_read(places, 1, mib), (Read{{"/m/0", 0}}));
  // At a multiple of the new size, which leaves no room for it; the file of 100 bytes has none.
  EXPECT_EQ(places_read(places, 2, 2 * mib), (Read{{"/m/2", 0}, {"/m/0", 0}}));
  EXPECT_EQ(places_read(places, 3, mib), (Read{{"/m/0", 2 * mib}, {"/m/2", 0}, {"/m/2", mib}}));
}

TEST(MeasureReads, CountsWhatMoved) {
  engine::ReadPlaces places = engine::places_of(memory_files({8 * mib}));
  const engine::ReadRate rate =
      engine::measure_reads(places, engine::ReadMode::buffered,
                            {.size_bytes = mib, .depth = 3, .reader_count = 2}, {.duration = soon});
  EXPECT_GT(rate.bytes_per_second, 0);
}

TEST(MeasureReads, AFileThatEndsEarlyIsNamed) {
  fakes::TempFolder folder;
  const std::string path = folder.write("cut", std::string(4 * mib, 'x'));
  const std::shared_ptr<const engine::File> file = engine::LocalStore().open(path);
  engine::ReadPlaces places = engine::places_of({file});
  std::filesystem::resize_file(path, 2 * mib);
  try {
    static_cast<void>(engine::measure_reads(places, engine::ReadMode::buffered,
                                            {.size_bytes = mib, .depth = 1, .reader_count = 1},
                                            {.duration = 1h}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::storage_failed);
    EXPECT_NE(
        std::string(error.what()).find(path + ": read of bytes [2097152, 3145728): the file ends before it"),
        std::string::npos)
        << error.what();
  }
}

TEST(MeasureStorage, WithoutDirectReadsItSaysWhy) {
  const Limit limit =
      engine::measure_storage(memory_files({8 * mib}), IoUring::automatic, {.duration = soon});
  EXPECT_EQ(limit.bytes_per_second, 0);
  EXPECT_TRUE(limit.reason.starts_with("O_DIRECT is refused: ")) << limit.reason;
  EXPECT_EQ(limit.how, "");
}

TEST(MeasureStorage, FilesInMemoryHaveNoStorage) {
  const fakes::TempFolder folder("/dev/shm");
  const std::string path = folder.write("file", std::string(2 * mib, 'x'));
  const Limit limit =
      engine::measure_storage({engine::LocalStore().open(path)}, IoUring::automatic, {.duration = soon});
  EXPECT_EQ(limit.bytes_per_second, 0);
  EXPECT_NE(limit.reason.find("the file system is memory"), std::string::npos) << limit.reason;
}

TEST(MeasurePageCache, SmallFilesAreToldFromNoRoom) {
  const Limit small = engine::measure_page_cache(memory_files({mib - 1}), 2, {.duration = soon});
  EXPECT_EQ(small.bytes_per_second, 0);
  EXPECT_EQ(small.reason, "every file is smaller than 1 MiB");
  const Limit limit = engine::measure_page_cache(memory_files({5 * mib}), 2, {.duration = soon});
  EXPECT_GT(limit.bytes_per_second, 0) << limit.reason;
  EXPECT_TRUE(limit.how.starts_with("5.24 MB of it read into host memory by 2 threads, ")) << limit.how;
}

class PinnedLimitTest : public fakes::FakeCudaTest {};

TEST_F(PinnedLimitTest, CopiesFromPinnedMemory) {
  const std::uint64_t before = cuda_->copy_count();
  const Limit limit = engine::measure_pinned(*open_gpu(), {.duration = soon});
  EXPECT_GT(limit.bytes_per_second, 0) << limit.reason;
  EXPECT_GE(cuda_->copy_count() - before, 3U * 16);
}

TEST_F(PinnedLimitTest, RefusedPinningIsAReason) {
  cuda_->set_pinned_bytes_max(16 * mib);
  const Limit limit = engine::measure_pinned(*open_gpu(), {.duration = soon});
  EXPECT_EQ(limit.bytes_per_second, 0);
  EXPECT_TRUE(limit.reason.starts_with("pinned memory is refused: ")) << limit.reason;
}

TEST_F(PinnedLimitTest, ACopyThatFailsIsAnError) {
  const std::shared_ptr<engine::Gpu> gpu = open_gpu();
  cuda_->fail_copy(20, engine::CuResult::launch_failed);  // in the second round
  EXPECT_THROW(static_cast<void>(engine::measure_pinned(*gpu, {.duration = soon})), Error);
}

class LimitsTest : public LoaderTest {};

TEST_P(LimitsTest, OfACheckpoint) {
  Loader loader(options());
  const Checkpoint checkpoint = write(20 * mib);
  const Limits limits = loader.measure_limits(checkpoint, device(), {.duration = soon});
  EXPECT_EQ(limits.device.kind, GetParam());
  EXPECT_GT(limits.page_cache.bytes_per_second, 0) << limits.page_cache.reason;
  for (const Limit& limit : {limits.storage, limits.page_cache, limits.pinned}) {
    EXPECT_EQ(limit.bytes_per_second > 0, limit.reason.empty()) << limit.reason;
    EXPECT_EQ(limit.bytes_per_second > 0, !limit.how.empty()) << limit.how;
  }
  EXPECT_EQ(limits.pinned.bytes_per_second > 0, GetParam() == DeviceKind::cuda) << limits.pinned.reason;
  // Nothing that a load needs was used up.
  const auto load = loader.start(checkpoint, request());
  expect_equal(loader, take_all(*load));
}

TEST_P(LimitsTest, MeanwhileTheCallerIsAsked) {
  Loader loader(options());
  const Checkpoint checkpoint = write(20 * mib);
  int asked = 0;
  const LimitOptions until_fourth{.duration = 1h, .interrupted = [&] { return ++asked > 3; }};
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.measure_limits(checkpoint, device(), until_fourth)); }),
            ErrorCode::cancelled);
  EXPECT_EQ(asked, 4);
}

TEST_P(LimitsTest, WhatCannotBeMeasuredIsRefused) {
  Loader loader(options());
  const Checkpoint checkpoint = write();
  const auto measure = [&](const Device& target, std::chrono::nanoseconds duration) {
    static_cast<void>(loader.measure_limits(checkpoint, target, {.duration = duration}));
  };
  EXPECT_EQ(code_of([&] { measure(device(), 0s); }), ErrorCode::invalid_request);
  EXPECT_EQ(code_of([&] { measure({.kind = DeviceKind::cuda, .index = 7}, soon); }),
            ErrorCode::environment_unfit);
  std::filesystem::remove(folder_ / "m0.safetensors");
  EXPECT_EQ(code_of([&] { measure(device(), soon); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { static_cast<void>(resident_bytes(checkpoint)); }), ErrorCode::not_found);
}

INSTANTIATE_TEST_SUITE_P(OnEach, LimitsTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& tested) { return tested.param == DeviceKind::cpu ? "cpu" : "cuda"; });

TEST(ResidentBytes, AreThoseOfTensorsInThePageCache) {
  const fakes::TempFolder folder;
  for (const char* name : {"a", "b"})
    fakes::write_safetensors(folder / (std::string(name) + ".safetensors"), {{name, DType::u8, {9 * mib}}},
                             1);
  const Checkpoint checkpoint = discover(folder.path());
  static_cast<void>(warm(checkpoint));
  EXPECT_EQ(resident_bytes(checkpoint), 18 * mib);
  const int fd = ::open(checkpoint.files()[0].path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::fdatasync(fd), 0);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
  EXPECT_EQ(resident_bytes(checkpoint), 9 * mib);
  EXPECT_EQ(resident_bytes({}), 0U);
}

}  // namespace
}  // namespace inrush::tests
