// The driver, its parameters and its counters. Each entry answers as NVIDIA's reference and our own
// measurements say (1.14 to 1.20). Which entries there are depends on the version that is built.
#include "fakes/libcufile/fake_library.hpp"

#include <cerrno>
#include <cstring>
#include <new>
#include <type_traits>

namespace inrush::fakes::cufile {

namespace {

constexpr int version = FAKE_CUFILE_VERSION;
constexpr int version_with_counters = 1150;
constexpr int version_with_readv = 1190;
constexpr int size_parameter_count = 12;
constexpr int bool_parameter_count = 14;
constexpr int string_parameter_count = 4;
constexpr unsigned nvme_bit = 1U << 4;
constexpr int stats_level_max = 3;

// Parameters are taken while the driver is closed only.
template <typename Change>
CufileStatus set_parameter(const char* entry, bool is_known, Change&& change) {
  if (const int answer = enter(entry)) return status_of(answer);
  const Lock lock(library().mutex);
  if (library().driver.opens > 0) return status_of(engine::cufile_driver_already_open);
  if (!is_known) return status_of(code::invalid_value);
  change(library().driver);
  return status_of(0);
}

// What needs an open driver and opens none.
template <typename Act>
CufileStatus with_driver(const char* entry, Act&& act) {
  if (const int answer = enter(entry)) return status_of(answer);
  const Lock lock(library().mutex);
  if (library().driver.opens == 0) return status_of(engine::cufile_driver_not_initialized);
  return status_of(act(library()));
}

void fill(const Library& all, engine::CufileDriverProperties& properties) {
  properties = {};  // no sizes: nobody here goes by them
  const bool is_direct = all.can_go_direct() || all.pretends();
  if (all.can_go_direct() && all.steering.personality == CufilePersonality::nvfs) {
    properties.nvfs_major_version = 2;
    properties.nvfs_minor_version = 28;
  }
  properties.file_system_flags = is_direct ? nvme_bit : 0;
  properties.control_flags = all.driver.settings.allows_compat ? engine::cufile_control_compat : 0;
  properties.feature_flags = 0xF;
  properties.max_batch_io_size = 128;
}

}  // namespace

FAKE_CUFILE_EXPORT CufileStatus cuFileDriverOpen() {
  const int fault = enter("cuFileDriverOpen");
  const Lock lock(library().mutex);
  return status_of(library().open(fault));
}

FAKE_CUFILE_EXPORT CufileStatus cuFileDriverClose_v2() {
  const int fault = enter("cuFileDriverClose");
  const Lock lock(library().mutex);
  if (library().driver.opens == 0) return status_of(engine::cufile_driver_not_initialized);
  library().close();
  return status_of(fault);
}

FAKE_CUFILE_EXPORT long cuFileUseCount() {
  static_cast<void>(enter("cuFileUseCount"));
  const Lock lock(library().mutex);
  return library().driver.opens;
}

FAKE_CUFILE_EXPORT CufileStatus cuFileDriverGetProperties(engine::CufileDriverProperties* properties) {
  return with_driver("cuFileDriverGetProperties", [&](const Library& all) {
    if (properties == nullptr) return code::invalid_value;
    fill(all, *properties);
    return 0;
  });
}

FAKE_CUFILE_EXPORT CufileStatus cuFileGetVersion(int* out) {
  if (const int answer = enter("cuFileGetVersion")) return status_of(answer);
  if (out == nullptr) return status_of(code::invalid_value);
  *out = version;
  return status_of(0);
}

// A value out of range is taken and forgotten, as the real one does until it opens.
FAKE_CUFILE_EXPORT CufileStatus cuFileSetParameterSizeT(int parameter, std::size_t value) {
  const bool is_known = parameter >= 0 && parameter < size_parameter_count;
  return set_parameter("cuFileSetParameterSizeT", is_known, [&](Driver& driver) {
    if (parameter == engine::cufile_size_profile_stats && value <= stats_level_max)
      driver.stats_level = static_cast<int>(value);
  });
}

FAKE_CUFILE_EXPORT CufileStatus cuFileSetParameterBool(int parameter, unsigned char value) {
  const bool is_known = parameter >= 0 && parameter < bool_parameter_count;
  return set_parameter("cuFileSetParameterBool", is_known,
                       [&](Driver& driver) { driver.staged[parameter] = value != 0; });
}

FAKE_CUFILE_EXPORT CufileStatus cuFileSetParameterString(int parameter, const char* value) {
  const bool is_known = parameter >= 0 && parameter < string_parameter_count && value != nullptr;
  return set_parameter("cuFileSetParameterString", is_known, [&](Driver& driver) {
    if (parameter == engine::cufile_string_log_folder) driver.staged_log_folder = value;
  });
}

FAKE_CUFILE_EXPORT CufileStatus cuFileGetParameterBool(int parameter, bool* value) {
  if (const int answer = enter("cuFileGetParameterBool")) return status_of(answer);
  const Lock lock(library().mutex);
  const Driver& driver = library().driver;
  if (value == nullptr || parameter < 0 || parameter >= bool_parameter_count)
    return status_of(code::invalid_value);
  const Settings settings = driver.opens > 0 ? driver.settings : settings_now(driver);
  const auto staged = driver.staged.find(parameter);
  *value = staged != driver.staged.end() && staged->second;
  if (parameter == engine::cufile_bool_allow_compat) *value = settings.allows_compat;
  if (parameter == engine::cufile_bool_force_compat) *value = settings.forces_compat;
  if (parameter == engine::cufile_bool_use_p2pdma) *value = settings.uses_p2pdma;
  return status_of(0);
}

#if FAKE_CUFILE_VERSION >= 1150

FAKE_CUFILE_EXPORT CufileStatus cuFileSetStatsLevel(int level) {
  if (const int answer = enter("cuFileSetStatsLevel")) return status_of(answer);
  if (level < 0 || level > stats_level_max) return status_of(code::invalid_value);
  const Lock lock(library().mutex);
  library().driver.stats_level = level;
  return status_of(0);
}

FAKE_CUFILE_EXPORT CufileStatus cuFileGetStatsLevel(int* level) {
  if (const int answer = enter("cuFileGetStatsLevel")) return status_of(answer);
  if (level == nullptr) return status_of(code::invalid_value);
  const Lock lock(library().mutex);
  *level = library().driver.stats_level;
  return status_of(0);
}

FAKE_CUFILE_EXPORT CufileStatus cuFileStatsStart() {
  return with_driver("cuFileStatsStart", [](Library& all) {
    if (all.driver.stats_level == 0) return code::invalid_value;
    all.driver.is_counting = true;
    return 0;
  });
}

FAKE_CUFILE_EXPORT CufileStatus cuFileGetStatsL3(void* out) {
  static_assert(version >= version_with_counters);
  using Counters =
      std::conditional_t<version >= version_with_readv, engine::CufileCounters19, engine::CufileCounters15>;
  return with_driver("cuFileGetStatsL3", [&](const Library& all) {
    if (out == nullptr) return code::invalid_value;
    auto* const counters = ::new (out) Counters{};
    const engine::CufileGpuCounters& gpu = all.driver.counters;
    counters->basic[0] = gpu.reads + gpu.posix_reads;  // 1.15.1 counts those of POSIX twice here
    counters->basic[2] = gpu.writes;
    counters->basic[12] = gpu.read_bytes;
    counters->basic[13] = gpu.write_bytes;
    counters->gpu_count = 1;
    counters->gpus[0] = gpu;
    std::memcpy(counters->gpus[0].uuid.data(), all.steering.uuid.data(), all.steering.uuid.size());
    return all.driver.stats_level < stats_level_max ? code::invalid_value : 0;
  });
}

#endif

#if FAKE_CUFILE_VERSION >= 1190

FAKE_CUFILE_EXPORT CufileStatus cuFileDriverGetP2PFlags(unsigned, unsigned* flags) {
  return with_driver("cuFileDriverGetP2PFlags", [&](const Library& all) {
    if (flags == nullptr) return code::invalid_value;
    const bool is_direct = all.can_go_direct() || all.pretends();
    const unsigned bit = all.steering.personality == CufilePersonality::nvfs ? 2U : 1U;
    *flags = is_direct ? bit : 0;
    return 0;
  });
}

// There to be looked up.
FAKE_CUFILE_EXPORT ssize_t cuFileReadv() {
  static_cast<void>(enter("cuFileReadv"));
  errno = ENOSYS;
  return -1;
}

#endif

}  // namespace inrush::fakes::cufile
