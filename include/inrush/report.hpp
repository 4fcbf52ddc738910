// What a load did, from what happened and not from what was configured. A value; Load::report() gives a copy
// at any time.
#pragma once

#include <inrush/device.hpp>
#include <inrush/version.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::inline v0 {

// Bytes of tensors that came one way. The counts of all ways sum to Report::loaded_bytes.
struct PathBytes {
  // Of cuFile: "storage -> device (cuFile P2PDMA)", "... (cuFile nvidia-fs)", "... (cuFile, way unproven)",
  // "storage -> host -> device (cuFile compat)"
  std::string path;  // "page cache -> ring", "storage -> page cache -> ring", "O_DIRECT -> ring", "page cache
                     // -> in place", "page cache -> device (registered windows)", ...
  std::uint64_t bytes = 0;

  bool operator==(const PathBytes&) const = default;
};

// One step down from what the machine should allow.
struct Fallback {
  std::string what;    // "io_uring", "O_DIRECT", "fixed buffers", "pinned memory", "huge pages", "GDS",
                       // "copy kernel"
  std::string reason;  // with the error of the system call, and the file where it is about one
  std::uint64_t count = 0;

  bool operator==(const Fallback&) const = default;
};

// Seconds since start() at which a stage ended; negative: not reached.
struct Stages {
  double open = -1;     // every file opened again and its identity compared
  double headers = -1;  // every header read again and compared
  double plan = -1;
  double allocate = -1;      // the last slab was allocated
  double first_byte = -1;    // the first read completed
  double first_tensor = -1;  // the first tensor was complete on the device
  double last_byte = -1;     // the last tensor was complete on the device
};

struct Report {
  Device device;
  // "staged", "gds" or "cufile-compat", from what happened; "gds (unproven)", "cufile-compat (unproven)"
  // where libcufile's counters do not tell which way its reads took
  std::string path;
  bool complete = false;           // every tensor of the plan is on the device
  std::uint64_t tensor_count = 0;  // complete ones
  std::uint64_t planned_bytes = 0;
  std::uint64_t loaded_bytes = 0;  // bytes of tensors that are on the device
  std::uint64_t read_bytes = 0;    // bytes that reads returned, with rows and alignment that no tensor needed
  // Brought into the page cache by this load while its device was being opened, in stretches of 16 MiB that
  // were not whole there; they count as page cache below.
  std::uint64_t read_ahead_bytes = 0;
  std::vector<PathBytes> bytes_by_path;
  Stages seconds;
  double bytes_per_second = 0;  // loaded_bytes over the seconds until the last byte
  std::uint64_t read_count = 0;
  std::uint64_t copy_count =
      0;  // operations that the device was given to bring bytes into place: copies and kernels
  std::uint64_t retry_count = 0;  // reads continued after a short one or repeated after EINTR or EAGAIN
  std::uint64_t orphan_count =
      0;  // reads that never returned and were left behind after a deadline or a cancel
  std::vector<Fallback> fallbacks;
  std::uint64_t pinned_peak_bytes = 0;       // by this load
  std::uint64_t staging_peak_bytes = 0;      // the ring, pinned or not
  std::uint64_t window_peak_bytes = 0;       // page cache that was pinned to be copied from, beside the ring
  std::uint64_t host_peak_bytes = 0;         // of the whole process: the kernel's VmHWM
  std::vector<std::string> notes;            // of discovery and of the load
  std::vector<std::string> suspect_tensors;  // already handed out when their file turned out to have changed
  // Where the load ended with an error or a cancel: targets that bytes may have reached, in whole or in part.
  std::vector<std::string> overwritten_targets;
};

[[nodiscard]] INRUSH_API std::string report_to_json(const Report& report);
// A few lines for people.
[[nodiscard]] INRUSH_API std::string report_to_text(const Report& report);

// "1.50 GB", "90.9 MB", "17 B": powers of 1000, three digits, as in every message of this library.
[[nodiscard]] INRUSH_API std::string format_bytes(std::uint64_t bytes);
// Text from a checkpoint, made safe for a terminal: control characters, quotes, backslashes and bytes that
// are not UTF-8 become \xNN; longer text is cut and ends with "...".
[[nodiscard]] INRUSH_API std::string escape_text(std::string_view text, std::size_t size_max = 200);

// Reads, writes or batches that the kernel module nvidia-fs counted. A number that the driver does not show
// is no value, and never 0.
struct GdsDriverIo {
  std::optional<std::uint64_t> count;
  std::optional<std::uint64_t> ok_count;
  std::optional<std::uint64_t> error_count;
  std::optional<std::uint64_t>
      state_error_count;  // ended with an error in the storage driver, or as their buffer went away
  std::optional<std::uint64_t> moved_mib;
  std::optional<std::uint64_t> mib_per_second;        // lately
  std::optional<std::uint64_t> latency_microseconds;  // lately, on average; of batches: of submitting one

  bool operator==(const GdsDriverIo&) const = default;
};

// GPU memory made reachable for storage.
struct GdsDriverMaps {
  std::optional<std::uint64_t> count;
  std::optional<std::uint64_t> ok_count;
  std::optional<std::uint64_t> error_count;
  std::optional<std::uint64_t> free_count;
  std::optional<std::uint64_t> callback_count;  // the GPU's driver took the memory back first
  std::optional<std::uint64_t> active_count;
  std::optional<std::uint64_t> delayed_free_count;

  bool operator==(const GdsDriverMaps&) const = default;
};

struct GdsDriverErrors {
  std::optional<std::uint64_t> mixed_page_count;    // CPU and GPU pages in one request
  std::optional<std::uint64_t> scatter_list_count;  // more pieces than the device's list has room for
  std::optional<std::uint64_t> dma_map_count;       // mapping GPU pages for the device failed
  std::optional<std::uint64_t> dma_reference_count;

  bool operator==(const GdsDriverErrors&) const = default;
};

// In progress at the moment.
struct GdsDriverOperations {
  std::optional<std::uint64_t> read_count;
  std::optional<std::uint64_t> write_count;
  std::optional<std::uint64_t> batch_count;

  bool operator==(const GdsDriverOperations&) const = default;
};

struct GdsDriverGpu {
  std::string bdf;   // "0000:65:00.0"
  std::string uuid;  // "f4ce0000-0011-2233-4455-66778899aabb"
  std::optional<std::uint64_t> registered_mib;
  std::optional<std::uint64_t> cache_mib;  // bounce buffers
  std::optional<std::uint64_t> max_pinned_mib;
  std::optional<std::uint64_t> cross_root_port_percent;  // only where peer statistics are enabled

  bool operator==(const GdsDriverGpu&) const = default;
};

// What nvidia-fs says of itself, for all processes since it was loaded or its counters were reset. Compat
// mode and P2PDMA do not go through it and are not counted.
struct GdsDriverStats {
  std::string driver_version;            // "2.28.4"; strings are empty where the driver does not say
  std::string gds_version;               // "1.17.1.22"
  std::string layout_version;            // "4.0"
  std::optional<bool> io_stats_enabled;  // while not, reads, writes and batches are not counted
  std::optional<bool> peer_stats_enabled;
  std::optional<std::uint64_t> active_process_count;
  std::optional<std::uint64_t> shadow_buffer_mib;
  GdsDriverIo reads;
  GdsDriverIo writes;
  GdsDriverIo batches;
  GdsDriverMaps bar1_maps;
  GdsDriverErrors errors;
  GdsDriverOperations operations;
  std::vector<GdsDriverGpu> gpus;

  bool operator==(const GdsDriverStats&) const = default;
};

// The text of /proc/driver/nvidia-fs/stats, of any version: what is missing, unknown or cut off is left out.
[[nodiscard]] INRUSH_API GdsDriverStats parse_gds_driver_stats(std::string_view text);
// Empty where there is no such file: nvidia-fs is not loaded. Throws storage_failed where it cannot be read.
[[nodiscard]] INRUSH_API std::optional<GdsDriverStats> read_gds_driver_stats(
    const std::string& path = "/proc/driver/nvidia-fs/stats");
[[nodiscard]] INRUSH_API std::string gds_driver_stats_to_json(const GdsDriverStats& stats);
// A table for people.
[[nodiscard]] INRUSH_API std::string gds_driver_stats_to_text(const GdsDriverStats& stats);

}  // namespace inrush::inline v0
