// How the ring of a load is shaped: how many readers, slots and bytes a slot.
#pragma once

#include <inrush/plan.hpp>

#include <cstdint>

namespace inrush::engine {

struct RingChoice {
  std::uint32_t reader_count = 1;
  std::uint32_t slot_count = 2;
  std::uint64_t piece_bytes = 0;  // largest that a slot takes
  bool path_reads = false;        // the thread that runs the path is one of the readers

  bool operator==(const RingChoice&) const = default;
};

// Room for a piece that is read by whole blocks: a power of two up to a huge page, whole huge pages above.
[[nodiscard]] std::uint64_t slot_bytes_for(std::uint64_t piece_bytes);
// For a load of `wanted_bytes`, before the pieces are known; `cold` is how what is not in memory is read.
// Throws invalid_request where the staging budget has no room for two slots.
[[nodiscard]] RingChoice choose_ring(const Machine& machine, std::uint64_t wanted_bytes,
                                     PageCachePolicy cold);
// Whether the machine allows them, few CPUs make windows over the page cache the faster way, nobody asked for
// smaller pieces, and the budget has room for theirs on the way that is left where a window is refused.
[[nodiscard]] bool takes_windows(const Machine& machine);
// The ring of such a load.
[[nodiscard]] RingChoice choose_window_ring(const Machine& machine, std::uint64_t wanted_bytes);
// Sets reader_count, slot_count and slot_bytes of a plan that has its pieces: never more than they can use.
void fit_ring(const RingChoice& ring, Plan& plan);

}  // namespace inrush::engine
