// The staging ring: slots of huge-page host memory. A slot is faulted by its first read and pinned at its
// first copy, so a small model pays for the slots that it uses. Kept alive by its lease and by every read
// that targets it.
#pragma once

#include "base/fallbacks.hpp"
#include "base/host_pages.hpp"
#include "gpu/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace inrush::engine {

struct RingShape {
  std::uint64_t slot_bytes = 0;  // a multiple of the page size
  std::uint32_t slot_count = 0;

  bool operator==(const RingShape&) const = default;
};

class Ring {
 public:
  explicit Ring(RingShape shape);

  [[nodiscard]] RingShape shape() const noexcept { return shape_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return pages_.bytes(); }
  // The slot's memory, which from now on counts as used.
  [[nodiscard]] std::span<std::byte> use_slot(std::uint32_t index) noexcept;
  // Slots of one group are pinned by one call: a copy must not span two.
  [[nodiscard]] std::uint32_t pin_group(std::uint32_t index) const noexcept;
  // Pins the slot, with its group, on its first call. After a refusal the ring stays as it is: copies from it
  // are slower, not wrong.
  void pin_slot(std::uint32_t index, Gpu& gpu);
  void pin_all(Gpu& gpu);
  // Records what was refused: huge pages, pinned memory. For each load that uses the ring.
  void report_refusals(Fallbacks& fallbacks) const;
  [[nodiscard]] std::uint64_t pinned_bytes() const noexcept;
  // Of slots that were ever used: host memory that the ring really takes.
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;

 private:
  [[nodiscard]] std::span<std::byte> slot_memory(std::uint32_t index) const noexcept;
  [[nodiscard]] std::uint64_t group_bytes() const noexcept;

  RingShape shape_;
  HostPages pages_;
  std::vector<bool> used_;                   // by slot
  std::string pin_refusal_;                  // empty: none so far
  std::vector<std::shared_ptr<void>> pins_;  // by group; released before pages_
};

}  // namespace inrush::engine
