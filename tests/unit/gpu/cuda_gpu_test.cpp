#include "fakes/fake_cuda_fixture.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/cuda_table.hpp"
#include "gpu/gpu.hpp"

#include <inrush/error.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

namespace inrush::engine {
namespace {

class CudaGpuTest : public fakes::FakeCudaTest {
 protected:
  static Error error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::internal, ""};
  }
  static void expect_in(const std::string& text, const std::string& message) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
};

TEST_F(CudaGpuTest, OpensDevicesByIndexAndByUuid) {
  EXPECT_EQ(open_gpu("cuda:1")->device(), (Device{DeviceKind::cuda, 1, ""}));
  EXPECT_EQ(open_gpu("GPU-F4CE0000")->device(),
            (Device{DeviceKind::cuda, 0, "GPU-f4ce0000-0011-2233-4455-66778899aabb"}));
  EXPECT_EQ(open_gpu("MIG-f4ce")->device().index, 1U);
}

TEST_F(CudaGpuTest, AbsentDeviceListsWhatThereIs) {
  for (const char* absent : {"cuda:2", "GPU-f4ce0001", "MIG-f4ce0000"}) {
    const Error error = error_of([&] { (void)open_gpu(absent); });
    EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
    expect_in(std::string(absent) + ": there is no such device; this process sees cuda:0 (GPU-f4ce0000-",
              error.what());
    expect_in("cuda:1 (MIG-f4ce0001-", error.what());
  }
}

TEST_F(CudaGpuTest, BothDevicesKeepTheirMemoryApart) {
  const auto driver = open_driver();
  const auto first = open_cuda_gpu(driver, parse_device("0"));
  const auto second = open_cuda_gpu(driver, parse_device("1"));
  const auto block = first->allocate(4096, 256);
  EXPECT_EQ(first->memory_info().free_bytes, first->memory_info().total_bytes - 4096);
  EXPECT_EQ(second->memory_info().free_bytes, second->memory_info().total_bytes);
  EXPECT_EQ(cuda_->live().contexts, 2U);
}

TEST_F(CudaGpuTest, OutOfMemorySaysWantedFreeAndTotal) {
  cuda_->set_device_bytes(10'000'000);
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4'000'000, 256);
  const Error error = error_of([&] { (void)gpu->allocate(7'000'000, 256); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  expect_in(
      "cuda:0: cuMemAlloc of 7.00 MB: CUDA_ERROR_OUT_OF_MEMORY (out of memory); 6.00 MB of 10.0 MB are free: "
      "load less",
      error.what());
  EXPECT_EQ(error_of([&] { (void)gpu->allocate(UINT64_MAX, 4096); }).code(), ErrorCode::out_of_memory);
  EXPECT_NE(gpu->allocate(6'000'000, 256), nullptr);
}

TEST_F(CudaGpuTest, OutOfMemoryForTheContextIsOutOfMemory) {
  cuda_->fail("cuDevicePrimaryCtxRetain", 1, CuResult::out_of_memory);
  const Error error = error_of([&] { (void)open_gpu(); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  expect_in("no room for a context", error.what());
}

TEST_F(CudaGpuTest, RefusedPinningSpeaksOfHostMemory) {
  const auto gpu = open_gpu();
  std::vector<std::byte> memory(8192);
  cuda_->set_pinned_bytes_max(4096);
  std::string refusal;
  EXPECT_EQ(gpu->pin(memory, refusal), nullptr);
  expect_in("cuda:0: cuMemHostRegister of 8.19 kB of HOST memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
            refusal);
  expect_in("pinned host memory is short, not the device's", refusal);
  refusal.clear();
  const auto pinned = gpu->pin(std::span(memory).first(4096), refusal);
  EXPECT_EQ(refusal, "");
  EXPECT_EQ(cuda_->live().registered_bytes, 4096U);
  EXPECT_EQ(gpu->pin(std::span(memory).first(4096), refusal), nullptr);
  expect_in("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", refusal);
  EXPECT_EQ(refusal.find("short"), std::string::npos) << refusal;
}

TEST_F(CudaGpuTest, MemoryOutlivesEverythingAndMayBeDroppedOnAnotherThread) {
  std::shared_ptr<void> block;
  std::shared_ptr<void> pinned;
  std::vector<std::byte> memory(4096);
  {
    const auto gpu = open_gpu("cuda:1");
    std::string refusal;
    block = gpu->allocate(4096, 256);
    pinned = gpu->pin(memory, refusal);
  }
  EXPECT_EQ(cuda_->live().contexts, 1U);
  std::thread([&] {
    block.reset();
    pinned.reset();
  }).join();
  EXPECT_EQ(cuda_->live().contexts, 0U);
}

TEST_F(CudaGpuTest, CallsWorkOnFreshThreads) {
  const auto gpu = open_gpu("cuda:1");
  std::thread([&] {
    const auto block = gpu->allocate(256, 256);
    EXPECT_EQ(read_back(*gpu, block.get(), 256).front(), std::byte{0xA5});
    EXPECT_EQ(gpu->open_stream()->record(), 1U);
    EXPECT_EQ(cuda_->current_context(), nullptr);
  }).join();
}

TEST_F(CudaGpuTest, ContextOfTheCallerIsCurrentAgain) {
  const auto driver = open_driver();
  const CudaTable& table = driver->table();
  const auto gpu = open_cuda_gpu(driver, parse_device("1"));
  CuContext others = nullptr;
  ASSERT_EQ(table.primary_ctx_retain(&others, 0), CuResult::success);
  ASSERT_EQ(table.ctx_push_current(others), CuResult::success);
  {
    const auto block = gpu->allocate(4096, 256);
    const auto stream = gpu->open_stream();
    EXPECT_EQ(cuda_->current_context(), others);
    cuda_->fail("cuMemAlloc", 1, CuResult::launch_failed);
    EXPECT_THROW((void)gpu->allocate(4096, 256), Error);
    EXPECT_EQ(cuda_->current_context(), others);
  }
  EXPECT_EQ(cuda_->current_context(), others);
  CuContext popped = nullptr;
  EXPECT_EQ(table.ctx_pop_current(&popped), CuResult::success);
  EXPECT_EQ(table.primary_ctx_release(0), CuResult::success);
}

// What the child may do: be told to use spawn, and drop what it inherited without one call into the driver.
int child_of_a_fork(Gpu& gpu, const fakes::FakeCuda& cuda, const std::function<void()>& drop) {
  ::alarm(30);
  const std::uint64_t calls = cuda->call_count();
  try {
    (void)gpu.allocate(256, 256);
    return 2;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_request || std::strstr(error.what(), "spawn") == nullptr) return 3;
  }
  drop();
  return cuda->call_count() == calls ? 0 : 4;
}

TEST_F(CudaGpuTest, ForkedChildTouchesNoCuda) {
  auto gpu = open_gpu();
  auto block = gpu->allocate(4096, 256);
  auto stream = gpu->open_stream();
  std::vector<std::byte> memory(4096);
  std::string refusal;
  auto pinned = gpu->pin(memory, refusal);
  const auto drop = [&] {
    stream.reset();
    block.reset();
    pinned.reset();
    gpu.reset();
  };
  // The stream's thread is up and idle: one that is about to start may hold a lock of the sanitizer's.
  stream->copy(std::vector<Copy>{{.source = memory.data() + 1, .target = block.get(), .row_bytes = 1}});
  stream->wait(stream->record());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(child_of_a_fork(*gpu, cuda_, drop));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_back(*gpu, block.get(), 2).back(), std::byte{0xA5});
}

TEST_F(CudaGpuTest, ShutDownOfTheDriverIsNoFailure) {
  {
    const auto gpu = open_gpu();
    const auto block = gpu->allocate(4096, 256);
    const auto stream = gpu->open_stream();
    for (const char* entry : {"cuMemFree", "cuStreamSynchronize", "cuStreamDestroy", "cuEventDestroy",
                              "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"}) {
      cuda_->fail_from(entry, 1, CuResult::deinitialized);
    }
  }
  EXPECT_EQ(cuda_->live().contexts, 0U);
}

// Everything that a load does with a device, once.
void use_everything(const std::shared_ptr<Gpu>& gpu, std::vector<std::byte>& memory) {
  const auto block = gpu->allocate(4096, 256);
  std::string refusal;
  const auto pinned = gpu->pin(memory, refusal);
  if (pinned == nullptr) throw Error(ErrorCode::device_failed, refusal);
  const auto stream = gpu->open_stream();
  stream->order_after(nullptr);
  const std::vector<Copy> copies = {
      {.source = memory.data(), .target = block.get(), .row_bytes = 100},
      {memory.data(), 64, static_cast<std::byte*>(block.get()) + 1024, 128, 32, 4}};
  stream->copy(copies);
  stream->wait(stream->record());
  stream->copy(copies);
  const std::uint64_t ticket = stream->record();
  while (stream->reached() < ticket) std::this_thread::yield();
  (void)gpu->memory_info();
  gpu->copy_to_host(block.get(), std::span(memory).first(100));
}

struct FailingEntry {
  const char* entry;
  std::uint64_t nth;  // the call of use_everything() that fails
};

class CudaFaultTest : public CudaGpuTest, public ::testing::WithParamInterface<FailingEntry> {};

TEST_P(CudaFaultTest, BecomesOneErrorAndLeavesNothing) {
  std::vector<std::byte> memory(4096);
  auto gpu = open_gpu();
  cuda_->fail(GetParam().entry, GetParam().nth, CuResult::launch_failed);
  const Error error = error_of([&] { use_everything(gpu, memory); });
  EXPECT_EQ(error.code(), ErrorCode::device_failed);
  EXPECT_EQ(std::string(error.what()).find(std::string("cuda:0: ") + GetParam().entry), 0U) << error.what();
  expect_in("CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)", error.what());
  use_everything(gpu, memory);
}

INSTANTIATE_TEST_SUITE_P(
    EachCall, CudaFaultTest,
    ::testing::Values(FailingEntry{"cuCtxPushCurrent", 1}, FailingEntry{"cuCtxPushCurrent", 3},
                      FailingEntry{"cuCtxPushCurrent", 6}, FailingEntry{"cuMemAlloc", 1},
                      FailingEntry{"cuMemHostRegister", 1}, FailingEntry{"cuStreamCreate", 1},
                      FailingEntry{"cuEventCreate", 1}, FailingEntry{"cuEventCreate", 2},
                      FailingEntry{"cuEventRecord", 1}, FailingEntry{"cuEventRecord", 2},
                      FailingEntry{"cuStreamWaitEvent", 1}, FailingEntry{"cuMemcpyHtoDAsync", 1},
                      FailingEntry{"cuMemcpy2DAsync", 2}, FailingEntry{"cuEventSynchronize", 1},
                      FailingEntry{"cuEventQuery", 1}, FailingEntry{"cuMemGetInfo", 1},
                      FailingEntry{"cuMemcpyDtoH", 1}),
    [](const auto& test) { return std::string(test.param.entry) + "_" + std::to_string(test.param.nth); });

TEST_F(CudaGpuTest, LostDeviceEndsWhateverRunsAndLeavesNothing) {
  std::vector<std::byte> memory(4096);
  bool survived = false;
  for (std::uint64_t nth = 1; !survived; ++nth) {
    ASSERT_LT(nth, 200U);
    const auto gpu = open_gpu();
    cuda_->fail_from(nullptr, nth, CuResult{999});
    try {
      use_everything(gpu, memory);
      survived = true;  // lost only after the last call
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failed);
      expect_in("CUDA error 999", error.what());
    }
    cuda_->reset();
  }
}

TEST_F(CudaGpuTest, AlignmentBeyondTheDriversOwnIsKept) {
  const auto gpu = open_gpu();
  for (const std::uint64_t alignment : {256, 512, 4096, 65536}) {
    const auto block = gpu->allocate(1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % alignment, 0U);
    EXPECT_EQ(read_back(*gpu, block.get(), 1000).back(), std::byte{0xA5});
  }
  EXPECT_NE(gpu->allocate(0, 256), nullptr);
}

}  // namespace
}  // namespace inrush::engine
