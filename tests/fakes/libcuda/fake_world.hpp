// The state of the fake driver: one for the process, as the real one has. Everything in it is guarded by
// `mutex`.
#pragma once

#include "fakes/fake_cuda.hpp"
#include "gpu/copy_kernel.hpp"
#include "gpu/cuda_table.hpp"

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace inrush::engine {

struct CuContextObject {
  int device = 0;
  std::uint64_t references = 0;
  CuResult failed = CuResult::success;  // of a copy that failed: the context is beyond use
  std::shared_ptr<CuStreamObject> default_stream;
};

struct CuEventObject {
  CuContext context = nullptr;
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
};

struct CuFunctionObject {
  CuModule module = nullptr;
};

struct CuModuleObject {
  CuContext context = nullptr;
  CuFunctionObject function;
};

}  // namespace inrush::engine

namespace inrush::fakes {

using engine::CuAddress;
using engine::CuContext;
using engine::CuContextObject;
using engine::CuDevice;
using engine::CuEvent;
using engine::CuEventObject;
using engine::CuResult;
using engine::CuStream;
using engine::CuStreamObject;

using Lock = std::unique_lock<std::mutex>;
using EventOwner = std::shared_ptr<CuEventObject>;

struct QueuedCopy {
  const std::byte* source = nullptr;  // null: device memory
  CuAddress source_device = 0;
  std::uint64_t source_pitch = 0;
  CuAddress target = 0;
  std::uint64_t target_pitch = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_count = 1;
  CuResult fate = CuResult::success;
  std::optional<std::byte> fill = {};  // instead of a source
  // Instead of all that: the kernel that copies runs, whose list is read when it runs.
  const engine::CopyRun* runs = nullptr;
  std::uint32_t run_count = 0;

  [[nodiscard]] std::uint64_t source_span() const { return (row_count - 1) * source_pitch + row_bytes; }
  [[nodiscard]] std::uint64_t target_span() const { return (row_count - 1) * target_pitch + row_bytes; }
};

struct QueuedEvent {
  EventOwner event;
  std::uint64_t generation = 0;
};
struct QueuedRecord : QueuedEvent {};
struct QueuedWait : QueuedEvent {};

// Until the word in pinned host memory is `value` or more.
struct QueuedValueWait {
  const std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};

// What the kernel of `launch` copies, by its list as it is now.
std::vector<QueuedCopy> copies_of(const QueuedCopy& launch);

using Queued = std::variant<QueuedCopy, QueuedRecord, QueuedWait, QueuedValueWait>;

// Device memory: its addresses fault when the CPU touches them; the bytes lie elsewhere.
struct Block {
  std::uint64_t bytes = 0;
  int device = 0;
  std::shared_ptr<std::vector<std::byte>> storage;
};

struct Place {
  std::shared_ptr<std::vector<std::byte>> storage;
  std::byte* start = nullptr;
};

struct Fault {
  std::string entry;  // empty: every entry of a device
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t seen = 0;
  CuResult result = CuResult::success;
};

enum class Needs { nothing, initialised, context };

struct World {
  World();

  // What a call must answer before it does anything; success: go on. Entries that free ask require() first,
  // free, and then fault().
  [[nodiscard]] CuResult enter(std::string_view entry, Needs needs);
  [[nodiscard]] CuResult require(std::string_view entry, Needs needs);
  [[nodiscard]] CuResult fault(std::string_view entry);
  CuResult misuse(std::string_view entry, std::string_view what, CuResult answer);

  [[nodiscard]] CuContext current() const;
  // Null where the handle is none of ours. A null handle is the default stream of the current context.
  [[nodiscard]] std::shared_ptr<CuStreamObject> find_stream(CuStream handle);
  [[nodiscard]] EventOwner find_event(CuEvent handle) const;
  // Nothing where the range is not inside one live block of that device.
  [[nodiscard]] Place find_place(CuAddress address, std::uint64_t bytes, int device) const;
  // Whether every byte of the range is in some live block of that device.
  [[nodiscard]] bool is_live(CuAddress address, std::uint64_t bytes, int device) const;
  [[nodiscard]] bool is_registered(const std::byte* start, std::uint64_t bytes) const;
  [[nodiscard]] CuAddress new_address(std::uint64_t bytes);
  [[nodiscard]] std::vector<std::shared_ptr<CuStreamObject>> all_streams() const;
  [[nodiscard]] FakeCudaLive live() const;
  void reset();

  std::mutex mutex;
  std::condition_variable changed;
  bool initialised = false;
  pid_t process = 0;
  std::atomic<std::uint64_t> calls = 0;
  std::map<std::string, std::uint64_t, std::less<>> entry_calls;
  std::uint64_t fault_hits = 0;
  std::uint64_t misuses = 0;
  std::string last_misuse;

  std::uint64_t seed = 1;
  std::uint32_t delay_max = 100;
  std::uint64_t device_bytes = 0;
  std::uint64_t pinned_bytes_max = 0;
  int driver_version = 0;
  int device_count = 0;
  bool proc_address_hidden = false;
  bool is_packed = false;
  bool contexts_held = false;
  std::uint64_t contexts_waiting = 0;
  std::vector<Fault> faults;
  std::uint64_t copies = 0;
  std::map<std::uint64_t, CuResult> failing_copies;  // by number

  std::array<CuContextObject, 2> contexts;
  std::map<CuAddress, Block> blocks;
  std::map<std::byte*, std::uint64_t> registrations;
  std::map<CuStream, std::shared_ptr<CuStreamObject>> streams;
  std::map<CuEvent, EventOwner> events;
  std::map<engine::CuModule, std::shared_ptr<engine::CuModuleObject>> modules;

 private:
  CuAddress next_address_ = 0;
};

World& world();
std::vector<CuContext>& context_stack();  // of this thread

}  // namespace inrush::fakes

namespace inrush::engine {

// Runs what is queued, on a thread of its own. A copy reads its source and shows its bytes at the last legal
// moment: just before an event recorded behind it completes, or when somebody synchronises. Members are
// guarded by World::mutex.
struct CuStreamObject {
  CuStreamObject(CuContext owner, unsigned creation_flags);
  ~CuStreamObject();

  void push(fakes::Queued work);
  // Blocks until all that is queued now has run.
  void drain(fakes::Lock& lock);
  // Ends the thread after the last work. The lock is given up meanwhile.
  void close(fakes::Lock& lock);
  [[nodiscard]] bool is_settled() const { return !busy_ && !can_run(); }
  [[nodiscard]] bool is_empty() const { return queue_.empty() && late_.empty() && !busy_; }
  // Whether a copy that is not done reads from, or writes to, that range.
  [[nodiscard]] bool reads(const std::byte* start, std::uint64_t bytes) const;
  [[nodiscard]] bool writes(CuAddress start, std::uint64_t bytes) const;
  // Whether it waits, now or later, for a word in that range.
  [[nodiscard]] bool waits_in(const std::byte* start, std::uint64_t bytes) const;

  CuContext context;
  unsigned flags;
  bool held = false;

 private:
  template <typename Match>
  [[nodiscard]] bool any_copy(Match&& match) const;
  [[nodiscard]] bool can_run() const;
  void work();
  void run_front(fakes::Lock& lock);
  void run_late(fakes::Lock& lock);

  std::deque<fakes::Queued> queue_;
  std::vector<fakes::QueuedCopy> late_;
  bool busy_ = false;
  bool closing_ = false;
  std::mt19937_64 random_;
  std::thread worker_;
};

}  // namespace inrush::engine
