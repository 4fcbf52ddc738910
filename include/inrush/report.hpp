// What a load did, from what happened and not from what was configured. A value; Load::report() gives a copy
// at any time.
#pragma once

#include <inrush/device.hpp>
#include <inrush/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::inline v0 {

// Bytes of tensors that came one way. The counts of all ways sum to Report::loaded_bytes.
struct PathBytes {
  std::string path;  // "page cache -> ring", "storage -> page cache -> ring", "O_DIRECT -> ring", "page cache
                     // -> in place", ...
  std::uint64_t bytes = 0;

  bool operator==(const PathBytes&) const = default;
};

// One step down from what the machine should allow.
struct Fallback {
  std::string what;    // "io_uring", "O_DIRECT", "fixed buffers", "pinned memory", "huge pages"
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
  std::string path;                // "staged"
  bool complete = false;           // every tensor of the plan is on the device
  std::uint64_t tensor_count = 0;  // complete ones
  std::uint64_t planned_bytes = 0;
  std::uint64_t loaded_bytes = 0;  // bytes of tensors that are on the device
  std::uint64_t read_bytes = 0;    // bytes that reads returned, with rows and alignment that no tensor needed
  std::vector<PathBytes> bytes_by_path;
  Stages seconds;
  double bytes_per_second = 0;  // loaded_bytes over the seconds until the last byte
  std::uint64_t read_count = 0;
  std::uint64_t retry_count = 0;  // reads continued after a short one or repeated after EINTR or EAGAIN
  std::uint64_t orphan_count =
      0;  // reads that never returned and were left behind after a deadline or a cancel
  std::vector<Fallback> fallbacks;
  std::uint64_t pinned_peak_bytes = 0;       // by this load
  std::uint64_t staging_peak_bytes = 0;      // the ring, pinned or not
  std::uint64_t host_peak_bytes = 0;         // of the whole process: the kernel's VmHWM
  std::vector<std::string> notes;            // of discovery and of the load
  std::vector<std::string> suspect_tensors;  // already handed out when their file turned out to have changed
};

[[nodiscard]] INRUSH_API std::string report_to_json(const Report& report);
// A few lines for people.
[[nodiscard]] INRUSH_API std::string report_to_text(const Report& report);

// "1.50 GB", "90.9 MB", "17 B": powers of 1000, three digits, as in every message of this library.
[[nodiscard]] INRUSH_API std::string format_bytes(std::uint64_t bytes);
// Text from a checkpoint, made safe for a terminal: control characters, quotes, backslashes and bytes that
// are not UTF-8 become \xNN; longer text is cut and ends with "...".
[[nodiscard]] INRUSH_API std::string escape_text(std::string_view text, std::size_t size_max = 200);

}  // namespace inrush::inline v0
