// When many small copies go by the kernel, and what happens where it cannot be had. That the kernel itself is
// right only a GPU shows: tests/gpu/real_gpu_test.cpp.
#include "gpu/copy_kernel.hpp"
#include "base/host_pages.hpp"
#include "fakes/fake_cuda_fixture.hpp"
#include "gpu/gpu.hpp"

#include <inrush/error.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <thread>

namespace inrush::engine {
namespace {

constexpr std::uint64_t mib = 1ULL << 20;

class CopyKernelTest : public fakes::FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    gpu_ = open_gpu();
    source_.emplace(4 * mib);
    target_ = gpu_->allocate(8 * mib, 256);
    std::mt19937_64 random(1);
    for (std::uint64_t i = 0; i < source_->bytes().size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(source_->bytes().data() + i, &word, sizeof word);
    }
    expected_ = read_back(*gpu_, target_.get(), 8 * mib);
    pin();
    stream_ = gpu_->open_stream();
    await_kernel();
  }
  void TearDown() override {
    stream_ = nullptr;
    pin_ = nullptr;
    target_ = nullptr;
    gpu_ = nullptr;
    FakeCudaTest::TearDown();
  }

  void pin() {
    std::string refusal;
    pin_ = gpu_->pin(source_->bytes(), refusal);
  }

  // It is made on a thread, asked for by the first copies that would take it.
  void await_kernel() {
    std::vector<Copy> nothing(4,
                              {.source = source_->bytes().data(), .target = target_.get(), .row_bytes = 0});
    while (stream_->kernel_refusal().empty() && stream_->copy(nothing) > 0) std::this_thread::yield();
  }

  // Runs of that size, one behind the other, to places twice as far apart.
  std::vector<Copy> runs_of(std::uint64_t size_bytes, std::size_t count) {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < count; ++i) add(copies, i * size_bytes, i * 2 * size_bytes, size_bytes);
    return copies;
  }
  void add(std::vector<Copy>& copies, std::uint64_t from, std::uint64_t to, std::uint64_t size_bytes) {
    copies.push_back({.source = source_->bytes().data() + from,
                      .target = static_cast<std::byte*>(target_.get()) + to,
                      .row_bytes = size_bytes});
    std::memcpy(expected_.data() + to, source_->bytes().data() + from, size_bytes);
  }

  std::uint64_t copy(std::span<const Copy> copies) {
    const std::uint64_t launches = cuda_->entry_count("cuLaunchKernel");
    const std::uint64_t count = stream_->copy(copies);
    launch_count_ = cuda_->entry_count("cuLaunchKernel") - launches;
    stream_->wait(stream_->record());
    EXPECT_TRUE(read_back(*gpu_, target_.get(), expected_.size()) == expected_) << "wrong bytes";
    return count;
  }

  std::shared_ptr<Gpu> gpu_;
  std::optional<HostPages> source_;
  std::shared_ptr<void> pin_;
  std::shared_ptr<void> target_;
  std::unique_ptr<CopyStream> stream_;
  std::vector<std::byte> expected_;
  std::uint64_t launch_count_ = 0;
};

TEST_F(CopyKernelTest, ManySmallRunsAreACopyAndAKernel) {
  EXPECT_EQ(copy(runs_of(1000, 1000)), 2U);
  EXPECT_EQ(launch_count_, 1U);
  EXPECT_EQ(stream_->kernel_refusal(), "");
  EXPECT_EQ(stream_->stage_refusal(), "");
}

TEST_F(CopyKernelTest, FewBytesAreReadByTheKernelItself) {
  EXPECT_EQ(copy(runs_of(1000, 200)), 1U);
  EXPECT_EQ(launch_count_, 1U);
}

TEST_F(CopyKernelTest, SoAreRunsWithOtherBytesBetweenThem) {
  std::vector<Copy> copies;
  for (std::uint64_t i = 0; i < 1000; ++i) add(copies, i * 2000, i * 1500, 1000);
  EXPECT_EQ(copy(copies), 1U);
  EXPECT_EQ(launch_count_, 1U);
}

// The stage has three buffers of 8 MiB.
TEST_F(CopyKernelTest, SpansLargerThanTheStageComeInParts) {
  pin_ = nullptr;
  source_.emplace(52 * mib);
  target_ = gpu_->allocate(104 * mib, 256);
  for (std::uint64_t i = 0; i < source_->bytes().size(); ++i)
    source_->bytes()[i] = static_cast<std::byte>(i * 2654435761U >> 11U);
  pin();
  expected_ = read_back(*gpu_, target_.get(), 104 * mib);
  std::vector<Copy> copies = runs_of(65'537, 800);
  std::shuffle(copies.begin(), copies.end(), std::mt19937(1));
  EXPECT_GE(copy(copies), 14U);
  EXPECT_GE(launch_count_, 7U);
}

TEST_F(CopyKernelTest, TheStageTakesNoMemoryThatALoadNeeds) {
  stream_ = gpu_->open_stream();
  stream_->use_kernel(KernelUse::staged, gpu_->memory_info().free_bytes - 20 * mib);
  await_kernel();
  EXPECT_EQ(copy(runs_of(1000, 1000)), 1U);
  EXPECT_NE(stream_->stage_refusal().find("free"), std::string::npos) << stream_->stage_refusal();
}

TEST_F(CopyKernelTest, ALoadMayDoWithoutAStage) {
  stream_->use_kernel(KernelUse::alone, 0);
  EXPECT_EQ(copy(runs_of(1000, 1000)), 1U);
  EXPECT_EQ(launch_count_, 1U);
  EXPECT_EQ(stream_->stage_refusal(), "");
  stream_->use_kernel(KernelUse::staged, 0);
  EXPECT_EQ(copy(runs_of(1000, 1000)), 2U) << "the next one has it";
}

TEST_F(CopyKernelTest, WithoutAStageTheKernelReadsHostMemory) {
  for (const char* entry : {"cuMemGetInfo", "cuMemAlloc", "cuStreamCreate"}) {
    SCOPED_TRACE(entry);
    stream_ = gpu_->open_stream();
    await_kernel();
    cuda_->fail(entry, 1, CuResult::out_of_memory);
    EXPECT_EQ(copy(runs_of(1000, 1000)), 1U);
    EXPECT_NE(stream_->stage_refusal().find(entry), std::string::npos) << stream_->stage_refusal();
    EXPECT_EQ(stream_->kernel_refusal(), "");
  }
}

TEST_F(CopyKernelTest, FewRunsAndLargeOnesAreCopies) {
  EXPECT_EQ(copy(runs_of(1000, 3)), 3U);
  EXPECT_EQ(copy(runs_of(mib, 4)), 4U);
  EXPECT_EQ(launch_count_, 0U);
}

TEST_F(CopyKernelTest, TheLargeOnesAmongSmallOnesAreCopies) {
  std::vector<Copy> copies = runs_of(4, 100);
  add(copies, 1000, 2 * mib, mib + 1);
  EXPECT_EQ(copy(copies), 2U);
  EXPECT_EQ(launch_count_, 1U);
}

TEST_F(CopyKernelTest, MoreRunsThanAllListsHold) {
  const std::size_t count = 20'000;  // eight lists of 2,048
  EXPECT_EQ(copy(runs_of(64, count)), 1 + (count + 2047) / 2048) << "and what brings them";
}

TEST_F(CopyKernelTest, ListsAreUsedAgainWithoutHarm) {
  for (int i = 0; i < 50; ++i) EXPECT_EQ(copy(runs_of(static_cast<std::uint64_t>(1 + i * 7), 200)), 1U);
}

TEST_F(CopyKernelTest, RunsWithoutBytesAreNothing) {
  std::vector<Copy> copies = runs_of(0, 10);
  EXPECT_EQ(copy(copies), 0U);
}

TEST_F(CopyKernelTest, RunsOfRowsThatFollowEachOtherCount) {
  std::vector<Copy> copies = runs_of(800, 8);
  for (Copy& copy : copies) {
    copy.row_bytes = 100;
    copy.row_count = 8;
    copy.source_pitch_bytes = 100;
    copy.target_pitch_bytes = 100;
  }
  EXPECT_EQ(copy(copies), 1U);
}

TEST_F(CopyKernelTest, FromTheDevicesOwnMemory) {
  const auto ring = gpu_->allocate(mib, 256);
  const Copy fill{.source = source_->bytes().data(), .target = ring.get(), .row_bytes = mib};
  stream_->copy({&fill, 1});
  std::vector<Copy> copies = runs_of(500, 500);
  for (Copy& copy : copies) {
    copy.source = static_cast<std::byte*>(ring.get()) + (copy.source - source_->bytes().data());
    copy.from = CopySource::device;
  }
  EXPECT_EQ(copy(copies), 1U);
}

TEST_F(CopyKernelTest, MemoryThatIsNotPinnedGoesByCopies) {
  pin_ = nullptr;
  EXPECT_EQ(copy(runs_of(1000, 100)), 100U);
  EXPECT_EQ(launch_count_, 0U);
  EXPECT_EQ(stream_->kernel_refusal(), "");
}

TEST_F(CopyKernelTest, CopiesDoUntilItIsThere) {
  stream_ = gpu_->open_stream();
  std::uint64_t count = copy(runs_of(1000, 100));
  EXPECT_TRUE(count == 100 || count == 1) << count;
  for (int i = 0; i < 10'000 && count != 1; ++i) count = copy(runs_of(1000, 100));
  EXPECT_EQ(count, 1U);
}

TEST_F(CopyKernelTest, CopiesDoWhereItIsNotAllowed) {
  stream_->use_kernel(KernelUse::forbidden, 0);
  EXPECT_EQ(copy(runs_of(1000, 100)), 100U);
  stream_->use_kernel(KernelUse::staged, 0);
  EXPECT_EQ(copy(runs_of(1000, 100)), 1U);
}

TEST_F(CopyKernelTest, WhatTheDriverRefusesIsSaidAndDoneByCopies) {
  for (const char* entry :
       {"cuModuleLoadData", "cuModuleGetFunction", "cuMemHostRegister", "cuEventCreate"}) {
    SCOPED_TRACE(entry);
    stream_ = gpu_->open_stream();
    cuda_->fail(entry, 1, CuResult::invalid_value);
    await_kernel();
    EXPECT_EQ(copy(runs_of(1000, 100)), 100U);
    EXPECT_NE(stream_->kernel_refusal().find(entry), std::string::npos) << stream_->kernel_refusal();
    EXPECT_EQ(copy(runs_of(1000, 50)), 50U) << "it is not asked again";
  }
}

TEST_F(CopyKernelTest, AKernelThatFailsEndsTheLoad) {
  EXPECT_EQ(copy(runs_of(1000, 100)), 1U);
  cuda_->fail("cuLaunchKernel", 1, CuResult::launch_failed);
  EXPECT_THROW(stream_->copy(runs_of(1000, 100)), Error);
  cuda_->fail_copy(1, CuResult::launch_failed);
  stream_->copy(runs_of(1000, 100));
  EXPECT_THROW(stream_->wait(stream_->record()), Error);
}

}  // namespace
}  // namespace inrush::engine
