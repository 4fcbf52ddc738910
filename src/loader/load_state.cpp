#include "loader/load_state.hpp"

#include <algorithm>
#include <utility>

namespace inrush::engine {

LoadState::LoadState(const Plan& plan, std::uint64_t window_bytes_max)
    : plan_(plan),
      window_bytes_max_(window_bytes_max),
      slabs_(plan.slabs.size()),
      pieces_left_(plan.placements.size()),
      taken_(plan.placements.size()),
      given_(plan.pieces.size()) {
  for (const Piece& piece : plan.pieces) {
    for (std::uint32_t i = 0; i < piece.placement_count; ++i) ++pieces_left_[piece.first_placement + i];
  }
  for (std::size_t slab = 0; slab < slabs_.size(); ++slab)
    slabs_[slab].next_piece = plan.slabs[slab].first_piece;
  for (std::uint32_t placement = 0; placement < plan.placements.size(); ++placement) {
    if (plan.placements[placement].size_bytes > 0) {
      ++slabs_[plan.placements[placement].slab].placements_left;
    } else {
      ready_.push_back(placement);  // without bytes: complete from the start
    }
  }
}

std::optional<std::uint32_t> LoadState::slab_to_allocate() const {
  const std::lock_guard lock(mutex_);
  if (next_slab_ == slabs_.size() || error_ != nullptr) return std::nullopt;
  if (plan_.slabs[next_slab_].target_address != 0) return std::nullopt;
  const bool has_room = window_bytes_max_ == 0 || held_bytes_ == 0 ||
                        held_bytes_ + plan_.slabs[next_slab_].size_bytes <= window_bytes_max_;
  return has_room ? std::optional(next_slab_) : std::nullopt;
}

bool LoadState::is_allocated(std::uint32_t slab) const {
  const std::lock_guard lock(mutex_);
  return slabs_[slab].is_allocated;
}

SlabMemory LoadState::memory_of(std::uint32_t slab) const {
  const std::lock_guard lock(mutex_);
  return slabs_[slab].memory;
}

bool LoadState::all_allocated() const {
  const std::lock_guard lock(mutex_);
  return next_slab_ == slabs_.size();
}

void LoadState::promise_first_slab() {
  const std::lock_guard lock(mutex_);
  if (plan_.slabs[0].target_address == 0 && plan_.slabs[0].piece_count > 0) open_slabs_.insert(0);
}

void LoadState::allocated(std::uint32_t slab, SlabMemory memory) {
  const std::lock_guard lock(mutex_);
  slabs_[slab].memory = std::move(memory);
  slabs_[slab].is_allocated = true;
  slabs_[slab].held_bytes = plan_.slabs[slab].target_address == 0 ? plan_.slabs[slab].size_bytes : 0;
  held_bytes_ += slabs_[slab].held_bytes;
  if (plan_.slabs[slab].piece_count > 0) open_slabs_.insert(slab);
  while (next_slab_ < slabs_.size() && slabs_[next_slab_].is_allocated) ++next_slab_;
  pieces_.notify_one();
}

std::optional<LoadState::Taken> LoadState::take_next() {
  const std::lock_guard lock(mutex_);
  return take_next_locked();
}

std::vector<LoadState::Taken> LoadState::take_ready(const TakeLimits& limits) {
  const std::lock_guard lock(mutex_);
  std::vector<Taken> taken;
  std::uint64_t taken_bytes = 0;
  do {
    std::optional<Taken> next = take_next_locked();
    if (!next) break;
    taken_bytes += plan_.placements[next->placement].size_bytes;
    taken.push_back(std::move(*next));
  } while (taken.size() < limits.count_max && taken_bytes < limits.bytes_max);
  return taken;
}

std::optional<LoadState::Taken> LoadState::take_next_locked() {
  if (error_ != nullptr) std::rethrow_exception(error_);
  while (!sealed_ && !ready_.empty()) {
    const std::uint32_t placement = ready_.front();
    ready_.pop_front();
    if (!taken_[placement]) return take_locked(placement);
  }
  return std::nullopt;
}

std::optional<LoadState::Taken> LoadState::take(std::uint32_t placement) {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (sealed_ || pieces_left_[placement] > 0) return std::nullopt;
  return take_locked(placement);
}

// The slab's memory is given away with its last placement, so that it goes back when the last tensor in it is
// dropped.
LoadState::Taken LoadState::take_locked(std::uint32_t placement) {
  taken_[placement] = true;
  ++taken_count_;
  const Placement& place = plan_.placements[placement];
  if (place.size_bytes == 0) return {placement, {}};
  SlabState& slab = slabs_[place.slab];
  const bool is_last = --slab.placements_left == 0;
  // With the last one the padding goes too; a target holds nothing.
  const std::uint64_t freed_bytes = is_last ? slab.held_bytes : std::min(place.size_bytes, slab.held_bytes);
  slab.held_bytes -= freed_bytes;
  held_bytes_ -= freed_bytes;
  return {placement, is_last ? std::exchange(slab.memory, {}) : slab.memory};
}

bool LoadState::is_taken(std::uint32_t placement) const {
  const std::lock_guard lock(mutex_);
  return taken_[placement];
}

bool LoadState::all_taken() const {
  const std::lock_guard lock(mutex_);
  return taken_count_ == taken_.size();
}

bool LoadState::finished() const {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  return ended_ && taken_count_ == taken_.size();
}

bool LoadState::has_failed() const {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void LoadState::prefer(std::uint32_t placement) {
  const std::lock_guard lock(mutex_);
  const Slab& slab = plan_.slabs[plan_.placements[placement].slab];
  for (std::uint32_t i = slab.first_piece; i < slab.first_piece + slab.piece_count; ++i) {
    const Piece& piece = plan_.pieces[i];
    const bool covers =
        piece.first_placement <= placement && placement < piece.first_placement + piece.placement_count;
    if (covers && !given_[i]) preferred_.push_back(i);
  }
  pieces_.notify_one();
}

void LoadState::wait_for_next(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  progress_.wait_until(lock, until, [&] { return ended_ || (!sealed_ && !ready_.empty()); });
}

void LoadState::wait_for(std::uint32_t placement, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  progress_.wait_until(lock, until, [&] { return ended_ || (!sealed_ && pieces_left_[placement] == 0); });
}

std::optional<LoadState::PieceToRead> LoadState::take_piece() {
  const std::lock_guard lock(mutex_);
  if (!has_piece_locked()) return std::nullopt;
  std::uint32_t piece = 0;
  if (!preferred_.empty()) {
    piece = preferred_.front();
    preferred_.pop_front();
  } else {
    piece = slabs_[*open_slabs_.begin()].next_piece;
  }
  given_[piece] = true;
  ++given_count_;
  const SlabMemory& memory = slabs_[plan_.pieces[piece].slab].memory;
  return PieceToRead{piece, memory.data, memory.place_owner};
}

// Brings `preferred_` and the cursors past pieces that were given out already, then says whether anything is
// left to give.
bool LoadState::has_piece_locked() {
  if (error_ != nullptr) return false;
  while (!preferred_.empty() && given_[preferred_.front()]) preferred_.pop_front();
  if (!preferred_.empty()) return true;
  while (!open_slabs_.empty()) {
    const std::uint32_t index = *open_slabs_.begin();
    const std::uint32_t end = plan_.slabs[index].first_piece + plan_.slabs[index].piece_count;
    std::uint32_t& cursor = slabs_[index].next_piece;
    while (cursor < end && given_[cursor]) ++cursor;
    if (cursor < end) return true;
    open_slabs_.erase(index);
  }
  return false;
}

bool LoadState::pieces_exhausted() const {
  const std::lock_guard lock(mutex_);
  return given_count_ == given_.size();
}

void LoadState::wait_for_piece(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  pieces_.wait_until(lock, until, [&] { return given_count_ == given_.size() || has_piece_locked(); });
}

void LoadState::wait_for_first_slab(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  pieces_.wait_until(lock, until, [&] { return slabs_[0].is_allocated || error_ != nullptr; });
}

std::uint64_t LoadState::arrived(std::uint32_t piece) {
  const std::lock_guard lock(mutex_);
  const Piece& done = plan_.pieces[piece];
  std::uint64_t completed_count = 0;
  for (std::uint32_t placement = done.first_placement;
       placement < done.first_placement + done.placement_count; ++placement) {
    if (--pieces_left_[placement] > 0) continue;
    ready_.push_back(placement);
    ++completed_count;
  }
  if (completed_count > 0) progress_.notify_all();
  return completed_count;
}

void LoadState::seal() {
  const std::lock_guard lock(mutex_);
  sealed_ = true;
}

void LoadState::ended(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (error_ == nullptr) error_ = std::move(error);
  progress_.notify_all();
}

void LoadState::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_ == nullptr) error_ = std::move(error);
  pieces_.notify_one();
}

std::vector<std::uint32_t> LoadState::overwritten_targets() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> placements;
  if (error_ == nullptr) return placements;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    const Piece& piece = plan_.pieces[i];
    if (!given_[i] || plan_.slabs[piece.slab].target_address == 0) continue;
    // Pieces come in the order of placements; two of them may share one.
    std::uint32_t placement = piece.first_placement;
    if (!placements.empty() && placements.back() == placement) ++placement;
    for (; placement < piece.first_placement + piece.placement_count; ++placement)
      placements.push_back(placement);
  }
  return placements;
}

}  // namespace inrush::engine
