// Our own declarations against a real cufile.h. Compiled once for each version of nvidia-cufile that
// `tools/setup.sh cufile` has put into build/cufile, with its folder on the include path and its version in
// macros; nothing else sees that header. Counters came with 1.15, flags of P2P with 1.16, vectored reads and
// longer counters with 1.19.
#ifdef INRUSH_CUFILE_SUITE

#include "gpu/cufile_table.hpp"

#include <inrush/error.hpp>

#include <cufile.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

namespace inrush::engine {
namespace {

// The same to the calling convention: size, and pointer with pointer, structure with structure, number with
// number. An enumeration is a number.
template <typename Ours, typename Theirs>
constexpr bool is_same_argument() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  } else if constexpr (std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);  // small numbers: their sign does not matter
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameFunction<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<is_same_argument<OurResult, TheirResult>() &&
                         (is_same_argument<Ours, Theirs>() && ...)> {};

#define EXPECT_ENTRY(member, entry) \
  EXPECT_TRUE((SameFunction<decltype(CufileTable::member), decltype(&::entry)>::value)) << #entry

TEST(INRUSH_CUFILE_SUITE, EveryEntryPointHasTheRealSignature) {
  EXPECT_ENTRY(driver_open, cuFileDriverOpen);
  EXPECT_ENTRY(driver_close, cuFileDriverClose);
  EXPECT_ENTRY(use_count, cuFileUseCount);
  EXPECT_ENTRY(driver_get_properties, cuFileDriverGetProperties);
  EXPECT_ENTRY(get_version, cuFileGetVersion);
  EXPECT_ENTRY(handle_register, cuFileHandleRegister);
  EXPECT_ENTRY(handle_deregister, cuFileHandleDeregister);
  EXPECT_ENTRY(buf_register, cuFileBufRegister);
  EXPECT_ENTRY(buf_deregister, cuFileBufDeregister);
  EXPECT_ENTRY(read, cuFileRead);
  EXPECT_ENTRY(write, cuFileWrite);
  EXPECT_ENTRY(set_parameter_size, cuFileSetParameterSizeT);
  EXPECT_ENTRY(set_parameter_bool, cuFileSetParameterBool);
  EXPECT_ENTRY(set_parameter_string, cuFileSetParameterString);
  EXPECT_ENTRY(get_parameter_bool, cuFileGetParameterBool);
#if INRUSH_CUFILE_VERSION >= 1150
  EXPECT_ENTRY(set_stats_level, cuFileSetStatsLevel);
  EXPECT_ENTRY(get_stats_level, cuFileGetStatsLevel);
  EXPECT_ENTRY(stats_start, cuFileStatsStart);
  EXPECT_ENTRY(get_stats_3, cuFileGetStatsL3);
#endif
#if INRUSH_CUFILE_VERSION >= 1160
  EXPECT_ENTRY(get_p2p_flags, cuFileDriverGetP2PFlags);
#endif
}

// The macro of the header gives the plain name the symbol that load_cufile_table() asks for.
#define TEXT_OF_EXPANDED(name) TEXT_OF(name)
#define TEXT_OF(name) #name
TEST(INRUSH_CUFILE_SUITE, ClosingHasANameOfItsOwn) {
  EXPECT_STREQ(TEXT_OF_EXPANDED(cuFileDriverClose), "cuFileDriverClose_v2");
}

#define EXPECT_FIELD(Ours, ours, Theirs, theirs)                        \
  EXPECT_EQ(offsetof(Ours, ours), offsetof(Theirs, theirs)) << #theirs; \
  EXPECT_EQ(sizeof(std::declval<Ours>().ours), sizeof(std::declval<Theirs>().theirs)) << #theirs

TEST(INRUSH_CUFILE_SUITE, StructuresHaveTheRealLayout) {
  EXPECT_EQ(sizeof(CufileStatus), sizeof(CUfileError_t));
  EXPECT_FIELD(CufileStatus, code, CUfileError_t, err);
  EXPECT_FIELD(CufileStatus, cuda, CUfileError_t, cu_err);

  EXPECT_EQ(sizeof(CufileHandle), sizeof(CUfileHandle_t));
  EXPECT_EQ(sizeof(CufileDescriptor), sizeof(CUfileDescr_t));
  EXPECT_FIELD(CufileDescriptor, type, CUfileDescr_t, type);
  EXPECT_FIELD(CufileDescriptor, handle, CUfileDescr_t, handle);
  EXPECT_FIELD(CufileDescriptor, handle.fd, CUfileDescr_t, handle.fd);
  EXPECT_FIELD(CufileDescriptor, file_system_operations, CUfileDescr_t, fs_ops);
}

#define EXPECT_PROPERTY(ours, theirs) EXPECT_FIELD(CufileDriverProperties, ours, CUfileDrvProps_t, theirs)

TEST(INRUSH_CUFILE_SUITE, PropertiesHaveTheRealLayout) {
  EXPECT_EQ(sizeof(CufileDriverProperties), sizeof(CUfileDrvProps_t));
  EXPECT_PROPERTY(nvfs_major_version, nvfs.major_version);
  EXPECT_PROPERTY(nvfs_minor_version, nvfs.minor_version);
  EXPECT_PROPERTY(poll_threshold_bytes, nvfs.poll_thresh_size);
  EXPECT_PROPERTY(max_direct_io_bytes, nvfs.max_direct_io_size);
  EXPECT_PROPERTY(file_system_flags, nvfs.dstatusflags);
  EXPECT_PROPERTY(control_flags, nvfs.dcontrolflags);
  EXPECT_PROPERTY(feature_flags, fflags);
  EXPECT_PROPERTY(max_device_cache_bytes, max_device_cache_size);
  EXPECT_PROPERTY(per_buffer_cache_bytes, per_buffer_cache_size);
  EXPECT_PROPERTY(max_device_pinned_bytes, max_device_pinned_mem_size);
  EXPECT_PROPERTY(max_batch_io_size, max_batch_io_size);
  EXPECT_PROPERTY(max_batch_io_timeout_ms, max_batch_io_timeout_msecs);
}

TEST(INRUSH_CUFILE_SUITE, NumbersHaveTheRealValues) {
  EXPECT_EQ(cufile_handle_fd, unsigned{CU_FILE_HANDLE_TYPE_OPAQUE_FD});
  EXPECT_EQ(cufile_control_compat, 1U << unsigned{CU_FILE_ALLOW_COMPAT_MODE});
  EXPECT_EQ(cufile_size_profile_stats, int{CUFILE_PARAM_PROFILE_STATS});
  EXPECT_EQ(cufile_bool_allow_compat, int{CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE});
  EXPECT_EQ(cufile_bool_force_compat, int{CUFILE_PARAM_FORCE_COMPAT_MODE});
  EXPECT_EQ(cufile_bool_use_p2pdma, int{CUFILE_PARAM_USE_PCIP2PDMA});
  EXPECT_EQ(cufile_string_logging_level, int{CUFILE_PARAM_LOGGING_LEVEL});
  EXPECT_EQ(cufile_string_log_folder, int{CUFILE_PARAM_LOG_DIR});
}

TEST(INRUSH_CUFILE_SUITE, CodesHaveTheRealValues) {
  EXPECT_EQ(cufile_driver_not_initialized, int{CU_FILE_DRIVER_NOT_INITIALIZED});
  EXPECT_EQ(cufile_cuda_driver_error, int{CU_FILE_CUDA_DRIVER_ERROR});
  EXPECT_EQ(cufile_driver_already_open, int{CU_FILE_DRIVER_ALREADY_OPEN});
  EXPECT_EQ(cufile_internal_error, int{CU_FILE_INTERNAL_ERROR});
#if INRUSH_CUFILE_VERSION >= 1150
  EXPECT_EQ(cufile_invalid_context, int{CU_FILE_INVALID_CONTEXT_ERROR});
#endif
}

// The header lists its codes in a macro that calls another for each.
TEST(INRUSH_CUFILE_SUITE, EveryCodeIsExplainedUnderItsName) {
  int count = 0;
  const auto expect_known = [&](int code, const char* name) {
    if (code == 0) return;  // success
    ++count;
    const Explanation* const known = explain_cufile_error(code);
    ASSERT_NE(known, nullptr) << code << " " << name;
    // The marker of the end moved, and another code took its number.
    const bool was_the_end = INRUSH_CUFILE_VERSION < 1150 && code == 5039;
    EXPECT_EQ(known->name == std::string_view(name), !was_the_end) << name << " is here " << known->name;
  };
#define CUFILE_OP(code, name, text) expect_known(static_cast<int>(code), #name);
  CUFILEOP_STATUS_ENTRIES
#undef CUFILE_OP
  EXPECT_GE(count, 37);
}

#if INRUSH_CUFILE_VERSION >= 1150

using Counters = std::conditional_t<(INRUSH_CUFILE_VERSION >= 1190), CufileCounters19, CufileCounters15>;

#define EXPECT_COUNTER(ours, theirs) EXPECT_FIELD(CufileGpuCounters, ours, CUfilePerGpuStats_t, theirs)

TEST(INRUSH_CUFILE_SUITE, CountersHaveTheRealLayout) {
  EXPECT_EQ(sizeof(Counters), sizeof(CUfileStatsLevel3_t));
  EXPECT_FIELD(Counters, basic, CUfileStatsLevel3_t, detailed.basic);
  EXPECT_FIELD(Counters, read_histogram, CUfileStatsLevel3_t, detailed.read_size_kb_hist);
  EXPECT_FIELD(Counters, write_histogram, CUfileStatsLevel3_t, detailed.write_size_kb_hist);
  EXPECT_FIELD(Counters, gpu_count, CUfileStatsLevel3_t, num_gpus);
  EXPECT_FIELD(Counters, gpus, CUfileStatsLevel3_t, per_gpu_stats);
}

TEST(INRUSH_CUFILE_SUITE, CountersOfReadsHaveTheRealLayout) {
  EXPECT_EQ(sizeof(CufileGpuCounters), sizeof(CUfilePerGpuStats_t));
  EXPECT_COUNTER(uuid, uuid);
  EXPECT_COUNTER(read_bytes, read_bytes);
  EXPECT_COUNTER(read_bytes_per_second, read_bw_bytes_per_sec);
  EXPECT_COUNTER(read_utilization, read_utilization);
  EXPECT_COUNTER(read_microseconds, read_duration_us);
  EXPECT_COUNTER(reads, n_total_reads);
  EXPECT_COUNTER(p2p_reads, n_p2p_reads);
  EXPECT_COUNTER(nvfs_reads, n_nvfs_reads);
  EXPECT_COUNTER(posix_reads, n_posix_reads);
  EXPECT_COUNTER(unaligned_reads, n_unaligned_reads);
  EXPECT_COUNTER(rerouted_reads, n_dr_reads);
  EXPECT_COUNTER(sparse_regions, n_sparse_regions);
  EXPECT_COUNTER(inline_regions, n_inline_regions);
  EXPECT_COUNTER(failed_reads, n_reads_err);
}

TEST(INRUSH_CUFILE_SUITE, CountersOfWritesAndRegistrationsHaveTheRealLayout) {
  EXPECT_COUNTER(write_bytes, writes_bytes);
  EXPECT_COUNTER(write_bytes_per_second, write_bw_bytes_per_sec);
  EXPECT_COUNTER(write_utilization, write_utilization);
  EXPECT_COUNTER(write_microseconds, write_duration_us);
  EXPECT_COUNTER(writes, n_total_writes);
  EXPECT_COUNTER(p2p_writes, n_p2p_writes);
  EXPECT_COUNTER(nvfs_writes, n_nvfs_writes);
  EXPECT_COUNTER(posix_writes, n_posix_writes);
  EXPECT_COUNTER(unaligned_writes, n_unaligned_writes);
  EXPECT_COUNTER(rerouted_writes, n_dr_writes);
  EXPECT_COUNTER(failed_writes, n_writes_err);
  EXPECT_COUNTER(registrations, n_mmap);
  EXPECT_COUNTER(registrations_ok, n_mmap_ok);
  EXPECT_COUNTER(registrations_failed, n_mmap_err);
  EXPECT_COUNTER(deregistrations, n_mmap_free);
  EXPECT_COUNTER(registered_bytes, reg_bytes);
}

#endif

}  // namespace
}  // namespace inrush::engine

#endif
