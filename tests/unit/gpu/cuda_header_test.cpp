// Our own declarations against the real header, where a CUDA toolkit is installed at build time.
#ifdef INRUSH_HAVE_CUDA_H

#include "gpu/cuda_table.hpp"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace inrush::engine {
namespace {

// The same to the calling convention: size, and pointer with pointer, number with number of one signedness.
template <typename Ours, typename Theirs>
constexpr bool is_same_argument() {
  if (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>)
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  if (sizeof(Ours) != sizeof(Theirs)) return false;
  if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  }
  return std::is_enum_v<Ours> == std::is_enum_v<Theirs>;
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameFunction<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<is_same_argument<OurResult, TheirResult>() &&
                         (is_same_argument<Ours, Theirs>() && ...)> {};

#define EXPECT_ENTRY(member, entry) \
  EXPECT_TRUE((SameFunction<decltype(CudaTable::member), decltype(&::entry)>::value)) << #entry

TEST(CudaHeader, EveryEntryPointHasTheRealSignature) {
  EXPECT_ENTRY(init, cuInit);
  EXPECT_ENTRY(driver_get_version, cuDriverGetVersion);
  EXPECT_ENTRY(get_error_name, cuGetErrorName);
  EXPECT_ENTRY(get_error_string, cuGetErrorString);
  EXPECT_ENTRY(device_get_count, cuDeviceGetCount);
  EXPECT_ENTRY(device_get, cuDeviceGet);
  EXPECT_ENTRY(device_get_name, cuDeviceGetName);
  EXPECT_ENTRY(device_get_uuid, cuDeviceGetUuid);
  EXPECT_ENTRY(primary_ctx_retain, cuDevicePrimaryCtxRetain);
  EXPECT_ENTRY(primary_ctx_release, cuDevicePrimaryCtxRelease);
  EXPECT_ENTRY(ctx_push_current, cuCtxPushCurrent);
  EXPECT_ENTRY(ctx_pop_current, cuCtxPopCurrent);
  EXPECT_ENTRY(ctx_get_device, cuCtxGetDevice);
  EXPECT_ENTRY(mem_alloc, cuMemAlloc);
  EXPECT_ENTRY(mem_free, cuMemFree);
  EXPECT_ENTRY(mem_get_info, cuMemGetInfo);
  EXPECT_ENTRY(mem_get_address_range, cuMemGetAddressRange);
  EXPECT_ENTRY(mem_host_register, cuMemHostRegister);
  EXPECT_ENTRY(mem_host_unregister, cuMemHostUnregister);
  EXPECT_ENTRY(memcpy_htod_async, cuMemcpyHtoDAsync);
  EXPECT_ENTRY(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
  EXPECT_ENTRY(memset_d8_async, cuMemsetD8Async);
  EXPECT_ENTRY(stream_wait_value_32, cuStreamWaitValue32);
  EXPECT_ENTRY(memcpy_dtod_async, cuMemcpyDtoDAsync);
  EXPECT_ENTRY(memcpy_dtoh, cuMemcpyDtoH);
  EXPECT_ENTRY(memcpy_2d_async, cuMemcpy2DAsync);
  EXPECT_ENTRY(stream_create, cuStreamCreate);
  EXPECT_ENTRY(stream_destroy, cuStreamDestroy);
  EXPECT_ENTRY(stream_wait_event, cuStreamWaitEvent);
  EXPECT_ENTRY(stream_synchronize, cuStreamSynchronize);
  EXPECT_ENTRY(event_create, cuEventCreate);
  EXPECT_ENTRY(event_destroy, cuEventDestroy);
  EXPECT_ENTRY(event_record, cuEventRecord);
  EXPECT_ENTRY(event_query, cuEventQuery);
  EXPECT_ENTRY(event_synchronize, cuEventSynchronize);
}

TEST(CudaHeader, ResultsHaveTheRealValues) {
  const auto same = [](CuResult ours, CUresult theirs) {
    return static_cast<unsigned>(ours) == static_cast<unsigned>(theirs);
  };
  EXPECT_TRUE(same(CuResult::success, CUDA_SUCCESS));
  EXPECT_TRUE(same(CuResult::invalid_value, CUDA_ERROR_INVALID_VALUE));
  EXPECT_TRUE(same(CuResult::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY));
  EXPECT_TRUE(same(CuResult::not_initialized, CUDA_ERROR_NOT_INITIALIZED));
  EXPECT_TRUE(same(CuResult::deinitialized, CUDA_ERROR_DEINITIALIZED));
  EXPECT_TRUE(same(CuResult::no_device, CUDA_ERROR_NO_DEVICE));
  EXPECT_TRUE(same(CuResult::invalid_device, CUDA_ERROR_INVALID_DEVICE));
  EXPECT_TRUE(same(CuResult::invalid_context, CUDA_ERROR_INVALID_CONTEXT));
  EXPECT_TRUE(same(CuResult::invalid_handle, CUDA_ERROR_INVALID_HANDLE));
  EXPECT_TRUE(same(CuResult::not_ready, CUDA_ERROR_NOT_READY));
  EXPECT_TRUE(same(CuResult::memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
  EXPECT_TRUE(same(CuResult::memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
  EXPECT_TRUE(same(CuResult::launch_failed, CUDA_ERROR_LAUNCH_FAILED));
}

TEST(CudaHeader, FlagsHaveTheRealValues) {
  EXPECT_EQ(cu_register_portable, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(cu_stream_non_blocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(cu_event_no_timing, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(cu_proc_legacy_stream, std::uint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM});
}

#define EXPECT_FIELD(ours, theirs) \
  EXPECT_EQ(offsetof(CuCopy2D, ours), offsetof(CUDA_MEMCPY2D, theirs)) << #theirs

TEST(CudaHeader, StructuresHaveTheRealLayout) {
  EXPECT_EQ(sizeof(CuUuid), sizeof(CUuuid));
  EXPECT_EQ(sizeof(CuAddress), sizeof(CUdeviceptr));
  EXPECT_EQ(sizeof(CuDevice), sizeof(CUdevice));
  EXPECT_EQ(sizeof(CuCopy2D), sizeof(CUDA_MEMCPY2D));
  EXPECT_FIELD(source_x_bytes, srcXInBytes);
  EXPECT_FIELD(source_y, srcY);
  EXPECT_FIELD(source_type, srcMemoryType);
  EXPECT_FIELD(source_host, srcHost);
  EXPECT_FIELD(source_device, srcDevice);
  EXPECT_FIELD(source_array, srcArray);
  EXPECT_FIELD(source_pitch, srcPitch);
  EXPECT_FIELD(target_x_bytes, dstXInBytes);
  EXPECT_FIELD(target_y, dstY);
  EXPECT_FIELD(target_type, dstMemoryType);
  EXPECT_FIELD(target_host, dstHost);
  EXPECT_FIELD(target_device, dstDevice);
  EXPECT_FIELD(target_array, dstArray);
  EXPECT_FIELD(target_pitch, dstPitch);
  EXPECT_FIELD(width_bytes, WidthInBytes);
  EXPECT_FIELD(height, Height);
  EXPECT_EQ(static_cast<unsigned>(CuMemoryType::host), unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(static_cast<unsigned>(CuMemoryType::device), unsigned{CU_MEMORYTYPE_DEVICE});
}

}  // namespace
}  // namespace inrush::engine

#endif
