// The entry points of libcufile that we call and the types that cross them, in our own words (NVIDIA's cuFile
// API reference, 1.14 to 1.20). tests/unit/gpu/cufile_header_test.cpp compares them with the real headers.
#pragma once

#include "gpu/cuda_table.hpp"

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace inrush::engine {

// The codes that we tell apart; gpu/cufile_errors.hpp has all of them.
inline constexpr int cufile_driver_not_initialized = 5001;
inline constexpr int cufile_cuda_driver_error = 5011;
inline constexpr int cufile_driver_already_open = 5026;
inline constexpr int cufile_internal_error = 5030;
inline constexpr int cufile_invalid_context = 5047;

// What most entries return: a code of cuFile, and the driver's own where the code is
// cufile_cuda_driver_error.
struct CufileStatus {
  int code;
  CuResult cuda;
};

using CufileHandle = void*;  // of a registered file

struct CufileDescriptor {
  std::uint32_t type;
  union {
    int fd;
    void* handle;
  } handle;
  const void* file_system_operations;
};
inline constexpr std::uint32_t cufile_handle_fd = 1;

struct CufileDriverProperties {
  unsigned nvfs_major_version;
  unsigned nvfs_minor_version;
  std::size_t poll_threshold_bytes;
  std::size_t max_direct_io_bytes;
  unsigned file_system_flags;  // bits of what is supported; preference and configuration, never proof
  unsigned control_flags;      // cufile_control_posix: reads through host memory are allowed
  unsigned feature_flags;
  unsigned max_device_cache_bytes;
  unsigned per_buffer_cache_bytes;
  unsigned max_device_pinned_bytes;
  unsigned max_batch_io_size;
  unsigned max_batch_io_timeout_ms;
};
// Compat mode; since 1.19 also the plain POSIX mode and the fallback of single reads.
inline constexpr unsigned cufile_control_compat = 1U << 1;
inline constexpr unsigned cufile_control_posix = cufile_control_compat | 1U << 2 | 1U << 4;

// Parameters: numbers of the enumerations in the header of 1.14, unchanged since.
inline constexpr int cufile_size_profile_stats = 0;
inline constexpr int cufile_bool_allow_compat = 1;
inline constexpr int cufile_bool_force_compat = 2;
inline constexpr int cufile_bool_use_p2pdma = 7;
inline constexpr int cufile_string_logging_level = 0;
inline constexpr int cufile_string_log_folder = 2;

// What the library counted for one GPU. Reads are whole calls, by the way that they took.
struct CufileGpuCounters {
  std::array<char, 16> uuid;
  std::uint64_t read_bytes;
  std::uint64_t read_bytes_per_second;
  std::uint64_t read_utilization;
  std::uint64_t read_microseconds;
  std::uint64_t reads;
  std::uint64_t p2p_reads;
  std::uint64_t nvfs_reads;
  std::uint64_t posix_reads;
  std::uint64_t unaligned_reads;
  std::uint64_t rerouted_reads;
  std::uint64_t sparse_regions;
  std::uint64_t inline_regions;
  std::uint64_t failed_reads;
  std::uint64_t write_bytes;
  std::uint64_t write_bytes_per_second;
  std::uint64_t write_utilization;
  std::uint64_t write_microseconds;
  std::uint64_t writes;
  std::uint64_t p2p_writes;
  std::uint64_t nvfs_writes;
  std::uint64_t posix_writes;
  std::uint64_t unaligned_writes;
  std::uint64_t rerouted_writes;
  std::uint64_t failed_writes;
  std::uint64_t registrations;
  std::uint64_t registrations_ok;
  std::uint64_t registrations_failed;
  std::uint64_t deregistrations;
  std::uint64_t registered_bytes;
};

// Counters of all GPUs. What stands before them grew when vectored reads came: a library that has cuFileReadv
// (1.19) writes 14 numbers more, and its counters read by the older layout are those of something else.
template <std::size_t basic_count>
struct CufileCountersOf {
  std::array<std::uint64_t, basic_count> basic;
  std::array<std::uint64_t, 32> read_histogram;
  std::array<std::uint64_t, 32> write_histogram;
  std::uint32_t gpu_count;
  std::array<CufileGpuCounters, 16> gpus;
};
using CufileCounters15 = CufileCountersOf<64>;
using CufileCounters19 = CufileCountersOf<78>;

// A member for each entry point, under its name without "cuFile". Filled by load_cufile_table().
struct CufileTable {
  CufileStatus (*driver_open)();
  CufileStatus (*driver_close)();
  long (*use_count)();
  CufileStatus (*driver_get_properties)(CufileDriverProperties* properties);
  CufileStatus (*get_version)(int* version);  // 1000 * major + 10 * minor
  CufileStatus (*handle_register)(CufileHandle* handle, CufileDescriptor* descriptor);
  void (*handle_deregister)(CufileHandle handle);
  CufileStatus (*buf_register)(const void* memory, std::size_t bytes, int flags);
  CufileStatus (*buf_deregister)(const void* memory);
  ssize_t (*read)(CufileHandle handle, void* memory, std::size_t bytes, off_t file_offset,
                  off_t memory_offset);
  ssize_t (*write)(CufileHandle handle, const void* memory, std::size_t bytes, off_t file_offset,
                   off_t memory_offset);

  // Null where the library is older: parameters came with 1.14, counters with 1.15, vectored reads with 1.19.
  CufileStatus (*set_parameter_size)(int parameter, std::size_t value);
  CufileStatus (*set_parameter_bool)(int parameter, unsigned char value);  // C's bool
  CufileStatus (*set_parameter_string)(int parameter, const char* value);
  CufileStatus (*get_parameter_bool)(int parameter, bool* value);
  CufileStatus (*set_stats_level)(int level);
  CufileStatus (*get_stats_level)(int* level);
  CufileStatus (*stats_start)();
  CufileStatus (*get_stats_3)(void* counters);  // a CufileCounters15, with readv a CufileCounters19
  CufileStatus (*get_p2p_flags)(unsigned file_system, unsigned* flags);
  const void* readv;  // says which layout the counters have; never called
};

// Of a library that dlopen() returned; `name` is for messages. Calls nothing. Throws environment_unfit naming
// what is missing of the first part.
[[nodiscard]] CufileTable load_cufile_table(void* library, const std::string& name);

}  // namespace inrush::engine
