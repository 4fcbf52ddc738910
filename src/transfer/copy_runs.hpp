// Filled slots on their way to the device. Those that became neighbours while earlier copies were under way
// go together: as one copy, since the copy engine pauses between copies, or, where they scatter, by one
// kernel. One thread at a time.
#pragma once

#include "gpu/gpu.hpp"

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace inrush::engine {

// A slot of host memory, or of device memory, that a read has filled.
struct FilledSlot {
  std::uint32_t index = 0;
  std::uint32_t pin_group = 0;  // a copy keeps within memory that was pinned by one call
};

struct StartedSlot {
  std::uint32_t index = 0;
  std::uint64_t operation_count = 0;  // that the device was given; of slots that went as one the first has it
};

class CopyRuns {
 public:
  explicit CopyRuns(CopyStream& stream) : stream_(stream) {}

  // `copies` bring the slot's bytes to their places; they are queued by start().
  void add(FilledSlot slot, std::span<const Copy> copies);
  // Slots were added that start() has not queued.
  [[nodiscard]] bool has_waiting() const noexcept { return !waiting_.empty(); }
  // Whether what waits would better wait on for neighbours: enough copies are under way.
  [[nodiscard]] bool is_busy() const noexcept;
  // Queues the copies of all that waits. The result lasts until the next call. Throws device_failed.
  std::span<const StartedSlot> start();
  [[nodiscard]] bool has_running() const noexcept { return !running_.empty(); }
  // Slots whose copies have ended since, in order. As start().
  std::span<const std::uint32_t> take_ended();

 private:
  struct Waiting {
    FilledSlot slot;
    std::size_t first_copy = 0;
    std::size_t copy_count = 0;
  };
  struct Running {
    std::uint64_t ticket = 0;
    std::vector<std::uint32_t> slots;
  };

  [[nodiscard]] std::span<const Copy> copies_of(const Waiting& waiting) const;
  [[nodiscard]] bool takes_in(const Waiting& next);

  CopyStream& stream_;
  std::vector<Waiting> waiting_;
  std::vector<Copy> copies_;  // of all that waits
  std::vector<Copy> run_;     // what goes together
  std::deque<Running> running_;
  std::vector<StartedSlot> started_;
  std::vector<std::uint32_t> ended_;
};

}  // namespace inrush::engine
