#include "plan/ring_choice.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace inrush::engine {

namespace {

// Measured on H200 machines with 16 CPUs, 12 readers x 2 slots, as parts of the pinned limit: pieces of 4 MiB
// 0.81 to 0.93; 8 MiB 0.81 to 0.88 on a quiet host and 0.64 to 0.80 where neighbours share the last-level
// cache, which a ring of 192 MiB leaves; 2 MiB 0.71 to 0.85. With one to four CPUs the prototype was as good
// with 2 MiB x 3 slots, and the ring stays in their caches. With 4 CPUs, 4 readers beside the
// path's thread came to 0.37 to 0.43 of the pinned limit, 3 readers and that thread, which reads too, to 0.45
// to 0.52; four threads that read and copy on their own, in the same minutes, to 0.49 to 0.56. Twice the
// slots: no better.
constexpr std::uint32_t few_cpus_max = 4;
constexpr std::uint64_t few_cpus_piece_bytes = 2ULL << 20;
constexpr std::uint32_t few_cpus_slots_per_reader = 3;
constexpr std::uint32_t slots_per_reader = 2;
// A virtual disk, io_uring, GB/s: reads of 4 MiB 1.9 and 2.2, of 8 MiB 2.2 and 2.4, of 16 MiB 2.2 and 2.6,
// but the first byte of those comes 0.1 s later.
constexpr std::uint64_t direct_piece_factor = 2;
constexpr std::uint64_t direct_piece_bytes_floor = 4ULL << 20;
constexpr std::uint32_t direct_slots = 16;
// H200, registering and copying from place, GB/s with 1 CPU: windows of 8 MiB 14 to 16, of 32 MiB 17 to 20,
// of 64 MiB 18 to 20; copying into a ring 6.4, with 2 CPUs 12, with 4 (where windows still have 20) 22.
constexpr std::uint32_t window_cpus_max = 2;
constexpr std::uint64_t window_bytes_max = 32ULL << 20;
constexpr std::uint64_t window_bytes_floor = 4ULL << 20;
constexpr std::uint32_t window_ring_slots = 2;
// A short load is split further, so that every reader has work and the last pieces end together, but not
// below the size where copies to the device lose speed.
constexpr std::uint64_t pieces_per_reader_min = 2;
constexpr std::uint64_t piece_bytes_floor = 1ULL << 20;
// One read(2) moves at most 2 GiB less a page.
constexpr std::uint64_t piece_bytes_ceiling = 1ULL << 30;
constexpr std::uint64_t block_bytes = 4096;
// Slots fill whole huge pages or divide one: pages are faulted and pinned as wholes, and no slot takes a page
// more than it uses.
constexpr std::uint64_t huge_page_bytes = 2ULL << 20;

std::uint64_t slot_bytes_of_window(std::uint64_t window_bytes) {
  return window_bytes <= huge_page_bytes ? std::bit_ceil(window_bytes)
                                         : round_up(window_bytes, huge_page_bytes);
}

// What a read by whole blocks takes.
std::uint64_t window_bytes_of(const Piece& piece) {
  return round_up(piece.offset + piece.size_bytes, block_bytes) - round_down(piece.offset, block_bytes);
}

std::uint32_t cpus_of(const Machine& machine) {
  return std::max(1U, machine.cpu_count / std::max(1U, machine.loading_process_count));
}

std::uint64_t piece_bytes_for(std::uint64_t piece_bytes_max, std::uint64_t wanted_bytes,
                              std::uint32_t reader_count) {
  std::uint64_t piece_bytes = std::clamp<std::uint64_t>(piece_bytes_max, 1, piece_bytes_ceiling);
  while (piece_bytes / 2 >= piece_bytes_floor &&
         wanted_bytes / piece_bytes < pieces_per_reader_min * reader_count) {
    piece_bytes /= 2;
  }
  return piece_bytes > block_bytes ? round_down(piece_bytes, block_bytes) : piece_bytes;
}

// Where nobody asked for small ones, and the budget has room for as many as keep a drive busy.
bool reads_large_pieces(const Machine& machine, PageCachePolicy cold) {
  return cold == PageCachePolicy::bypass && machine.piece_bytes_max >= direct_piece_bytes_floor &&
         machine.staging_bytes_max / direct_slots >=
             slot_bytes_for(machine.piece_bytes_max * direct_piece_factor);
}

// Gives up slots first, then readers, then the size of the pieces.
RingChoice within_budget(RingChoice ring, std::uint64_t staging_bytes_max) {
  const std::uint64_t affordable_count = staging_bytes_max / slot_bytes_for(ring.piece_bytes);
  if (affordable_count >= ring.slot_count) return ring;
  ring.slot_count = static_cast<std::uint32_t>(std::max<std::uint64_t>(affordable_count, 2));
  // A slot must be left to fill while another is copied from.
  ring.reader_count = std::min(ring.reader_count, ring.slot_count - 1);
  if (affordable_count >= 2) return ring;
  const std::uint64_t half_bytes = staging_bytes_max / 2;
  if (half_bytes < block_bytes) {
    throw Error(ErrorCode::invalid_request,
                fmt::format("the staging budget of {} has no room for two slots: allow at least {}",
                            bytes_text(staging_bytes_max), bytes_text(2 * block_bytes)));
  }
  ring.piece_bytes =
      half_bytes < huge_page_bytes ? std::bit_floor(half_bytes) : round_down(half_bytes, huge_page_bytes);
  return ring;
}

}  // namespace

// Pieces are cut at multiples of their size, so only sizes that are not whole blocks reach into a further
// one.
std::uint64_t slot_bytes_for(std::uint64_t piece_bytes) {
  const bool is_whole = piece_bytes % block_bytes == 0;
  return slot_bytes_of_window(is_whole ? piece_bytes : round_up(piece_bytes, block_bytes) + block_bytes);
}

RingChoice choose_ring(const Machine& machine, std::uint64_t wanted_bytes, PageCachePolicy cold) {
  const std::uint32_t cpu_count = cpus_of(machine);
  const bool has_few_cpus = cpu_count <= few_cpus_max;
  RingChoice ring;
  ring.reader_count = std::min(cpu_count, std::max(1U, machine.reader_count_max));
  ring.slot_count = ring.reader_count * (has_few_cpus ? few_cpus_slots_per_reader : slots_per_reader);
  std::uint64_t piece_bytes_max =
      has_few_cpus ? std::min(machine.piece_bytes_max, few_cpus_piece_bytes) : machine.piece_bytes_max;
  if (reads_large_pieces(machine, cold)) {
    piece_bytes_max = machine.piece_bytes_max * direct_piece_factor;
    ring.slot_count = std::min(ring.slot_count, std::max(direct_slots, ring.reader_count + 1));
  }
  ring.piece_bytes = piece_bytes_for(piece_bytes_max, wanted_bytes, ring.reader_count);
  ring = within_budget(ring, machine.staging_bytes_max);
  ring.path_reads = has_few_cpus && ring.reader_count == cpu_count;
  return ring;
}

bool takes_windows(const Machine& machine) {
  return machine.page_cache_windows && cpus_of(machine) <= window_cpus_max &&
         machine.piece_bytes_max >= window_bytes_floor &&
         machine.staging_bytes_max >= window_ring_slots * slot_bytes_for(window_bytes_max);
}

RingChoice choose_window_ring(const Machine& machine, std::uint64_t wanted_bytes) {
  RingChoice ring;
  ring.reader_count = std::min(cpus_of(machine), std::max(1U, machine.reader_count_max));
  ring.slot_count = window_ring_slots;
  ring.piece_bytes = window_bytes_max;
  while (ring.piece_bytes > window_bytes_floor &&
         wanted_bytes / ring.piece_bytes < pieces_per_reader_min * ring.reader_count)
    ring.piece_bytes /= 2;
  return ring;
}

void fit_ring(const RingChoice& ring, Plan& plan) {
  if (plan.pieces.empty()) {
    plan.reader_count = 1;
    plan.slot_count = 0;
    plan.slot_bytes = 0;
    return;
  }
  const auto piece_count = static_cast<std::uint32_t>(plan.pieces.size());
  std::uint64_t window_bytes = 0;
  for (const Piece& piece : plan.pieces) window_bytes = std::max(window_bytes, window_bytes_of(piece));
  plan.reader_count = std::min(ring.reader_count, piece_count);
  plan.path_reads = ring.path_reads && plan.reader_count > 1;
  plan.slot_count = std::min(ring.slot_count, std::max(2U, piece_count));
  plan.slot_bytes = slot_bytes_of_window(window_bytes);
}

}  // namespace inrush::engine
