#include "gpu/gpu.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace inrush::engine {
namespace {

TEST(HostGpu, IsTheCpu) {
  const auto gpu = open_host_gpu();
  EXPECT_EQ(gpu->device(), Device{});
  EXPECT_TRUE(gpu->is_host());
}

TEST(HostGpu, MemoryIsPlainMemoryAtTheAlignmentAskedFor) {
  const auto gpu = open_host_gpu();
  for (const std::uint64_t size : {1ULL, 1000ULL, 2ULL << 20, (4ULL << 20) + 1}) {
    for (const std::uint64_t alignment : {1ULL, 256ULL, 4096ULL, 4ULL << 20}) {
      const auto block = gpu->allocate(size, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % alignment, 0U);
      std::memset(block.get(), 1, size);
    }
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(gpu->allocate(8 << 20, 256).get()) % (2 << 20), 0U);
}

TEST(HostGpu, MoreThanTheAddressSpaceIsOutOfMemory) {
  const auto gpu = open_host_gpu();
  try {
    (void)gpu->allocate(1ULL << 60, 256);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
}

}  // namespace
}  // namespace inrush::engine
