// A way to bring the pieces of a plan to their slabs. The path asks its sink for work and tells it what has
// arrived.
#pragma once

#include <inrush/plan.hpp>

#include "base/clock.hpp"
#include "storage/file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace inrush::engine {

// Which way one piece came, from what happened.
enum class Route : std::uint8_t {
  cached_ring,      // page cache -> ring
  populated_ring,   // storage -> page cache -> ring
  direct_ring,      // O_DIRECT -> ring
  cached_place,     // page cache -> in place
  populated_place,  // storage -> page cache -> in place
  cached_window,    // page cache -> device, without a copy by the CPU
  cufile,           // into device memory by cuFile; which way, its counters say
};

inline constexpr std::size_t route_count = 7;
[[nodiscard]] std::string_view route_name(Route route) noexcept;

// A piece and what is needed to move it.
struct Work {
  std::uint32_t piece = 0;
  std::shared_ptr<const File> file;
  std::byte* slab =
      nullptr;  // device address of the slab's first byte; null: ask for it once bytes are there
  std::shared_ptr<void>
      place_owner;  // set where reads may land in the slab itself: host memory that this keeps alive
};

struct Arrival {
  std::uint32_t piece = 0;
  Route route = Route::cached_ring;
  std::uint64_t read_bytes = 0;  // that reads returned, with alignment and rows that nobody needs
  std::uint64_t retry_count = 0;
  std::uint64_t read_count = 0;
  std::uint64_t copy_count = 0;  // operations of the device
};

// Called by the thread that runs the path.
class TransferSink {
 public:
  virtual ~TransferSink() = default;
  // The next piece that may be moved now. Nothing: ask again later, or never if exhausted(). Throws what
  // opening a file throws.
  [[nodiscard]] virtual std::optional<Work> take() = 0;
  [[nodiscard]] virtual bool exhausted() const = 0;
  // Blocks until take() may have something, at most until `until`.
  virtual void wait_for_work(Clock::time_point until) = 0;
  // The device address of the first byte of the piece's slab; null while it is being allocated, which then
  // happens or ends the load. Reads into the slab itself need it with their Work.
  [[nodiscard]] virtual std::byte* slab_of(std::uint32_t piece) const = 0;
  // Blocks until that changes for one of them, at most until `until`.
  virtual void wait_for_slab(Clock::time_point until) = 0;
  // What an error about the piece should name besides its file and range: `tensor "a" and 3 more`.
  [[nodiscard]] virtual std::string describe(std::uint32_t piece) const = 0;
  // A first read of the load has returned.
  virtual void first_byte() = 0;
  // Every copy of the piece is queued on the stream, or its bytes are in place.
  virtual void submitted(std::uint32_t piece) = 0;
  // All bytes of the piece are on the device. May throw: the load then ends.
  virtual void arrived(const Arrival& arrival) = 0;
  // Reads that were left behind after a deadline or a cancel; what they write to must not be used again.
  virtual void orphaned(std::uint64_t count) noexcept = 0;
};

class TransferPath {
 public:
  virtual ~TransferPath() = default;
  // Moves all that the sink hands out. Ends with nothing in flight (orphans apart), however it ends; the
  // first error wins. Throws storage_failed, corrupt_checkpoint, device_failed, out_of_memory, cancelled,
  // timed_out.
  virtual void run(const Plan& plan, TransferSink& sink) = 0;
};

}  // namespace inrush::engine
