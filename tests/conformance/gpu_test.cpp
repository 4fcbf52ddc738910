// What every Gpu owes its callers. HostGpu and CudaGpu on both fake devices pass the same suite.
#include "gpu/gpu.hpp"

#include "fakes/fake_cuda.hpp"
#include "gpu/cuda_driver.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace inrush::engine {
namespace {

class GpuConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    gpu_.reset();
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
    EXPECT_TRUE(cuda_->live() == fakes::FakeCudaLive{});
  }
  [[nodiscard]] static std::shared_ptr<Gpu> open() {
    const Device device = parse_device(GetParam());
    if (device.kind == DeviceKind::cpu) return open_host_gpu();
    return open_cuda_gpu(CudaDriver::open(INRUSH_CUDA_LIBRARY), device);
  }
  [[nodiscard]] std::vector<std::byte> read_back(const void* source, std::size_t size_bytes) const {
    std::vector<std::byte> bytes(size_bytes);
    gpu_->copy_to_host(source, bytes);
    return bytes;
  }
  [[nodiscard]] static std::vector<std::byte> random_bytes(std::size_t size_bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(size_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  static std::byte* at(const std::shared_ptr<void>& block, std::size_t offset) {
    return static_cast<std::byte*>(block.get()) + offset;
  }

  fakes::FakeCuda cuda_{INRUSH_FAKE_CUDA};
  std::shared_ptr<Gpu> gpu_ = open();
};

TEST_P(GpuConformance, NamesItsDevice) { EXPECT_EQ(device_name(gpu_->device()), GetParam()); }

TEST_P(GpuConformance, MemoryInfoIsPlausible) {
  const DeviceMemoryInfo info = gpu_->memory_info();
  EXPECT_GT(info.total_bytes, 0U);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST_P(GpuConformance, BlocksAreAlignedAndApart) {
  std::vector<std::shared_ptr<void>> blocks;
  for (const std::uint64_t size : {0ULL, 1ULL, 255ULL, 4096ULL, 3ULL << 20}) {
    blocks.push_back(gpu_->allocate(size, 256));
    ASSERT_NE(blocks.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().get()) % 256, 0U);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(gpu_->allocate(100, 1 << 16).get()) % (1 << 16), 0U);
}

TEST_P(GpuConformance, CopiesOfEverySizeArriveAndNoNeighbourIsTouched) {
  const auto stream = gpu_->open_stream();
  const auto block = gpu_->allocate(1 << 16, 256);
  const std::vector<std::byte> blank(1 << 16, std::byte{0x5A});
  for (const std::size_t size : {0U, 1U, 3U, 255U, 4096U, 40001U}) {
    const auto source = random_bytes(size, size);
    const std::array copies = {Copy{.source = blank.data(), .target = block.get(), .row_bytes = blank.size()},
                               Copy{.source = source.data(), .target = at(block, 777), .row_bytes = size}};
    stream->copy(copies);
    stream->wait(stream->record());
    auto expected = blank;
    std::copy(source.begin(), source.end(), expected.begin() + 777);
    EXPECT_EQ(read_back(block.get(), 1 << 16), expected) << size;
  }
}

TEST_P(GpuConformance, RowsArriveAtTheirPitch) {
  const auto stream = gpu_->open_stream();
  const auto block = gpu_->allocate(8192, 256);
  std::vector<std::byte> expected(8192, std::byte{0x5A});
  const auto blank = expected;
  const auto source = random_bytes(4096, 1);
  const std::array copies = {Copy{.source = blank.data(), .target = block.get(), .row_bytes = blank.size()},
                             Copy{source.data() + 5, 100, at(block, 33), 129, 37, 20},
                             Copy{source.data(), 64, at(block, 4096), 64, 64, 10},
                             Copy{source.data(), 0, at(block, 6000), 50, 0, 7},
                             Copy{source.data(), 50, at(block, 6000), 50, 50, 0}};
  stream->copy(copies);
  stream->wait(stream->record());
  for (std::size_t row = 0; row < 20; ++row)
    std::copy_n(&source[5 + row * 100], 37, &expected[33 + row * 129]);
  std::copy_n(source.data(), 640, &expected[4096]);
  EXPECT_EQ(read_back(block.get(), 8192), expected);
}

TEST_P(GpuConformance, LaterCopiesWinOverEarlierOnes) {
  const auto stream = gpu_->open_stream();
  const auto block = gpu_->allocate(4096, 256);
  const auto first = random_bytes(4096, 1);
  const auto second = random_bytes(4096, 2);
  const std::array copies = {Copy{.source = first.data(), .target = block.get(), .row_bytes = 4096},
                             Copy{.source = second.data(), .target = block.get(), .row_bytes = 4096}};
  stream->copy(copies);
  stream->wait(stream->record());
  EXPECT_EQ(read_back(block.get(), 4096), second);
}

TEST_P(GpuConformance, TicketsGrowByOneAndEndReached) {
  const auto stream = gpu_->open_stream();
  EXPECT_EQ(stream->reached(), 0U);
  for (std::uint64_t ticket = 1; ticket <= 10; ++ticket) EXPECT_EQ(stream->record(), ticket);
  while (stream->reached() < 10) std::this_thread::yield();
  stream->wait(10);
  stream->wait(0);
  try {
    stream->wait(11);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
  }
}

TEST_P(GpuConformance, PinnedSourceIsPinnedUntilItsOwnerGoes) {
  auto source = random_bytes(8192, 3);
  std::string refusal;
  auto pinned = gpu_->pin(source, refusal);
  ASSERT_NE(pinned, nullptr) << refusal;
  const auto block = gpu_->allocate(8192, 256);
  const auto stream = gpu_->open_stream();
  const Copy copy{.source = source.data(), .target = block.get(), .row_bytes = 8192};
  stream->copy(std::span(&copy, 1));
  stream->wait(stream->record());
  pinned.reset();
  EXPECT_EQ(read_back(block.get(), 8192), source);
  EXPECT_NE(gpu_->pin(source, refusal), nullptr);
}

TEST_P(GpuConformance, OrderAfterAnIdleStreamHoldsNothingUp) {
  const auto stream = gpu_->open_stream();
  stream->order_after(nullptr);
  stream->wait(stream->record());
  EXPECT_EQ(stream->reached(), 1U);
}

TEST_P(GpuConformance, WhatWasGivenOutOutlivesTheGpu) {
  auto source = random_bytes(4096, 4);
  auto block = gpu_->allocate(4096, 256);
  auto stream = gpu_->open_stream();
  std::string refusal;
  auto pinned = gpu_->pin(source, refusal);
  gpu_.reset();
  const Copy copy{.source = source.data(), .target = block.get(), .row_bytes = 4096};
  stream->copy(std::span(&copy, 1));
  stream->wait(stream->record());
  gpu_ = open();
  EXPECT_EQ(read_back(block.get(), 4096), source);
  std::thread([&] {
    stream.reset();
    pinned.reset();
    block.reset();
  }).join();
}

TEST_P(GpuConformance, ThreadsWithAStreamEachDoNotDisturbOneAnother) {
  std::vector<std::thread> threads;
  for (std::uint64_t number = 0; number < 4; ++number) {
    threads.emplace_back([this, number] {
      const auto block = gpu_->allocate(4096, 256);
      const auto stream = gpu_->open_stream();
      for (std::uint64_t round = 0; round < 10; ++round) {
        const auto source = random_bytes(4096, number * 100 + round);
        const Copy copy{.source = source.data(), .target = block.get(), .row_bytes = 4096};
        stream->copy(std::span(&copy, 1));
        stream->wait(stream->record());
        EXPECT_EQ(read_back(block.get(), 4096), source);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#ifdef INRUSH_REAL_GPU  // tests/gpu runs this file once more, against the driver of the machine
const auto devices = ::testing::Values("cuda:0");
#else
const auto devices = ::testing::Values("cpu", "cuda:0", "cuda:1");
#endif

INSTANTIATE_TEST_SUITE_P(EveryGpu, GpuConformance, devices, [](const auto& test) {
  return test.param == "cpu" ? std::string("Host") : "Cuda" + test.param.substr(5);
});

}  // namespace
}  // namespace inrush::engine
