#include "transfer/staged_path.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace inrush::engine {

using namespace std::chrono_literals;

std::string_view route_name(Route route) noexcept {
  static constexpr std::array<std::string_view, route_count> names = {
      "page cache -> ring", "storage -> page cache -> ring", "O_DIRECT -> ring", "page cache -> in place",
      "storage -> page cache -> in place"};
  return names.at(static_cast<std::size_t>(route));
}

namespace {

// How long a wait may last before cancel and deadline are looked at again; cancel promises 200 ms.
constexpr auto stop_poll = 20ms;
// The same while copies are under way, whose end frees slots. Reads complete every 0.2 ms at full speed, so
// this is for slow storage.
constexpr auto copy_poll = 1ms;
// After a cancel or a deadline reads get this long to return before they are left behind.
constexpr auto drain_grace = 100ms;
// EINTR and EAGAIN without a byte of progress, in a row, before the storage is called broken.
constexpr std::uint32_t stalled_attempts_max = 10'000;
// Slots start at multiples of this.
constexpr std::uint32_t slot_alignment_bytes = 4096;

struct Slot {
  Work work;
  ReadMode mode = ReadMode::buffered;
  bool in_place = false;
  std::uint64_t read_offset =
      0;                         // file position of target[0]: the piece's own, rounded down for direct reads
  std::uint64_t need_bytes = 0;  // until the end of the piece
  std::uint64_t filled_bytes = 0;
  std::span<std::byte> target;  // as long as the read may be
  std::uint32_t stalled_attempts = 0;
  Arrival arrival;
  std::uint64_t ticket = 0;
};

bool is_one_run(const Piece& piece, std::span<const Segment> segments) {
  return segments.size() == 1 && segments[0].row_count == 1 && segments[0].source_offset == 0 &&
         segments[0].row_bytes == piece.size_bytes;
}

Route route_of(ReadMode mode, bool in_place) {
  switch (mode) {
    case ReadMode::buffered:
      return in_place ? Route::cached_place : Route::cached_ring;
    case ReadMode::populate:
      return in_place ? Route::populated_place : Route::populated_ring;
    case ReadMode::direct:
      break;
  }
  return Route::direct_ring;
}

// Errors of a direct read that say "not this way" rather than "the data is lost". EFAULT: fixed buffers of
// some kernels (liburing#994).
bool refuses_direct(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == EFAULT || error == ENOTTY;
}

// One run() of the path.
class StagedRun {
 public:
  StagedRun(StagedParts& parts, const Plan& plan, TransferSink& sink)
      : parts_(parts), plan_(plan), sink_(sink), slots_(parts.ring->shape().slot_count) {
    for (std::uint32_t index = static_cast<std::uint32_t>(slots_.size()); index > 0; --index)
      free_.push_back(index - 1);
  }

  void run() {
    try {
      while (step()) {
      }
    } catch (...) {
      drain();
      if (used_ring_) parts_.ring->report_refusals(parts_.fallbacks);
      throw;
    }
    if (used_ring_) parts_.ring->report_refusals(parts_.fallbacks);
  }

 private:
  // Returns false once everything has arrived.
  bool step() {
    parts_.stop.check();
    retire_copies();
    fill_slots();
    if (reading_count_ > 0) {
      take_completions(Clock::now() +
                       (copying_.empty() ? Clock::duration(stop_poll) : Clock::duration(copy_poll)));
    } else if (!copying_.empty()) {
      await_copy();
    } else if (sink_.exhausted()) {
      return false;
    } else {
      sink_.wait_for_work(std::min(Clock::now() + stop_poll, parts_.stop.deadline()));
    }
    return true;
  }

  void fill_slots() {
    while (!free_.empty()) {
      std::optional<Work> work = sink_.take();
      if (!work) return;
      const std::uint32_t index = free_.back();
      free_.pop_back();
      slots_[index] = Slot{};
      slots_[index].work = std::move(*work);
      slots_[index].arrival.piece = slots_[index].work.piece;
      ++reading_count_;
      begin(index, choose_mode(slots_[index].work));
    }
  }

  [[nodiscard]] const Piece& piece_of(const Slot& slot) const { return plan_.pieces[slot.work.piece]; }
  [[nodiscard]] std::span<const Segment> segments_of(const Piece& piece) const {
    return std::span(plan_.segments).subspan(piece.first_segment, piece.segment_count);
  }

  // Resident ranges come by copy whatever the policy says: that is what the page cache is for.
  ReadMode choose_mode(const Work& work) {
    const Piece& piece = plan_.pieces[work.piece];
    if (work.file->is_resident({piece.offset, piece.size_bytes})) return ReadMode::buffered;
    if (plan_.page_cache != PageCachePolicy::bypass) return ReadMode::populate;
    return can_read_direct(work) ? ReadMode::direct : ReadMode::populate;
  }

  bool can_read_direct(const Work& work) {
    const Piece& piece = plan_.pieces[work.piece];
    if (direct_refused_.contains(piece.file)) return false;
    const std::uint32_t alignment = work.file->direct_alignment_bytes();
    if (alignment == 0) {
      refuse_direct(piece.file, work.file->direct_refusal());
    } else if (alignment > slot_alignment_bytes ||
               read_window(piece, alignment).size_bytes > parts_.ring->shape().slot_bytes) {
      refuse_direct(piece.file, fmt::format("{}: needs an alignment of {} bytes, more than a slot has",
                                            printable(work.file->path()), alignment));
    } else {
      return true;
    }
    return false;
  }

  void refuse_direct(std::uint32_t file, const std::string& reason) {
    direct_refused_.insert(file);
    parts_.fallbacks.record("O_DIRECT", reason);
  }

  // The aligned range that holds the piece.
  static ByteRange read_window(const Piece& piece, std::uint32_t alignment) {
    const std::uint64_t start = round_down(piece.offset, alignment);
    return {start, round_up(piece.offset + piece.size_bytes, alignment) - start};
  }

  // Starts or restarts the piece from its first byte, so that each piece comes by one mode as a whole.
  void begin(std::uint32_t index, ReadMode mode) {
    Slot& slot = slots_[index];
    const Piece& piece = piece_of(slot);
    slot.mode = mode;
    slot.filled_bytes = 0;
    slot.stalled_attempts = 0;
    slot.in_place =
        mode != ReadMode::direct && slot.work.place_owner != nullptr && is_one_run(piece, segments_of(piece));
    if (mode == ReadMode::direct) {
      if (!std::exchange(read_direct_, true)) parts_.before_direct();
      const ByteRange window = read_window(piece, slot.work.file->direct_alignment_bytes());
      slot.read_offset = window.offset;
      slot.target = parts_.ring->use_slot(index).first(window.size_bytes);
    } else {
      slot.read_offset = piece.offset;
      slot.target = slot.in_place
                        ? std::span(slot.work.slab + segments_of(piece)[0].slab_offset, piece.size_bytes)
                        : parts_.ring->use_slot(index).first(piece.size_bytes);
    }
    slot.need_bytes = piece.offset + piece.size_bytes - slot.read_offset;
    submit(index);
  }

  void submit(std::uint32_t index) {
    Slot& slot = slots_[index];
    ++slot.arrival.read_count;
    parts_.queue.submit({.tag = index,
                         .file = slot.work.file,
                         .mode = slot.mode,
                         .offset = slot.read_offset + slot.filled_bytes,
                         .target = slot.target.subspan(slot.filled_bytes),
                         .target_owner = slot.in_place ? slot.work.place_owner : parts_.ring});
  }

  void take_completions(Clock::time_point until) {
    std::array<Completion, 32> completions;
    const std::size_t count = parts_.queue.wait(completions, std::min(until, parts_.stop.deadline()));
    for (const Completion& completion : std::span(completions).first(count)) take_completion(completion);
  }

  // The one place where bytes moved are compared with bytes asked for.
  void take_completion(const Completion& completion) {
    const auto index = static_cast<std::uint32_t>(completion.tag);
    Slot& slot = slots_[index];
    if (completion.error != 0) return take_error(index, completion.error);
    if (!had_first_byte_ && completion.moved_bytes > 0) {
      had_first_byte_ = true;
      sink_.first_byte();
    }
    slot.arrival.read_bytes += completion.moved_bytes;
    slot.filled_bytes += completion.moved_bytes;
    if (slot.filled_bytes >= slot.need_bytes) {
      --reading_count_;
      return start_copy(index);
    }
    if (completion.moved_bytes == 0) throw ended_early(slot);
    continue_read(index, completion.moved_bytes);
  }

  // A short read. A direct one goes on from an aligned offset; where that means no progress, the piece is
  // read another way.
  void continue_read(std::uint32_t index, std::uint64_t moved_bytes) {
    Slot& slot = slots_[index];
    ++slot.arrival.retry_count;
    slot.stalled_attempts = 0;
    if (slot.mode == ReadMode::direct) {
      const std::uint64_t before = slot.filled_bytes - moved_bytes;
      slot.filled_bytes = round_down(slot.filled_bytes, slot.work.file->direct_alignment_bytes());
      if (slot.filled_bytes <= before) {
        refuse_direct(piece_of(slot).file,
                      fmt::format("{}: a direct read returned {} bytes, less than its alignment",
                                  printable(slot.work.file->path()), moved_bytes));
        return begin(index, ReadMode::populate);
      }
    }
    submit(index);
  }

  void take_error(std::uint32_t index, int error) {
    Slot& slot = slots_[index];
    if ((error == EINTR || error == EAGAIN) && ++slot.stalled_attempts < stalled_attempts_max) {
      ++slot.arrival.retry_count;
      return submit(index);
    }
    if (slot.mode == ReadMode::direct && refuses_direct(error)) {
      refuse_direct(piece_of(slot).file,
                    fmt::format("{}: read: {}", printable(slot.work.file->path()), errno_text(error)));
      ++slot.arrival.retry_count;
      return begin(index, ReadMode::populate);
    }
    throw Error(ErrorCode::storage_failed,
                fmt::format("{}: read: {}; check the disk or the mount", place_of(slot), errno_text(error)),
                error);
  }

  [[nodiscard]] Error ended_early(const Slot& slot) const {
    return {ErrorCode::corrupt_checkpoint,
            fmt::format("{}: the file ends at {}; it was cut short after it was opened, load it again "
                        "once it is complete",
                        place_of(slot), slot.read_offset + slot.filled_bytes)};
  }

  [[nodiscard]] std::string place_of(const Slot& slot) const {
    const Piece& piece = piece_of(slot);
    return fmt::format("{} {} ({})", printable(slot.work.file->path()),
                       range_text(piece.offset, piece.size_bytes), sink_.describe(slot.work.piece));
  }

  void start_copy(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.arrival.route = route_of(slot.mode, slot.in_place);
    if (slot.in_place) return retire(index);
    used_ring_ = true;
    parts_.ring->pin_slot(index, parts_.gpu);
    const Piece& piece = piece_of(slot);
    const std::byte* const source = slot.target.data() + (piece.offset - slot.read_offset);
    copies_.clear();
    for (const Segment& segment : segments_of(piece)) {
      copies_.push_back({.source = source + segment.source_offset,
                         .source_pitch_bytes = segment.source_pitch_bytes,
                         .target = slot.work.slab + segment.slab_offset,
                         .target_pitch_bytes = segment.slab_pitch_bytes,
                         .row_bytes = segment.row_bytes,
                         .row_count = segment.row_count});
    }
    parts_.stream.copy(copies_);
    slot.ticket = parts_.stream.record();
    copying_.push_back(index);
  }

  void retire_copies() {
    if (copying_.empty()) return;
    const std::uint64_t reached = parts_.stream.reached();
    while (!copying_.empty() && slots_[copying_.front()].ticket <= reached) {
      const std::uint32_t index = copying_.front();
      copying_.pop_front();
      retire(index);
    }
  }

  void retire(std::uint32_t index) {
    sink_.arrived(slots_[index].arrival);
    slots_[index].work = {};
    free_.push_back(index);
  }

  // Only copies are under way. Polled, so that a cancel or a deadline stops the load here too; drain() then
  // still waits for the copies that were queued, since they write to slabs that go.
  void await_copy() const {
    const std::uint64_t ticket = slots_[copying_.front()].ticket;
    while (parts_.stream.reached() < ticket) {
      parts_.stop.check();
      std::this_thread::sleep_for(10us);
    }
  }

  // Invariant 2: nothing in flight when run() ends. Only after a cancel or a deadline are reads left behind.
  void drain() noexcept {
    std::array<Completion, 32> completions;
    Clock::time_point give_up = Clock::time_point::max();
    while (parts_.queue.in_flight_count() > 0) {
      if (parts_.stop.is_set()) give_up = std::min(give_up, Clock::now() + drain_grace);
      if (Clock::now() >= give_up) {
        sink_.orphaned(parts_.queue.in_flight_count());
        break;
      }
      static_cast<void>(parts_.queue.wait(completions, std::min(Clock::now() + stop_poll, give_up)));
    }
    try {
      parts_.stream.wait(parts_.stream.record());  // also a piece whose copies were only begun
    } catch (...) {  // the error that led here is the one to report; the ring is not fit for another load
      sink_.orphaned(0);
    }
  }

  StagedParts& parts_;
  const Plan& plan_;
  TransferSink& sink_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> copying_;  // in the order of their tickets
  std::uint32_t reading_count_ = 0;
  bool had_first_byte_ = false;
  bool used_ring_ = false;  // its refusals matter to this load
  bool read_direct_ = false;
  std::set<std::uint32_t> direct_refused_;  // files
  std::vector<Copy> copies_;
};

}  // namespace

void StagedPath::run(const Plan& plan, TransferSink& sink) { StagedRun(parts_, plan, sink).run(); }

}  // namespace inrush::engine
