// How tests steer the fake libcuda (tests/fakes/libcuda): two devices over host memory, in this process. One
// FakeCuda a test: it loads the library, starts from a clean slate and leaves one behind. All controls from
// any thread.
#pragma once

#include "gpu/cuda_table.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace inrush::fakes {

// What is alive in the driver. Equal before and after: nothing leaked.
struct FakeCudaLive {
  std::uint64_t contexts = 0;
  std::uint64_t allocations = 0;
  std::uint64_t allocated_bytes = 0;
  std::uint64_t registrations = 0;
  std::uint64_t registered_bytes = 0;
  std::uint64_t streams = 0;
  std::uint64_t events = 0;
  std::uint64_t modules = 0;

  bool operator==(const FakeCudaLive&) const = default;
};

// Entries go by their names without version ("cuMemAlloc"); counting starts with 1 at the call of the
// control.
struct FakeCudaControl {
  // No faults, no limits, no misuse, the first seed. What is alive stays.
  void (*reset)();
  void (*set_seed)(std::uint64_t seed);
  // Copies become visible up to this long after they could; 100 us at first.
  void (*set_delay_max)(std::uint32_t microseconds);
  void (*set_device_bytes)(std::uint64_t bytes);      // of each device, 8 GiB at first
  void (*set_pinned_bytes_max)(std::uint64_t bytes);  // of the process, no limit at first
  // Also of its symbols: cuGetProcAddress finds what a driver of that version has (12000, 12080, 13000).
  void (*set_driver_version)(int version);
  void (*set_device_count)(int count);
  void (*pack_allocations)();   // from now on each begins where the one before it ends, at multiples of 256
  void (*hide_proc_address)();  // cuGetProcAddress finds nothing until reset()
  void (*hold_contexts)();  // cuDevicePrimaryCtxRetain does not return before let_contexts_go() or reset()
  void (*let_contexts_go)();
  std::uint64_t (*waiting_contexts)();  // calls that are held so now

  // The n-th call of that entry answers `result` and does nothing (calls that free still free).
  void (*fail)(const char* entry, std::uint64_t nth, engine::CuResult result);
  // All calls of the entry from the n-th on; null: all entries of a device, which is how a lost device looks.
  void (*fail_from)(const char* entry, std::uint64_t nth, engine::CuResult result);
  // The n-th copy is accepted and fails while it runs; its context answers `result` from then on.
  void (*fail_copy)(std::uint64_t nth, engine::CuResult result);

  // A held stream runs nothing until it is let go. Null: the legacy default stream of the current context.
  void (*hold)(void* stream);
  void (*let_go)(void* stream);
  // Blocks until every stream is out of work, held, or waiting for an event of another.
  void (*settle)();

  FakeCudaLive (*live)();
  std::uint64_t (*call_count)();
  // Calls that a careful program never makes: no context, freed memory, foreign events, memory freed under a
  // copy in flight.
  std::uint64_t (*misuse_count)();
  const char* (*last_misuse)();   // until the next misuse
  std::uint64_t (*copy_count)();  // copies that were queued
  engine::CuContext (*current_context)();

  // Calls of that entry so far, in the life of the process.
  std::uint64_t (*entry_count)(const char* entry);
  // Faults of the test that met a call or a copy, and allocations and registrations above the limits.
  std::uint64_t (*fault_count)();

  // What another device does to device memory (the fake libcufile reads files into it): at once, ordered with
  // no stream. 0 where the range is not inside one live block.
  int (*write_device)(engine::CuAddress target, const void* source, std::uint64_t bytes);
  int (*read_device)(void* target, engine::CuAddress source, std::uint64_t bytes);
};

class FakeCuda {
 public:
  explicit FakeCuda(const std::string& path) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    const auto control =
        reinterpret_cast<const FakeCudaControl* (*)()>(::dlsym(library, "fake_cuda_control"));
    if (control == nullptr) throw std::runtime_error(path + " is not the fake");
    control_ = control();
    control_->reset();
  }
  ~FakeCuda() { control_->reset(); }
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const FakeCudaControl* operator->() const { return control_; }

 private:
  const FakeCudaControl* control_;
};

}  // namespace inrush::fakes
