#include "gpu/cuda_driver.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "gpu/cuda_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::string_view advice = "; use the device \"cpu\"";

Error unfit(const std::string& message) {
  return {ErrorCode::environment_unfit, message + std::string(advice)};
}

void* open_library(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* text = ::dlerror();
  std::string reason = text != nullptr ? text : "no reason given";
  if (reason.starts_with(library + ": ")) reason.erase(0, library.size() + 2);  // said once is enough
  throw unfit(fmt::format("cannot load {}: {}", printable(library), printable(reason)));
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

int driver_version(const CudaTable& table) {
  int version = 0;
  const CuResult result = table.driver_get_version(&version);
  if (result != CuResult::success) throw unfit("cuDriverGetVersion: " + cuda_result_text(table, result));
  return version;
}

int device_count(const CudaTable& table) {
  int count = 0;
  const CuResult result = table.device_get_count(&count);
  if (result != CuResult::success) {
    throw Error(ErrorCode::device_failed, "cuDeviceGetCount: " + cuda_result_text(table, result));
  }
  return count;
}

void check(const CudaTable& table, CuResult result, std::string_view call, int ordinal) {
  if (result == CuResult::success) return;
  throw Error(ErrorCode::device_failed,
              fmt::format("cuda:{}: {}: {}", ordinal, call, cuda_result_text(table, result)));
}

CuDevice device_handle(const CudaTable& table, int ordinal) {
  CuDevice device = 0;
  check(table, table.device_get(&device, ordinal), "cuDeviceGet", ordinal);
  return device;
}

std::string device_model(const CudaTable& table, int ordinal) {
  std::array<char, 256> name{};
  const CuDevice device = device_handle(table, ordinal);
  check(table, table.device_get_name(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName",
        ordinal);
  name.back() = '\0';
  return name.data();
}

// The driver gives 16 bytes without a kind. The name of a MIG instance ends in its profile: "NVIDIA H200 MIG
// 1g.18gb".
std::string device_uuid(const CudaTable& table, int ordinal) {
  CuUuid uuid{};
  check(table, table.device_get_uuid(&uuid, device_handle(table, ordinal)), "cuDeviceGetUuid", ordinal);
  std::string text = device_model(table, ordinal).find(" MIG ") != std::string::npos ? "MIG" : "GPU";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", starts_group ? "-" : "", static_cast<unsigned char>(uuid.bytes.at(i)));
  }
  return text;
}

}  // namespace

std::shared_ptr<const CudaDriver> CudaDriver::open(const std::string& library) {
  auto table = std::make_unique<const CudaTable>(load_cuda_table(open_library(library), library));
  const int version = driver_version(*table);
  if (version < cu_version_floor) {
    throw unfit(fmt::format(
        "{}: driver API {} is too old, {} (driver 525) or newer is needed; install a newer driver",
        printable(library), version_text(version), version_text(cu_version_floor)));
  }
  const CuResult result = table->init(0);
  if (result != CuResult::success) {
    // What the driver says in the child of a process that used it.
    const std::string_view why =
        result == CuResult::not_initialized ? "; CUDA does not survive a fork: start processes by spawn" : "";
    throw unfit(fmt::format("cuInit: {}{}", cuda_result_text(*table, result), why));
  }
  if (device_count(*table) == 0)
    throw unfit("the CUDA driver shows no device (CUDA_VISIBLE_DEVICES may hide it)");
  return std::make_shared<CudaDriver>(std::move(table));
}

CudaDriver::CudaDriver(std::unique_ptr<const CudaTable> table) : table_(std::move(table)) {}
CudaDriver::~CudaDriver() = default;

std::vector<Device> CudaDriver::devices() const {
  std::vector<Device> devices;
  const int count = device_count(*table_);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    devices.push_back({DeviceKind::cuda, static_cast<std::uint32_t>(ordinal), device_uuid(*table_, ordinal)});
  }
  return devices;
}

Device CudaDriver::current_device() const {
  const std::vector<Device> visible = devices();
  if (visible.empty()) throw unfit("the CUDA driver shows no device any more");
  CuDevice current = 0;
  const CuResult result = table_->ctx_get_device(&current);
  if (result == CuResult::invalid_context) return visible.front();  // no context is current
  if (result != CuResult::success) {
    throw Error(ErrorCode::device_failed, "cuCtxGetDevice: " + cuda_result_text(*table_, result));
  }
  // A handle is no ordinal by any promise.
  for (const Device& device : visible) {
    if (device_handle(*table_, static_cast<int>(device.index)) == current) return device;
  }
  throw unfit("the CUDA context of this thread is on a device that the driver does not list");
}

std::string CudaDriver::describe(std::uint32_t index) const {
  const std::string model = device_model(*table_, static_cast<int>(index));
  return fmt::format("{}, driver API {}", model, version_text(driver_version(*table_)));
}

}  // namespace inrush::engine
