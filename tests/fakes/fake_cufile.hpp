// How tests steer the fake libcufile (tests/fakes/libcufile): one driver over ordinary files, in this
// process, which reads into host memory or into memory of the fake libcuda. One FakeCufile a test and a
// library: it loads the library, starts from a clean slate and leaves one behind. All controls from any
// thread.
#pragma once

#include "gpu/cufile_table.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace inrush::fakes {

// What kind of machine the library finds itself on.
enum class CufilePersonality : std::uint8_t {
  p2pdma,  // reads go straight, unless the parameter use_pci_p2pdma forbids it
  nvfs,    // reads go straight
  compat,  // all by POSIX; the driver does not open where compat mode is forbidden
  silent,  // takes every strict setting and reads by POSIX all the same; its counters say so
  liar,    // as silent, and its counters claim P2P reads
  mute,    // as p2pdma, and its counters never move
};

// The three shapes in which cuFileRead and cuFileWrite fail.
enum class CufileFailure : std::uint8_t {
  errno_value,    // -1, errno of the system
  errno_code,     // -1, errno above 5000
  negative_code,  // the code of cuFile itself, negative
};

// The driver's own code that goes with cufile_cuda_driver_error.
inline constexpr engine::CuResult fake_cufile_cuda_result = engine::CuResult::out_of_memory;

// What is alive in the library. Equal before and after: nothing leaked.
struct FakeCufileLive {
  std::uint64_t driver_opens = 0;
  std::uint64_t handles = 0;
  std::uint64_t buffers = 0;
  std::uint64_t registered_bytes = 0;
  std::uint64_t running_reads = 0;  // held ones too, and writes

  bool operator==(const FakeCufileLive&) const = default;
};

// Entries go by their names without version ("cuFileDriverClose"); the n-th call is counted from 1 at the
// call of the control, and of the reads each fault counts all.
struct FakeCufileControl {
  // Everything as at first: p2pdma, a udev record, no faults, nothing alive, all counts 0. Lets held reads go
  // and waits for those that run.
  void (*reset)();
  void (*set_personality)(CufilePersonality personality);
  void (*set_udev_record)(int is_there);         // 0: no file can be registered, as in bare containers
  void (*set_uuid)(const unsigned char* bytes);  // 16, of the GPU that is counted
  void (*write_log)();                   // from now on a driver open leaves cufile.log in the current folder
  void (*close_descriptor_0)(int does);  // whether a driver open that fails closes descriptor 0
  // Words of the environment variable FAKE_CUFILE, see libcufile/words.cpp.
  void (*apply_words)(const char* words);

  // The n-th call of that entry answers `code` and does nothing (calls that free still free).
  void (*fail)(const char* entry, std::uint64_t nth, int code);
  void (*fail_from)(const char* entry, std::uint64_t nth, int code);
  void (*fail_read)(std::uint64_t nth, CufileFailure shape, int value);
  void (*fail_read_from)(std::uint64_t nth, CufileFailure shape, int value);
  void (*short_read)(std::uint64_t nth, std::uint64_t bytes);  // moves that many, were it more
  void (*short_write)(std::uint64_t nth, std::uint64_t bytes);
  // That many of 1000 reads move less than asked, mostly multiples of 4096 and never 0.
  void (*set_short_chance)(std::uint64_t seed, std::uint32_t per_mille);
  void (*zero_read)(std::uint64_t nth);               // answers 0, as at the end of the file
  void (*overlong_read)(std::uint64_t nth);           // claims 4096 bytes more than were asked
  void (*corrupt_read)(std::uint64_t nth);            // claims success; every 64th byte is another
  void (*set_delay_max)(std::uint32_t microseconds);  // of a read, drawn anew for each; 0 at first
  void (*hold_reads)();                               // they wait before they touch the file
  void (*let_reads_go)();

  FakeCufileLive (*live)();
  std::uint64_t (*peak_registered_bytes)();
  std::uint64_t (*entry_count)(const char* entry);
  std::uint64_t (*fault_count)();  // faults that met a call, and reads shortened by chance
  // Calls that a careful program never makes: reads with unknown handles, what is let go while a read uses
  // it, descriptors and memory gone before their registration, a driver closed with something alive.
  std::uint64_t (*misuse_count)();
  const char* (*last_misuse)();  // until the next misuse
};

class FakeCufile {
 public:
  explicit FakeCufile(const std::string& path) {
    library_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
    const auto control =
        reinterpret_cast<const FakeCufileControl* (*)()>(::dlsym(library_, "fake_cufile_control"));
    if (control == nullptr) throw std::runtime_error(path + " is not the fake");
    control_ = control();
    control_->reset();
  }
  ~FakeCufile() { control_->reset(); }
  FakeCufile(const FakeCufile&) = delete;
  FakeCufile& operator=(const FakeCufile&) = delete;

  const FakeCufileControl* operator->() const { return control_; }
  [[nodiscard]] void* library() const { return library_; }

 private:
  void* library_ = nullptr;
  const FakeCufileControl* control_ = nullptr;
};

}  // namespace inrush::fakes
