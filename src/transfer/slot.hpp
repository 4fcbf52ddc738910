// A slot of a run and the piece that is on its way through it.
#pragma once

#include "storage/file.hpp"
#include "transfer/transfer_path.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace inrush::engine {

struct Slot {
  Work work;
  std::shared_ptr<const File> reader;  // the file itself, or as cuFile reads it
  ReadMode mode = ReadMode::buffered;
  bool in_place = false;
  std::uint64_t read_offset =
      0;                         // file position of target[0]: the piece's own, rounded down for direct reads
  std::uint64_t need_bytes = 0;  // until the end of the piece
  std::uint64_t filled_bytes = 0;
  std::span<std::byte> target;    // as long as the read may be
  std::uint64_t asked_bytes = 0;  // by the read under way
  std::uint32_t stalled_attempts = 0;
  Arrival arrival;
};

// Into a slot that its way of reading brings along.
inline bool is_own(ReadMode mode) { return mode == ReadMode::device || mode == ReadMode::mapped; }

inline Route route_of(const Slot& slot) {
  switch (slot.mode) {
    case ReadMode::buffered:
      return slot.in_place ? Route::cached_place : Route::cached_ring;
    case ReadMode::populate:
      return slot.in_place ? Route::populated_place : Route::populated_ring;
    case ReadMode::direct:
      return Route::direct_ring;
    case ReadMode::mapped:
      return Route::cached_window;
    case ReadMode::device:
      break;
  }
  return Route::cufile;
}

}  // namespace inrush::engine
