// Who waits for what in one load: which pieces may be read, which tensors are complete, which were taken. The
// consumer's thread and the thread that runs the path meet here and nowhere else. Holds no resource but the
// slabs' memory.
#pragma once

#include <inrush/loader.hpp>
#include <inrush/plan.hpp>

#include "base/clock.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace inrush::engine {

// The memory of one slab.
struct SlabMemory {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;
  std::shared_ptr<void>
      place_owner;  // `owner` where reads may land in it: host memory that the engine allocated
};

class LoadState {
 public:
  // `plan` must outlive it. `window_bytes_max`: of LoadRequest.
  LoadState(const Plan& plan, std::uint64_t window_bytes_max);

  // --- on the consumer's thread ---

  struct Taken {
    std::uint32_t placement = 0;
    SlabMemory memory;  // empty for a tensor without bytes
  };

  // The next slab to allocate now, in order, if the window has room. Never a group of targets: those count
  // against no window and are given by allocated() all the same.
  [[nodiscard]] std::optional<std::uint32_t> slab_to_allocate() const;
  [[nodiscard]] bool is_allocated(std::uint32_t slab) const;
  [[nodiscard]] bool all_allocated() const;
  // Before the path runs: memory for the first slab will come, or the load fails, so its pieces may be read
  // meanwhile. No other slab can have that: it may have to wait until tensors are taken.
  void promise_first_slab();
  void allocated(std::uint32_t slab, SlabMemory memory);
  // The next complete tensor in order of arrival; nothing if none is complete. Rethrows what ended the load.
  [[nodiscard]] std::optional<Taken> take_next();
  // The same for all that are complete, within the limits.
  [[nodiscard]] std::vector<Taken> take_ready(const TakeLimits& limits);
  // The same for one placement that was not taken yet.
  [[nodiscard]] std::optional<Taken> take(std::uint32_t placement);
  [[nodiscard]] bool is_taken(std::uint32_t placement) const;
  [[nodiscard]] bool all_taken() const;
  // Every placement was taken and the path has ended. Rethrows what ended the load.
  [[nodiscard]] bool finished() const;
  // Whether it ended, or is about to end, with an error.
  [[nodiscard]] bool has_failed() const;
  // The placement's pieces are read before all others.
  void prefer(std::uint32_t placement);
  // Block until take_next() or take() has something to give or the load ended, at most until `until`.
  void wait_for_next(Clock::time_point until);
  void wait_for(std::uint32_t placement, Clock::time_point until);
  // The load fails on the consumer's side: from now on take_next(), take() and finished() throw this, and the
  // path gets no further piece.
  void fail(std::exception_ptr error);
  // Of a slab, for as long as not all of its tensors were taken; empty before it is allocated. Any thread.
  [[nodiscard]] SlabMemory memory_of(std::uint32_t slab) const;
  // Where the load has failed: placements of targets of which a piece was given out. Any thread.
  [[nodiscard]] std::vector<std::uint32_t> overwritten_targets() const;

  // --- on the path's thread ---

  struct PieceToRead {
    std::uint32_t piece = 0;
    std::byte* slab = nullptr;  // null: promised
    std::shared_ptr<void> place_owner;
  };

  // The next piece whose slab is allocated or promised.
  [[nodiscard]] std::optional<PieceToRead> take_piece();
  // Every piece was given out.
  [[nodiscard]] bool pieces_exhausted() const;
  void wait_for_piece(Clock::time_point until);
  // Until the memory that was promised is there, or the load has failed.
  void wait_for_first_slab(Clock::time_point until);
  // Returns how many tensors became complete with this piece.
  std::uint64_t arrived(std::uint32_t piece);
  // The path fails: nothing more is handed out, and ended() follows with the error.
  void seal();
  // The path has ended; `error` says why if it failed. The first error of the load stays.
  void ended(std::exception_ptr error);

 private:
  struct SlabState {
    SlabMemory memory;
    bool is_allocated = false;
    std::uint32_t next_piece = 0;       // first that may not have been given out
    std::uint32_t placements_left = 0;  // not yet taken
    std::uint64_t held_bytes = 0;       // allocated, less what was taken
  };

  [[nodiscard]] std::optional<Taken> take_next_locked();
  [[nodiscard]] Taken take_locked(std::uint32_t placement);
  [[nodiscard]] bool has_piece_locked();

  const Plan& plan_;
  const std::uint64_t window_bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable progress_;  // for the consumer
  std::condition_variable pieces_;    // for the path
  std::vector<SlabState> slabs_;
  std::vector<std::uint32_t> pieces_left_;  // by placement
  std::vector<bool> taken_;                 // by placement
  std::vector<bool> given_;                 // by piece
  std::deque<std::uint32_t>
      ready_;  // complete placements in order of arrival; those taken by name are skipped later
  std::deque<std::uint32_t> preferred_;  // pieces
  std::set<std::uint32_t> open_slabs_;   // allocated, with pieces that were not given out
  std::uint32_t next_slab_ = 0;          // to allocate
  std::uint64_t given_count_ = 0;
  std::uint64_t taken_count_ = 0;
  std::uint64_t held_bytes_ = 0;
  bool sealed_ = false;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace inrush::engine
