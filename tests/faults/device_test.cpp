// Faults of the GPU and its driver: pinned and device memory refused, each call failing at each of its uses,
// copies that fail in flight, a device that is lost, drivers of several versions.
#include "faults/fault_fixture.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace inrush::faults {
namespace {

using engine::CuResult;

// All that the engine calls, by their names without version.
constexpr std::array<const char*, 29> entries = {"cuInit",
                                                 "cuDriverGetVersion",
                                                 "cuDeviceGetCount",
                                                 "cuDeviceGet",
                                                 "cuDeviceGetName",
                                                 "cuDeviceGetUuid",
                                                 "cuMemAlloc",
                                                 "cuMemFree",
                                                 "cuMemGetInfo",
                                                 "cuMemHostRegister",
                                                 "cuMemcpyHtoDAsync",
                                                 "cuMemcpy2DAsync",
                                                 "cuStreamCreate",
                                                 "cuStreamDestroy",
                                                 "cuEventCreate",
                                                 "cuEventDestroy",
                                                 "cuEventRecord",
                                                 "cuEventQuery",
                                                 "cuEventSynchronize",
                                                 "cuStreamSynchronize",
                                                 "cuStreamWaitEvent",
                                                 "cuCtxPushCurrent",
                                                 "cuCtxPopCurrent",
                                                 "cuDevicePrimaryCtxRetain",
                                                 "cuDevicePrimaryCtxRelease",
                                                 "cuMemHostUnregister",
                                                 "cuMemcpyDtoH",
                                                 "cuMemGetAddressRange",
                                                 "cuCtxGetDevice"};

// Polled: how often depends on how fast the copies are.
bool is_polled(std::string_view entry) {
  return entry == "cuEventQuery" || entry == "cuCtxPushCurrent" || entry == "cuCtxPopCurrent";
}

class DeviceMatrixTest : public FaultTest {
 protected:
  DeviceMatrixTest() {
    set_device(DeviceKind::cuda);
    write_model(2, 150 * kib);
    request_.window_bytes_max = 64 * kib;  // several slabs
    for (std::size_t i = 0; i < checkpoint_.tensor_count(); ++i) {
      const TensorInfo tensor = checkpoint_.tensor(i);
      if (tensor.shape.size() == 2 && tensor.shape[0] > 1 && tensor.shape[1] > 1)
        rows_.emplace(std::string(tensor.name), Slice{1, 0, tensor.shape[1] - 1});
    }
  }

  FaultCase make(const std::string& kind) {
    FaultCase tried{.kind = kind, .number = next_number_++, .request = request_};
    tried.expected.codes = {ErrorCode::device_failed, ErrorCode::out_of_memory, ErrorCode::environment_unfit};
    return tried;
  }

  // Two cases, one into memory of ours and one into targets. Returns whether either was met by the fault.
  bool run_both(const std::string& kind, const std::function<void()>& arm) {
    std::uint64_t injected = 0;
    for (int i = 0; i < 2; ++i) {
      FaultCase tried = make(kind);
      tried.arm = arm;
      injected += run(std::move(tried));
    }
    return injected > 0;
  }

  // How often one load of each kind calls the entries, at most.
  std::map<std::string, std::uint64_t> calls_of_a_load() {
    std::map<std::string, std::uint64_t> calls;
    for (const char* entry : entries) calls[entry] = cuda_->entry_count(entry);
    static_cast<void>(count_calls({}, request_));
    for (const char* entry : entries) calls[entry] = cuda_->entry_count(entry) - calls[entry];
    return calls;
  }

  LoadRequest request_;
  std::map<std::string, Slice> rows_;  // slices that take copies by rows
  std::uint64_t next_number_ = 0;
};

// Slots of a whole huge page each, so that no two share one.
TEST_F(DeviceMatrixTest, PinnedMemoryRefusedFromTheNthOn) {
  write_model(2, 6 * 1024 * kib);
  options().piece_bytes_max = 2 * 1024 * kib;
  request_.window_bytes_max = 0;
  const std::uint64_t calls = calls_of_a_load()["cuMemHostRegister"];
  ASSERT_GE(calls, 2U) << "the ring, and the lists of the copy kernel";
  for (const CuResult result : {CuResult::out_of_memory, CuResult::invalid_value}) {
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      run_both("pinned memory refused", [=, this] { cuda_->fail("cuMemHostRegister", nth, result); });
      run_both("pinned memory refused", [=, this] { cuda_->fail_from("cuMemHostRegister", nth, result); });
    }
  }
  for (std::uint64_t bytes = 0; bytes <= 12 * 1024 * kib; bytes += 3 * 1024 * kib)
    run_both("pinned memory limited", [=, this] { cuda_->set_pinned_bytes_max(bytes); });
}

TEST_F(DeviceMatrixTest, DeviceMemoryOutAtEachSlab) {
  const std::uint64_t calls = calls_of_a_load()["cuMemAlloc"];
  ASSERT_GT(calls, 3U);
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    FaultCase tried = make("device memory out");
    tried.number = 2 * nth;  // into memory of ours
    tried.arm = [=, this] { cuda_->fail("cuMemAlloc", nth, CuResult::out_of_memory); };
    tried.expected.may_load = false;
    tried.expected.codes = {ErrorCode::out_of_memory};
    tried.expected.words = {"cuda:1", "CUDA_ERROR_OUT_OF_MEMORY"};
    EXPECT_GT(run(std::move(tried)), 0U);
  }
  for (std::uint64_t bytes = 0; bytes < 300 * kib; bytes += 32 * kib) {
    FaultCase tried = make("device memory out");
    tried.number = 2 * (1000 + bytes / kib);
    tried.request.window_bytes_max = 0;
    tried.arm = [=, this] { cuda_->set_device_bytes(bytes); };
    tried.expected.codes = {ErrorCode::out_of_memory};
    run(std::move(tried));
  }
}

TEST_F(DeviceMatrixTest, EachCallFailsAtEachOfItsUses) {
  const std::map<std::string, std::uint64_t> calls = calls_of_a_load();
  // Called only where something else went wrong, or not by loads.
  const std::set<std::string> unmet = {"cuMemGetInfo", "cuMemGetAddressRange", "cuMemcpyDtoH",
                                       "cuCtxGetDevice", "cuEventSynchronize"};
  for (const char* entry : entries) {
    const std::uint64_t last = std::min<std::uint64_t>(calls.at(entry) + 2, is_polled(entry) ? 15 : 200);
    bool is_met = false;
    for (std::uint64_t nth = 1; nth <= last; ++nth) {
      const CuResult result = nth % 3 == 0   ? CuResult::out_of_memory
                              : nth % 3 == 1 ? CuResult::launch_failed
                                             : CuResult::invalid_value;
      // Slow copies where an event goes wrong: whoever does not wait for them is seen to write too late.
      const std::uint32_t delay = std::string_view(entry).starts_with("cuEvent") ? 1000 : 50;
      const auto arm = [=, this] {
        cuda_->set_delay_max(delay);
        cuda_->fail(entry, nth, result);
      };
      is_met |= run_both("driver call fails", arm);
      FaultCase armed = make("driver call fails until the end");
      armed.number *= 2;  // into memory of ours, in rows
      armed.request.slices = rows_;
      armed.arm = arm;
      armed.stays_armed = true;
      is_met |= run(std::move(armed)) > 0;
    }
    EXPECT_TRUE(is_met || unmet.contains(entry)) << entry;
  }
}

// Copies are under way, and no event can tell any more when they end: nobody may get the memory back, or
// write the next load's bytes into it, before they have.
TEST_F(DeviceMatrixTest, EventsFailFromTheNthOn) {
  const std::map<std::string, std::uint64_t> calls = calls_of_a_load();
  for (const char* entry : {"cuEventRecord", "cuEventQuery", "cuEventCreate"}) {
    for (std::uint64_t nth = 1; nth <= std::min<std::uint64_t>(calls.at(entry), 20); ++nth) {
      run_both("events fail", [=, this] {
        cuda_->set_delay_max(5000);
        cuda_->fail_from(entry, nth, CuResult::launch_failed);
        cuda_->fail_from("cuEventSynchronize", 1, CuResult::launch_failed);
      });
    }
  }
}

TEST_F(DeviceMatrixTest, ACopyFailsInFlight) {
  const std::uint64_t copies = calls_of_a_load()["cuMemcpyHtoDAsync"];
  ASSERT_GT(copies, 3U);
  for (std::uint64_t nth = 1; nth <= copies; ++nth) {
    FaultCase tried = make("copy fails in flight");
    tried.arm = [=, this] { cuda_->fail_copy(nth, CuResult::launch_failed); };
    tried.expected.codes = {ErrorCode::device_failed};
    tried.expected.words = {"cuda:1", "CUDA_ERROR_LAUNCH_FAILED"};
    tried.expected.may_load = false;
    // Slots that wait for each other go together, so most loads have fewer of them.
    const bool was_met = run(std::move(tried)) > 0;
    EXPECT_TRUE(was_met || nth > 3) << nth << " of " << copies;
  }
}

TEST_F(DeviceMatrixTest, TheDeviceIsLost) {
  // All calls from the n-th on fail, those that free too (they free nevertheless, as a process that ends
  // does).
  for (std::uint64_t nth = 1; nth <= 150; ++nth) {
    for (const CuResult result : {CuResult::launch_failed, CuResult{46}}) {  // 46: device unavailable
      FaultCase tried = make("device lost");
      tried.arm = [=, this] { cuda_->fail_from(nullptr, nth, result); };
      run(std::move(tried));
    }
  }
}

class DriverVersionTest : public FaultTest, public testing::WithParamInterface<int> {
 protected:
  DriverVersionTest() {
    set_device(DeviceKind::cuda);
    write_model(1, 100 * kib);
  }
};

TEST_P(DriverVersionTest, LoadsWithItsSymbols) {
  cuda_->set_driver_version(GetParam());
  Loader loader(options());
  EXPECT_EQ(loader.current_device(), loader.devices()[0]) << "by the cuCtxGetDevice of 12.0";
  const auto load = loader.start(checkpoint_, {.device = device_});
  std::size_t count = 0;
  while (const std::optional<Tensor> tensor = load->next()) {
    std::string bytes(tensor->size_bytes, '\0');
    loader.copy_to_host(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, contents_.at(tensor->name));
    ++count;
  }
  EXPECT_EQ(count, contents_.size());
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// Every symbol that we need was there in 12.0; where one is missing all the same, its name is said.
TEST_P(DriverVersionTest, ASymbolThatIsMissingIsNamed) {
  constexpr std::array<const char*, 31> symbols = {"cuInit",
                                                   "cuDriverGetVersion",
                                                   "cuGetErrorName",
                                                   "cuGetErrorString",
                                                   "cuDeviceGetCount",
                                                   "cuDeviceGet",
                                                   "cuDeviceGetName",
                                                   "cuDeviceGetUuid_v2",
                                                   "cuDevicePrimaryCtxRetain",
                                                   "cuDevicePrimaryCtxRelease_v2",
                                                   "cuCtxPushCurrent_v2",
                                                   "cuCtxPopCurrent_v2",
                                                   "cuCtxGetDevice",
                                                   "cuMemAlloc_v2",
                                                   "cuMemFree_v2",
                                                   "cuMemGetInfo_v2",
                                                   "cuMemGetAddressRange_v2",
                                                   "cuMemHostRegister_v2",
                                                   "cuMemHostUnregister",
                                                   "cuMemcpyHtoDAsync_v2",
                                                   "cuMemcpyDtoH_v2",
                                                   "cuMemcpy2DAsync_v2",
                                                   "cuStreamCreate",
                                                   "cuStreamDestroy_v2",
                                                   "cuStreamWaitEvent",
                                                   "cuStreamSynchronize",
                                                   "cuEventCreate",
                                                   "cuEventDestroy_v2",
                                                   "cuEventRecord",
                                                   "cuEventQuery",
                                                   "cuEventSynchronize"};
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    cuda_->set_driver_version(GetParam());
    cuda_->hide_proc_address();
    FaultCase tried{.kind = "symbol missing", .number = 2 * i};
    tried.rules.hidden_symbols = {symbols.at(i)};
    tried.expected = {.may_load = false,
                      .codes = {ErrorCode::environment_unfit},
                      .words = {symbols.at(i), "install a newer driver"}};
    EXPECT_GT(run(std::move(tried)), 0U);
  }
  // Without a look-up by version the plain symbols do.
  FaultCase tried{.kind = "symbol missing", .number = 2 * symbols.size()};
  tried.rules.hidden_symbols = {"cuGetProcAddress_v2"};
  EXPECT_GT(run(std::move(tried)), 0U);
}

INSTANTIATE_TEST_SUITE_P(Versions, DriverVersionTest, testing::Values(12000, 12080, 13000),
                         [](const auto& tested) { return "Driver" + std::to_string(tested.param); });

}  // namespace
}  // namespace inrush::faults
