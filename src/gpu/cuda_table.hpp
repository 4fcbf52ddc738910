// The entry points of the CUDA driver API that we call, in our own words (NVIDIA's documentation of the
// driver API, version 12.0). tests/unit/gpu/cuda_header_test.cpp compares them with the real <cuda.h> where a
// toolkit is installed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace inrush::engine {

// The results that we tell apart; any other value may come too.
enum class CuResult : std::uint32_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,  // the driver is shutting down with the process
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  invalid_handle = 400,
  not_ready = 600,
  memory_already_registered = 712,
  memory_not_registered = 713,
  launch_failed = 719,  // sticky: the context answers it from then on
};

struct CuContextObject;
struct CuStreamObject;
struct CuEventObject;
struct CuModuleObject;
struct CuFunctionObject;
using CuContext = CuContextObject*;
using CuStream = CuStreamObject*;
using CuEvent = CuEventObject*;
using CuModule = CuModuleObject*;
using CuFunction = CuFunctionObject*;
using CuDevice = int;
using CuAddress = unsigned long long;  // of device memory

struct CuUuid {
  std::array<char, 16> bytes;
};

enum class CuMemoryType : std::uint32_t { host = 1, device = 2 };

struct CuCopy2D {
  std::size_t source_x_bytes;
  std::size_t source_y;
  CuMemoryType source_type;
  const void* source_host;
  CuAddress source_device;
  void* source_array;
  std::size_t source_pitch;
  std::size_t target_x_bytes;
  std::size_t target_y;
  CuMemoryType target_type;
  void* target_host;
  CuAddress target_device;
  void* target_array;
  std::size_t target_pitch;
  std::size_t width_bytes;
  std::size_t height;
};

inline constexpr int cu_version_floor = 12000;         // driver 525
inline constexpr unsigned cu_register_portable = 1;    // pinned for every context of the process
inline constexpr unsigned cu_register_read_only = 8;   // by the device; mappings for reading need it
inline constexpr unsigned cu_stream_non_blocking = 1;  // never waits for the legacy default stream
inline constexpr unsigned cu_event_no_timing = 2;
inline constexpr unsigned cu_wait_until_at_least = 0;  // the word, less the value, is not negative
// cuGetProcAddress: the entry points whose null stream is the legacy default stream, whatever this process
// was compiled with.
inline constexpr std::uint64_t cu_proc_legacy_stream = 1;

// A member for each entry point, under its name without "cu" and version. Filled by load_cuda_table(); none
// is null afterwards.
struct CudaTable {
  CuResult (*init)(unsigned flags);
  CuResult (*driver_get_version)(int* version);
  CuResult (*get_error_name)(CuResult result, const char** name);
  CuResult (*get_error_string)(CuResult result, const char** text);
  CuResult (*device_get_count)(int* count);
  CuResult (*device_get)(CuDevice* device, int ordinal);
  CuResult (*device_get_name)(char* name, int size, CuDevice device);
  CuResult (*device_get_uuid)(CuUuid* uuid, CuDevice device);
  CuResult (*primary_ctx_retain)(CuContext* context, CuDevice device);
  CuResult (*primary_ctx_release)(CuDevice device);
  CuResult (*ctx_push_current)(CuContext context);
  CuResult (*ctx_pop_current)(CuContext* context);
  CuResult (*ctx_get_device)(CuDevice* device);
  CuResult (*mem_alloc)(CuAddress* address, std::size_t bytes);
  CuResult (*mem_free)(CuAddress address);
  CuResult (*mem_get_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  CuResult (*mem_get_address_range)(CuAddress* start, std::size_t* bytes, CuAddress address);
  CuResult (*mem_host_register)(void* memory, std::size_t bytes, unsigned flags);
  CuResult (*mem_host_unregister)(void* memory);
  CuResult (*mem_host_get_device_pointer)(CuAddress* address, void* memory, unsigned flags);
  CuResult (*memcpy_htod_async)(CuAddress target, const void* source, std::size_t bytes, CuStream stream);
  CuResult (*memcpy_dtod_async)(CuAddress target, CuAddress source, std::size_t bytes, CuStream stream);
  CuResult (*memcpy_dtoh)(void* target, CuAddress source, std::size_t bytes);
  CuResult (*memcpy_2d_async)(const CuCopy2D* copy, CuStream stream);
  CuResult (*memset_d8_async)(CuAddress target, unsigned char value, std::size_t bytes, CuStream stream);
  CuResult (*stream_create)(CuStream* stream, unsigned flags);
  CuResult (*stream_destroy)(CuStream stream);
  CuResult (*stream_wait_event)(CuStream stream, CuEvent event, unsigned flags);
  CuResult (*stream_wait_value_32)(CuStream stream, CuAddress word, std::uint32_t value, unsigned flags);
  CuResult (*stream_synchronize)(CuStream stream);
  CuResult (*module_load_data)(CuModule* module, const void* image);
  CuResult (*module_unload)(CuModule module);
  CuResult (*module_get_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            CuStream stream, void** parameters, void** extra);
  CuResult (*event_create)(CuEvent* event, unsigned flags);
  CuResult (*event_destroy)(CuEvent event);
  CuResult (*event_record)(CuEvent event, CuStream stream);
  CuResult (*event_query)(CuEvent event);
  CuResult (*event_synchronize)(CuEvent event);
};

// Of a library that dlopen() returned; `name` is for messages. Throws environment_unfit naming what is
// missing.
[[nodiscard]] CudaTable load_cuda_table(void* library, const std::string& name);

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"; the number where the driver does not know it.
[[nodiscard]] std::string cuda_result_text(const CudaTable& table, CuResult result);

}  // namespace inrush::engine
