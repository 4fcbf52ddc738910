// The state of the fake library: one for the process, as the real one has. Everything in it is guarded by
// `mutex`, which no read holds while it moves bytes.
#pragma once

#include "fakes/fake_cufile.hpp"
#include "gpu/cufile_table.hpp"

#include <sys/types.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#define FAKE_CUFILE_EXPORT extern "C" __attribute__((visibility("default")))

namespace inrush::fakes::cufile {

using engine::CufileStatus;
using Lock = std::unique_lock<std::mutex>;

// Codes of cuFile that gpu/cufile_table.hpp has no name for.
namespace code {
inline constexpr int io_not_supported = 5008;
inline constexpr int pointer_invalid = 5012;
inline constexpr int pointer_range = 5014;
inline constexpr int mapping_range = 5017;
inline constexpr int file_type = 5018;
inline constexpr int open_flag = 5019;
inline constexpr int invalid_value = 5022;
inline constexpr int already_registered = 5023;
inline constexpr int not_registered = 5024;
inline constexpr int handle_not_registered = 5027;
inline constexpr int handle_already_registered = 5028;
}  // namespace code

inline constexpr std::uint64_t block_bytes = 4096;  // what is aligned to it goes straight

enum class Effect : std::uint8_t { status, errno_value, negative_code, shorten, zero, overlong, corrupt };

struct Fault {
  std::string entry;
  Effect effect = Effect::status;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t value = 0;
  std::uint64_t seen = 0;
};

// What befalls one read or write. At most one way to fail.
struct Fate {
  Effect failure = Effect::status;
  int error = 0;
  bool is_overlong = false;
  bool is_corrupt = false;
  std::uint64_t bytes = 0;  // that it moves
  std::chrono::microseconds delay{0};
};

// What tests asked for.
struct Steering {
  CufilePersonality personality = CufilePersonality::p2pdma;
  bool has_udev_record = true;
  bool closes_descriptor_0 = false;
  bool writes_log = false;
  bool prints = false;
  bool logs = false;
  bool holds_reads = false;
  std::uint32_t read_microseconds = 0;
  std::uint32_t delay_max = 0;
  std::uint32_t short_per_mille = 0;
  std::mt19937_64 random{1};
  std::vector<Fault> faults;
  std::vector<std::string> hanging;  // entries
  std::vector<std::string> crashing;
  // Of the first device of the fake libcuda.
  std::array<unsigned char, 16> uuid = {0xF4, 0xCE, 0x00, 0x00, 0x00, 0x11, 0x22, 0x33,
                                        0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB};
};

// What the driver goes by, once it is open.
struct Settings {
  bool allows_compat = true;
  bool forces_compat = false;
  bool uses_p2pdma = true;  // false in the real library; here for tests that set no parameters
};

struct RegisteredFile {
  int descriptor = -1;
  bool is_direct = false;
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t running = 0;
};

struct RegisteredMemory {
  std::uint64_t bytes = 0;
  std::uint64_t running = 0;
};

struct Driver {
  long opens = 0;
  std::map<int, bool> staged;  // parameters by number
  std::string staged_log_folder;
  Settings settings;
  int stats_level = 0;
  bool is_counting = false;
  engine::CufileGpuCounters counters{};
  std::map<engine::CufileHandle, std::shared_ptr<RegisteredFile>> files;
  std::map<const std::byte*, std::shared_ptr<RegisteredMemory>> buffers;
  std::uint64_t peak_registered_bytes = 0;
};

struct Seen {
  std::map<std::string, std::uint64_t, std::less<>> entry_calls;
  std::uint64_t fault_hits = 0;
  std::uint64_t misuses = 0;
  std::string last_misuse;
};

struct Library {
  // The driver opens at the first call that needs it. 0, or why not.
  [[nodiscard]] int require_open();
  // One owner more. A first open that cannot be, or that `fault` forbids, forgets the parameters.
  [[nodiscard]] int open(int fault);
  void close();
  // Whether a file can go straight on this machine, before one looks at the file.
  [[nodiscard]] bool can_go_direct() const;
  // Silent or liar.
  [[nodiscard]] bool pretends() const;
  int misuse(std::string_view entry, std::string_view what, int answer);
  [[nodiscard]] FakeCufileLive live() const;
  void reset();

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t running = 0;       // reads and writes
  std::uintptr_t last_handle = 0;  // handed out once: whoever uses an old one is found out
  Steering steering;
  Driver driver;
  Seen seen;
};

Library& library();

// Counts the call; does not return where the entry hangs or crashes. What a fault makes it answer, else 0.
[[nodiscard]] int enter(std::string_view entry);
[[nodiscard]] CufileStatus status_of(int answer);

// What befalls a read or write of `bytes`. Counts it. With the mutex held.
[[nodiscard]] Fate fate_of(Library& all, std::string_view entry, std::uint64_t bytes);

// From parameters, then the environment, then the file that the environment names. With the mutex held.
[[nodiscard]] Settings settings_now(const Driver& driver);
[[nodiscard]] std::string log_path_now(const Driver& driver);

// With the mutex held.
void apply_words(Steering& steering, std::string_view words);

}  // namespace inrush::fakes::cufile
