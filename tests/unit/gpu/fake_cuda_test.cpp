// The fake finds the mistakes that it is there to find; else the suites on it would prove little.
#include "fakes/fake_cuda.hpp"

#include "gpu/cuda_driver.hpp"
#include "gpu/cuda_table.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace inrush::fakes {
namespace {

using engine::CuAddress;
using engine::CuContext;
using engine::CuEvent;
using engine::CuResult;
using engine::CuStream;

class FakeCudaMisuseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(table_.primary_ctx_retain(&first_, 0), CuResult::success);
    ASSERT_EQ(table_.primary_ctx_retain(&second_, 1), CuResult::success);
    ASSERT_EQ(table_.ctx_push_current(first_), CuResult::success);
    ASSERT_EQ(table_.mem_alloc(&block_, 4096), CuResult::success);
    ASSERT_EQ(table_.stream_create(&stream_, engine::cu_stream_non_blocking), CuResult::success);
    ASSERT_EQ(table_.event_create(&event_, 0), CuResult::success);
  }
  void TearDown() override {
    table_.stream_destroy(stream_);
    table_.event_destroy(event_);
    table_.mem_free(block_);
    CuContext popped = nullptr;
    table_.ctx_pop_current(&popped);
    table_.primary_ctx_release(0);
    table_.primary_ctx_release(1);
    EXPECT_TRUE(cuda_->live() == FakeCudaLive{});
  }
  void expect_misuse(const std::string& text, std::uint64_t count = 1) {
    EXPECT_EQ(cuda_->misuse_count(), count);
    EXPECT_EQ(std::string(cuda_->last_misuse()).find(text), 0U) << cuda_->last_misuse();
  }
  CuResult copy(CuAddress target, std::size_t bytes, CuStream stream) {
    return table_.memcpy_htod_async(target, source_.data(), bytes, stream);
  }

  FakeCuda cuda_{INRUSH_FAKE_CUDA};
  std::shared_ptr<const engine::CudaDriver> driver_ = engine::CudaDriver::open(INRUSH_FAKE_CUDA);
  const engine::CudaTable& table_ = driver_->table();
  std::vector<std::byte> source_ = std::vector<std::byte>(8192);
  CuContext first_ = nullptr;
  CuContext second_ = nullptr;
  CuAddress block_ = 0;
  CuStream stream_ = nullptr;
  CuEvent event_ = nullptr;
};

TEST_F(FakeCudaMisuseTest, CopyBeyondItsBlock) {
  EXPECT_EQ(copy(block_, 4097, stream_), CuResult::invalid_value);
  EXPECT_EQ(copy(block_ - 1, 1, stream_), CuResult::invalid_value);
  EXPECT_EQ(copy(block_ + 4000, 96, stream_), CuResult::success);
  EXPECT_EQ(table_.stream_synchronize(stream_), CuResult::success);
  expect_misuse("cuMemcpyHtoDAsync: to what is no allocation", 2);
}

TEST_F(FakeCudaMisuseTest, ReadBeyondItsBlock) {
  EXPECT_EQ(table_.memcpy_dtoh(source_.data(), block_ + 1, 4096), CuResult::invalid_value);
  expect_misuse("cuMemcpyDtoH");
}

TEST_F(FakeCudaMisuseTest, CallWithoutContext) {
  std::thread([&] {
    CuAddress address = 0;
    EXPECT_EQ(table_.mem_alloc(&address, 16), CuResult::invalid_context);
  }).join();
  expect_misuse("cuMemAlloc: without a current context");
}

TEST_F(FakeCudaMisuseTest, MemoryOfAnotherDevice) {
  ASSERT_EQ(table_.ctx_push_current(second_), CuResult::success);
  EXPECT_EQ(copy(block_, 16, nullptr), CuResult::invalid_value);
  EXPECT_EQ(copy(block_, 16, stream_), CuResult::invalid_handle);
  CuContext popped = nullptr;
  table_.ctx_pop_current(&popped);
  EXPECT_EQ(popped, second_);
  EXPECT_EQ(cuda_->misuse_count(), 2U);
}

TEST_F(FakeCudaMisuseTest, EventOfAnotherContext) {
  ASSERT_EQ(table_.ctx_push_current(second_), CuResult::success);
  EXPECT_EQ(table_.event_record(event_, nullptr), CuResult::invalid_handle);
  CuContext popped = nullptr;
  table_.ctx_pop_current(&popped);
  expect_misuse("cuEventRecord: no such event or stream of one context");
}

TEST_F(FakeCudaMisuseTest, DoubleFreeAndUseAfterFree) {
  CuAddress other = 0;
  ASSERT_EQ(table_.mem_alloc(&other, 64), CuResult::success);
  EXPECT_EQ(table_.mem_free(other), CuResult::success);
  EXPECT_EQ(table_.mem_free(other), CuResult::invalid_value);
  EXPECT_EQ(copy(other, 16, stream_), CuResult::invalid_value);
  EXPECT_EQ(cuda_->misuse_count(), 2U);
}

TEST_F(FakeCudaMisuseTest, FreeAndUnregisterUnderACopy) {
  CuAddress other = 0;
  ASSERT_EQ(table_.mem_alloc(&other, 64), CuResult::success);
  ASSERT_EQ(table_.mem_host_register(source_.data(), source_.size(), engine::cu_register_portable),
            CuResult::success);
  ASSERT_EQ(copy(other, 64, stream_), CuResult::success);
  EXPECT_EQ(table_.mem_host_unregister(source_.data()), CuResult::success);
  expect_misuse("cuMemHostUnregister: under a copy in flight");
  EXPECT_EQ(table_.mem_free(other), CuResult::success);
  expect_misuse("cuMemFree: under a copy in flight", 2);
  EXPECT_EQ(table_.mem_host_unregister(source_.data()), CuResult::memory_not_registered);
  EXPECT_EQ(cuda_->misuse_count(), 3U);
}

TEST_F(FakeCudaMisuseTest, StreamDestroyedWithWork) {
  CuStream other = nullptr;
  ASSERT_EQ(table_.stream_create(&other, 0), CuResult::success);
  ASSERT_EQ(copy(block_, 64, other), CuResult::success);
  EXPECT_EQ(table_.stream_destroy(other), CuResult::success);
  EXPECT_EQ(table_.stream_destroy(other), CuResult::invalid_handle);
  EXPECT_EQ(cuda_->misuse_count(), 2U);
}

TEST_F(FakeCudaMisuseTest, ContextReleasedBeforeItsMemory) {
  EXPECT_EQ(table_.primary_ctx_release(0), CuResult::success);
  expect_misuse("cuDevicePrimaryCtxRelease: before what lives in it");
  EXPECT_EQ(table_.primary_ctx_release(0), CuResult::invalid_context);
  ASSERT_EQ(table_.primary_ctx_retain(&first_, 0), CuResult::success);
}

TEST_F(FakeCudaMisuseTest, RegistrationsMayNotOverlap) {
  ASSERT_EQ(table_.mem_host_register(source_.data(), 4096, engine::cu_register_portable), CuResult::success);
  EXPECT_EQ(table_.mem_host_register(source_.data() + 4000, 4096, engine::cu_register_portable),
            CuResult::memory_already_registered);
  EXPECT_EQ(table_.mem_host_unregister(source_.data()), CuResult::success);
}

// Whoever looks an entry up gets it as the asked version had it, and nothing that the driver is too old for.
TEST(FakeCudaVersionTest, SymbolsAreThoseOfTheDriversVersion) {
  const FakeCuda cuda(INRUSH_FAKE_CUDA);
  void* const library = ::dlopen(INRUSH_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  using LookUp = CuResult (*)(const char*, void**, int, std::uint64_t, int*);
  const auto look_up = reinterpret_cast<LookUp>(::dlsym(library, "cuGetProcAddress_v2"));
  const auto found = [&](const char* name, int version) {
    void* address = nullptr;
    int status = 0;
    EXPECT_EQ(look_up(name, &address, version, engine::cu_proc_legacy_stream, &status), CuResult::success);
    EXPECT_EQ(status, address != nullptr ? 0 : 1);
    return address;
  };
  const auto symbol = [&](const char* name) { return ::dlsym(library, name); };
  for (const int version : {12000, 12080, 13000}) {
    cuda->set_driver_version(version);
    EXPECT_EQ(found("cuCtxGetDevice", 12000), symbol("cuCtxGetDevice"));
    EXPECT_EQ(found("cuMemAlloc", 12000), symbol("cuMemAlloc_v2"));
    EXPECT_EQ(found("cuMemcpyBatchAsync", 12000), nullptr);
    const bool is_13 = version >= 13000;
    EXPECT_EQ(found("cuCtxGetDevice", 13000), symbol(is_13 ? "cuCtxGetDevice_v2" : "cuCtxGetDevice"));
    const char* batch = is_13 ? "cuMemcpyBatchAsync_v2" : "cuMemcpyBatchAsync";
    EXPECT_EQ(found("cuMemcpyBatchAsync", 13000), version < 12080 ? nullptr : symbol(batch));
  }
  ::dlclose(library);
}

}  // namespace
}  // namespace inrush::fakes
