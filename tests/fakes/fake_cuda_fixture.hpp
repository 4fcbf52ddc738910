// A test on the fake GPUs: whatever it did, nothing is left alive in the driver and no call was a misuse.
#pragma once

#include "fakes/fake_cuda.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace inrush::fakes {

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override { before_ = cuda_->live(); }
  void TearDown() override {
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
    EXPECT_TRUE(cuda_->live() == before_)
        << "the driver still holds " << cuda_->live().contexts << " contexts, " << cuda_->live().allocations
        << " allocations, " << cuda_->live().registrations << " registrations, " << cuda_->live().streams
        << " streams, " << cuda_->live().events << " events, " << cuda_->live().modules << " modules";
    EXPECT_EQ(cuda_->current_context(), nullptr) << "a context stayed current on the thread of the test";
  }

  [[nodiscard]] static std::shared_ptr<const engine::CudaDriver> open_driver() {
    return engine::CudaDriver::open(INRUSH_FAKE_CUDA);
  }
  [[nodiscard]] static std::shared_ptr<engine::Gpu> open_gpu(const char* device = "cuda:0") {
    return engine::open_cuda_gpu(open_driver(), parse_device(device));
  }
  [[nodiscard]] static std::vector<std::byte> read_back(engine::Gpu& gpu, const void* memory,
                                                        std::size_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    gpu.copy_to_host(memory, bytes);
    return bytes;
  }

  FakeCuda cuda_{INRUSH_FAKE_CUDA};

 private:
  FakeCudaLive before_;
};

}  // namespace inrush::fakes
