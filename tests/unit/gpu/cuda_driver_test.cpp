#include "gpu/cuda_driver.hpp"

#include "fakes/fake_cuda_fixture.hpp"
#include "gpu/cuda_table.hpp"

#include <inrush/error.hpp>

#include <string>
#include <thread>
#include <vector>

namespace inrush::engine {
namespace {

class CudaDriverTest : public fakes::FakeCudaTest {
 protected:
  static void expect_unfit(const std::string& library, const std::string& text) {
    try {
      (void)CudaDriver::open(library);
      ADD_FAILURE() << "opened " << library;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
      const std::string message = error.what();
      EXPECT_NE(message.find(text), std::string::npos) << message;
      EXPECT_NE(message.find("use the device \"cpu\""), std::string::npos) << message;
    }
  }
};

TEST_F(CudaDriverTest, ShowsEveryDeviceWithItsUuid) {
  const auto driver = open_driver();
  const std::vector<Device> expected = {{DeviceKind::cuda, 0, "GPU-f4ce0000-0011-2233-4455-66778899aabb"},
                                        {DeviceKind::cuda, 1, "MIG-f4ce0001-0011-2233-4455-66778899aabb"}};
  EXPECT_EQ(driver->devices(), expected);
  EXPECT_EQ(driver->describe(0), "Fake H200, driver API 13.0");
  EXPECT_EQ(driver->describe(1), "Fake H200 MIG 1g.18gb, driver API 13.0");
  EXPECT_THROW((void)driver->describe(2), Error);
}

TEST_F(CudaDriverTest, TheCurrentDeviceIsThatOfTheThreadsContext) {
  const auto driver = open_driver();
  const std::vector<Device> devices = driver->devices();
  EXPECT_EQ(driver->current_device(), devices[0]) << "no context is current";
  const CudaTable& table = driver->table();
  for (CuDevice ordinal : {1, 0}) {
    CuContext context = nullptr;
    ASSERT_EQ(table.primary_ctx_retain(&context, ordinal), CuResult::success);
    ASSERT_EQ(table.ctx_push_current(context), CuResult::success);
    EXPECT_EQ(driver->current_device(), devices[static_cast<std::size_t>(ordinal)]);
    EXPECT_EQ(cuda_->current_context(), context);
    std::thread([&] { EXPECT_EQ(driver->current_device(), devices[0]) << "another thread"; }).join();
    CuContext popped = nullptr;
    EXPECT_EQ(table.ctx_pop_current(&popped), CuResult::success);
    EXPECT_EQ(table.primary_ctx_release(ordinal), CuResult::success);
  }
  EXPECT_EQ(cuda_->live().contexts, 0U) << "none was made";
}

TEST_F(CudaDriverTest, NoCurrentDeviceWhereThereIsNone) {
  const auto driver = open_driver();
  const auto code = [&] {
    try {
      (void)driver->current_device();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  cuda_->fail("cuCtxGetDevice", 1, CuResult::deinitialized);
  EXPECT_EQ(code(), ErrorCode::device_failed);
  cuda_->set_device_count(0);
  EXPECT_EQ(code(), ErrorCode::environment_unfit);
}

TEST_F(CudaDriverTest, FindsEntryPointsWithoutAVersionedLookUp) {
  cuda_->hide_proc_address();
  EXPECT_EQ(open_driver()->devices().size(), 2U);
}

TEST_F(CudaDriverTest, AbsentLibrarySaysWhatDlopenSaid) {
  expect_unfit("libcuda-absent.so.1",
               "cannot load libcuda-absent.so.1: cannot open shared object file: No such file");
}

TEST_F(CudaDriverTest, LibraryThatIsNoDriverSaysWhatItLacks) {
  expect_unfit("libm.so.6", "libm.so.6 has no cuInit");
}

TEST_F(CudaDriverTest, OldDriverSaysWhichIsNeeded) {
  cuda_->set_driver_version(11080);
  expect_unfit(INRUSH_FAKE_CUDA, "driver API 11.8 is too old, 12.0 (driver 525) or newer is needed");
}

TEST_F(CudaDriverTest, MachineWithoutDeviceSaysSo) {
  cuda_->fail("cuInit", 1, CuResult::no_device);
  expect_unfit(INRUSH_FAKE_CUDA, "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
  cuda_->fail("cuInit", 1, CuResult::not_initialized);
  expect_unfit(INRUSH_FAKE_CUDA, "CUDA does not survive a fork: start processes by spawn");
  cuda_->set_device_count(0);
  expect_unfit(INRUSH_FAKE_CUDA, "shows no device");
}

TEST_F(CudaDriverTest, FailedVersionQueryIsReported) {
  cuda_->fail("cuDriverGetVersion", 1, CuResult{999});
  expect_unfit(INRUSH_FAKE_CUDA, "cuDriverGetVersion: CUDA error 999");
}

TEST_F(CudaDriverTest, FailedDeviceQueriesNameTheDeviceAndTheCall) {
  const auto driver = open_driver();
  for (const char* entry : {"cuDeviceGet", "cuDeviceGetUuid", "cuDeviceGetName"}) {
    cuda_->fail(entry, 2, CuResult::invalid_device);
    try {
      (void)driver->devices();
      ADD_FAILURE() << entry;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failed);
      const std::string message = error.what();
      EXPECT_NE(message.find(std::string(entry) + ": CUDA_ERROR_INVALID_DEVICE (invalid device ordinal)"),
                std::string::npos);
      EXPECT_EQ(message.find("cuda:"), 0U) << message;
    }
  }
  cuda_->fail("cuDeviceGetCount", 1, CuResult::not_initialized);
  EXPECT_THROW((void)driver->devices(), Error);
}

}  // namespace
}  // namespace inrush::engine
