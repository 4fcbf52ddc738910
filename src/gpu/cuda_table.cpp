#include "gpu/cuda_table.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace inrush::engine {

namespace {

// Finds entry points in one library. cuGetProcAddress_v2 (every driver since 12.0) gives the version of an
// entry that cu_version_floor had, which keeps our declarations right under a newer driver. Where it refuses
// or is absent, dlsym takes the versioned symbol: enough to ask an old driver how old it is.
class EntryPoints {
 public:
  EntryPoints(void* library, const std::string& name)
      : library_(library),
        name_(name),
        look_up_(reinterpret_cast<LookUp>(::dlsym(library, "cuGetProcAddress_v2"))) {}

  template <typename Function>
  void find(Function& entry, const char* name, const char* symbol) const {
    void* address = by_version(name);
    if (address == nullptr) address = ::dlsym(library_, symbol);
    if (address == nullptr) {
      throw Error(
          ErrorCode::environment_unfit,
          fmt::format("{} has no {}: it is no CUDA driver, or one before 525; install a newer driver or use "
                      "the device \"cpu\"",
                      printable(name_), symbol));
    }
    entry = reinterpret_cast<Function>(address);
  }

 private:
  using LookUp = CuResult (*)(const char*, void**, int, std::uint64_t, int*);

  [[nodiscard]] void* by_version(const char* name) const {
    if (look_up_ == nullptr) return nullptr;
    void* address = nullptr;
    int status = 0;
    const CuResult result = look_up_(name, &address, cu_version_floor, cu_proc_legacy_stream, &status);
    return result == CuResult::success ? address : nullptr;
  }

  void* library_;
  const std::string& name_;
  LookUp look_up_;
};

}  // namespace

CudaTable load_cuda_table(void* library, const std::string& name) {
  const EntryPoints entries(library, name);
  CudaTable table{};
  entries.find(table.init, "cuInit", "cuInit");
  entries.find(table.driver_get_version, "cuDriverGetVersion", "cuDriverGetVersion");
  entries.find(table.get_error_name, "cuGetErrorName", "cuGetErrorName");
  entries.find(table.get_error_string, "cuGetErrorString", "cuGetErrorString");
  entries.find(table.device_get_count, "cuDeviceGetCount", "cuDeviceGetCount");
  entries.find(table.device_get, "cuDeviceGet", "cuDeviceGet");
  entries.find(table.device_get_name, "cuDeviceGetName", "cuDeviceGetName");
  entries.find(table.device_get_uuid, "cuDeviceGetUuid", "cuDeviceGetUuid_v2");
  entries.find(table.primary_ctx_retain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
  entries.find(table.primary_ctx_release, "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2");
  entries.find(table.ctx_push_current, "cuCtxPushCurrent", "cuCtxPushCurrent_v2");
  entries.find(table.ctx_pop_current, "cuCtxPopCurrent", "cuCtxPopCurrent_v2");
  entries.find(table.ctx_get_device, "cuCtxGetDevice", "cuCtxGetDevice");
  entries.find(table.mem_alloc, "cuMemAlloc", "cuMemAlloc_v2");
  entries.find(table.mem_free, "cuMemFree", "cuMemFree_v2");
  entries.find(table.mem_get_info, "cuMemGetInfo", "cuMemGetInfo_v2");
  entries.find(table.mem_get_address_range, "cuMemGetAddressRange", "cuMemGetAddressRange_v2");
  entries.find(table.mem_host_register, "cuMemHostRegister", "cuMemHostRegister_v2");
  entries.find(table.mem_host_unregister, "cuMemHostUnregister", "cuMemHostUnregister");
  entries.find(table.mem_host_get_device_pointer, "cuMemHostGetDevicePointer",
               "cuMemHostGetDevicePointer_v2");
  entries.find(table.memcpy_htod_async, "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2");
  entries.find(table.memcpy_dtod_async, "cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2");
  entries.find(table.memcpy_dtoh, "cuMemcpyDtoH", "cuMemcpyDtoH_v2");
  entries.find(table.memcpy_2d_async, "cuMemcpy2DAsync", "cuMemcpy2DAsync_v2");
  entries.find(table.memset_d8_async, "cuMemsetD8Async", "cuMemsetD8Async");
  entries.find(table.stream_create, "cuStreamCreate", "cuStreamCreate");
  entries.find(table.stream_destroy, "cuStreamDestroy", "cuStreamDestroy_v2");
  entries.find(table.stream_wait_event, "cuStreamWaitEvent", "cuStreamWaitEvent");
  entries.find(table.stream_wait_value_32, "cuStreamWaitValue32", "cuStreamWaitValue32_v2");
  entries.find(table.stream_synchronize, "cuStreamSynchronize", "cuStreamSynchronize");
  entries.find(table.module_load_data, "cuModuleLoadData", "cuModuleLoadData");
  entries.find(table.module_unload, "cuModuleUnload", "cuModuleUnload");
  entries.find(table.module_get_function, "cuModuleGetFunction", "cuModuleGetFunction");
  entries.find(table.launch_kernel, "cuLaunchKernel", "cuLaunchKernel");
  entries.find(table.event_create, "cuEventCreate", "cuEventCreate");
  entries.find(table.event_destroy, "cuEventDestroy", "cuEventDestroy_v2");
  entries.find(table.event_record, "cuEventRecord", "cuEventRecord");
  entries.find(table.event_query, "cuEventQuery", "cuEventQuery");
  entries.find(table.event_synchronize, "cuEventSynchronize", "cuEventSynchronize");
  return table;
}

std::string cuda_result_text(const CudaTable& table, CuResult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (table.get_error_name(result, &name) != CuResult::success || name == nullptr) {
    return fmt::format("CUDA error {}", static_cast<std::uint32_t>(result));
  }
  if (table.get_error_string(result, &text) != CuResult::success || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

}  // namespace inrush::engine
