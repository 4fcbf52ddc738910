#include "transfer/piece_run.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"
#include "transfer/copy_runs.hpp"
#include "transfer/residency_ahead.hpp"
#include "transfer/slot.hpp"

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

namespace {

// How long a wait may last before cancel and deadline are looked at again; cancel promises 200 ms.
constexpr auto stop_poll = 20ms;
// The same while copies are under way, whose end frees slots, or a slab is being allocated. Reads complete
// every 0.2 ms at full speed, so this is for slow storage.
constexpr auto copy_poll = 1ms;
// The same while filled slots wait for the copies before them: about half of what a piece takes on the link.
constexpr auto merge_poll = 40us;
// After a cancel or a deadline reads get this long to return before they are left behind.
constexpr auto drain_grace = 100ms;
// EINTR and EAGAIN without a byte of progress, in a row, before the storage is called broken.
constexpr std::uint32_t stalled_attempts_max = 10'000;
constexpr std::size_t named_refusals_max = 4;
// Of a piece that has the size of a window and comes by the ring after all: a cancel waits for a read.
constexpr std::uint64_t window_read_bytes = 4ULL << 20;
// Slots start at multiples of this; also what cuFile goes straight for.
constexpr std::uint32_t slot_alignment_bytes = 4096;

bool is_one_run(const Piece& piece, std::span<const Segment> segments) {
  return segments.size() == 1 && segments[0].row_count == 1 && segments[0].source_offset == 0 &&
         segments[0].row_bytes == piece.size_bytes;
}

// Errors of a direct read that say "not this way" rather than "the data is lost". EFAULT: fixed buffers of
// some kernels (liburing#994).
bool refuses_direct(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == EFAULT || error == ENOTTY;
}

class PieceRun {
 public:
  PieceRun(StagedParts& parts, const OwnSlots* own, const Plan& plan, TransferSink& sink)
      : parts_(parts),
        own_(own),
        plan_(plan),
        sink_(sink),
        host_slot_count_(parts.ring->shape().slot_count),
        read_bytes_max_(plan.page_cache_windows ? window_read_bytes : UINT64_MAX),
        slots_(host_slot_count_),
        residency_(plan),
        runs_(parts.stream) {
    for (std::uint32_t index = 0; index < host_slot_count_; ++index) free_.push_back(index);
  }

  void run() {
    try {
      while (step()) {
      }
    } catch (...) {
      drain();
      report_refusals();
      throw;
    }
    report_refusals();
  }

 private:
  // Returns false once everything has arrived.
  bool step() {
    parts_.stop.check();
    retire_copies();
    place_filled();
    fill_slots();
    start_copies();
    if (reading_count_ > 0) {
      take_completions(Clock::now() + poll_interval());
    } else if (runs_.has_running()) {
      // Polled, so that a cancel or a deadline stops the load here too; drain() then still waits for the
      // copies that were queued, since they write to slabs that go.
      std::this_thread::sleep_for(10us);
    } else if (!unplaced_.empty()) {
      sink_.wait_for_slab(std::min(Clock::now() + stop_poll, parts_.stop.deadline()));
    } else if (held_.empty() && sink_.exhausted()) {
      return false;
    } else {
      sink_.wait_for_work(std::min(Clock::now() + stop_poll, parts_.stop.deadline()));
    }
    return true;
  }

  [[nodiscard]] Clock::duration poll_interval() const {
    if (runs_.has_waiting()) return merge_poll;
    return runs_.has_running() || !unplaced_.empty() ? Clock::duration(copy_poll)
                                                     : Clock::duration(stop_poll);
  }

  void report_refusals() {
    if (used_ring_) parts_.ring->report_refusals(parts_.fallbacks);
    const std::string& kernel = parts_.stream.kernel_refusal();
    if (!kernel.empty()) parts_.fallbacks.record("copy kernel", kernel);
    const std::string& stage = parts_.stream.stage_refusal();
    if (!stage.empty()) parts_.fallbacks.record("device staging", stage);
  }

  // A piece that was taken and has no slot yet.
  struct Held {
    Work work;
    Arrival arrival;
  };

  void fill_slots() {
    find_own_slots();
    while (std::optional<Held> held = next_work()) {
      const ReadMode mode = choose_mode(held->work);
      std::deque<std::uint32_t>& free = is_own(mode) ? free_own_ : free_;
      if (free.empty()) return held_.push_front(std::move(*held));
      // In turn, so that pieces which are neighbours in the file get slots which are neighbours.
      const std::uint32_t index = free.front();
      free.pop_front();
      slots_[index] = Slot{};
      slots_[index].work = std::move(held->work);
      slots_[index].arrival = held->arrival;
      ++reading_count_;
      begin(index, mode);
    }
  }

  std::optional<Held> next_work() {
    if (free_.empty() && free_own_.empty()) return std::nullopt;
    if (!held_.empty()) {
      std::optional<Held> held = std::move(held_.front());
      held_.pop_front();
      return held;
    }
    std::optional<Work> work = sink_.take();
    if (!work) return std::nullopt;
    Arrival arrival;
    arrival.piece = work->piece;
    return Held{std::move(*work), arrival};
  }

  // cuFile may come while pieces already move; its slots stand behind those of the host.
  void find_own_slots() {
    if (own_ == nullptr || reads_ != nullptr) return;
    reads_ = own_->reads();
    if (reads_ == nullptr) return;
    const std::uint32_t count = reads_->shape().slot_count;
    slots_.resize(host_slot_count_ + count);
    for (std::uint32_t index = 0; index < count; ++index) free_own_.push_back(host_slot_count_ + index);
  }

  [[nodiscard]] const Piece& piece_of(const Slot& slot) const { return plan_.pieces[slot.work.piece]; }
  [[nodiscard]] std::span<const Segment> segments_of(const Piece& piece) const {
    return std::span(plan_.segments).subspan(piece.first_segment, piece.segment_count);
  }

  // Resident ranges come by copy whatever the policy says: that is what the page cache is for.
  ReadMode choose_mode(const Work& work) {
    const OwnSlotRanges ranges = own_ != nullptr ? own_->ranges : OwnSlotRanges::cold;
    if (ranges == OwnSlotRanges::all && can_use_own_slot(work)) return reads_->mode();
    const bool is_resident = residency_.was_resident(work.piece, *work.file);
    const bool is_for_own = is_resident == (ranges == OwnSlotRanges::resident);
    if (is_for_own && can_use_own_slot(work)) return reads_->mode();
    if (is_resident) return ReadMode::buffered;
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

  bool can_use_own_slot(const Work& work) {
    const Piece& piece = plan_.pieces[work.piece];
    if (reads_ == nullptr || own_refused_.contains(piece.file)) return false;
    if (read_window(piece, slot_alignment_bytes).size_bytes > reads_->shape().slot_bytes) {
      refuse_own_slots(piece.file, fmt::format("{}: a piece of {} does not fit a slot of its ring",
                                               printable(work.file->path()), bytes_text(piece.size_bytes)));
      return false;
    }
    try {
      own_reader_ = reads_->open(piece.file, work.file, {piece.offset, piece.size_bytes});
      return true;
    } catch (const Error& error) {
      refuse_own_slots(piece.file, error.what());
      return false;
    }
  }

  // A machine that refuses one file refuses ten thousand: the first few are named, the rest counted.
  void refuse_own_slots(std::uint32_t file, const std::string& reason) {
    own_refused_.insert(file);
    const bool is_named = own_refused_.size() <= named_refusals_max;
    parts_.fallbacks.record(own_->name, is_named ? reason : "further files of this load");
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
    slot.reader = is_own(mode) ? std::exchange(own_reader_, nullptr) : slot.work.file;
    slot.in_place = (mode == ReadMode::buffered || mode == ReadMode::populate) &&
                    slot.work.place_owner != nullptr && is_one_run(piece, segments_of(piece));
    if (mode == ReadMode::direct && !std::exchange(read_direct_, true)) parts_.before_direct();
    const ByteRange window = mode == ReadMode::direct || is_own(mode)
                                 ? read_window(piece, alignment_of(slot))
                                 : ByteRange{piece.offset, piece.size_bytes};
    slot.read_offset = window.offset;
    slot.target = slot.in_place
                      ? std::span(slot.work.slab + segments_of(piece)[0].slab_offset, piece.size_bytes)
                      : slot_memory(index).first(window.size_bytes);
    slot.need_bytes = piece.offset + piece.size_bytes - slot.read_offset;
    submit(index);
  }

  [[nodiscard]] std::span<std::byte> slot_memory(std::uint32_t index) const {
    return index < host_slot_count_ ? parts_.ring->use_slot(index) : reads_->slot(index - host_slot_count_);
  }

  [[nodiscard]] static std::uint32_t alignment_of(const Slot& slot) {
    return is_own(slot.mode) ? slot_alignment_bytes : slot.work.file->direct_alignment_bytes();
  }

  [[nodiscard]] std::shared_ptr<void> owner_of(const Slot& slot) const {
    if (slot.in_place) return slot.work.place_owner;
    if (is_own(slot.mode)) return reads_->owner();
    return parts_.ring;
  }

  void submit(std::uint32_t index) {
    Slot& slot = slots_[index];
    ++slot.arrival.read_count;
    const std::span<std::byte> rest = slot.target.subspan(slot.filled_bytes);
    slot.asked_bytes =
        is_own(slot.mode) ? rest.size() : std::min<std::uint64_t>(rest.size(), read_bytes_max_);
    parts_.queue.submit({.tag = index,
                         .file = slot.reader,
                         .mode = slot.mode,
                         .offset = slot.read_offset + slot.filled_bytes,
                         .target = rest.first(slot.asked_bytes),
                         .target_owner = owner_of(slot)});
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
      return take_filled(index);
    }
    if (completion.moved_bytes == 0) {
      // Whether the file really ends here, a plain read says.
      if (is_own(slot.mode))
        return leave_own_slot(index, "a read returned nothing before the end of the file");
      throw ended_early(slot);
    }
    continue_read(index, completion.moved_bytes);
  }

  // A short read. A direct one goes on from an aligned offset; where that means no progress, the piece is
  // read another way.
  void continue_read(std::uint32_t index, std::uint64_t moved_bytes) {
    Slot& slot = slots_[index];
    if (moved_bytes < slot.asked_bytes) ++slot.arrival.retry_count;
    slot.stalled_attempts = 0;
    // All pages of the file that there are have come.
    if (slot.mode == ReadMode::mapped) return leave_own_slot(index, "the file ends inside the piece");
    if (slot.mode == ReadMode::direct || is_own(slot.mode)) {
      const std::uint64_t before = slot.filled_bytes - moved_bytes;
      slot.filled_bytes = round_down(slot.filled_bytes, alignment_of(slot));
      if (slot.filled_bytes <= before && is_own(slot.mode))
        return leave_own_slot(index, fmt::format("a read returned {} bytes, less than a block", moved_bytes));
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
    if (is_own(slot.mode)) return leave_own_slot(index, "read: " + reads_->error_text(error));
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

  // The piece starts again through host memory, and with it all that is left of its file. Nothing of it has
  // reached its final address yet.
  void leave_own_slot(std::uint32_t index, const std::string& reason) {
    Slot& slot = slots_[index];
    refuse_own_slots(piece_of(slot).file, fmt::format("{}: {}", printable(slot.work.file->path()), reason));
    ++slot.arrival.retry_count;
    held_.push_front({std::move(slot.work), slot.arrival});
    slots_[index] = Slot{};
    free_own_.push_back(index);
    --reading_count_;
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

  void take_filled(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.arrival.route = route_of(slot);
    if (slot.in_place) {
      sink_.submitted(slot.work.piece);
      return retire(index);
    }
    if (!is_own(slot.mode)) {
      used_ring_ = true;
      parts_.ring->pin_slot(index, parts_.gpu);
    }
    if (slot.work.slab == nullptr) return unplaced_.push_back(index);
    place(index);
  }

  // Slots that were filled before their slab was there (transfer_path.hpp).
  void place_filled() {
    std::erase_if(unplaced_, [this](std::uint32_t index) {
      Slot& slot = slots_[index];
      slot.work.slab = sink_.slab_of(slot.work.piece);
      if (slot.work.slab != nullptr) place(index);
      return slot.work.slab != nullptr;
    });
  }

  void place(std::uint32_t index) {
    Slot& slot = slots_[index];
    const Piece& piece = piece_of(slot);
    const std::byte* const source = slot.target.data() + (piece.offset - slot.read_offset);
    copies_.clear();
    for (const Segment& segment : segments_of(piece)) {
      copies_.push_back({.source = source + segment.source_offset,
                         .source_pitch_bytes = segment.source_pitch_bytes,
                         .target = slot.work.slab + segment.slab_offset,
                         .target_pitch_bytes = segment.slab_pitch_bytes,
                         .row_bytes = segment.row_bytes,
                         .row_count = segment.row_count,
                         .from = is_own(slot.mode) ? reads_->source() : CopySource::host});
    }
    runs_.add({index, pin_group_of(index)}, copies_);
  }

  // The ring of device memory is one; each window was registered alone.
  [[nodiscard]] std::uint32_t pin_group_of(std::uint32_t index) const {
    if (index < host_slot_count_) return parts_.ring->pin_group(index);
    return reads_->source() == CopySource::device ? host_slot_count_ : index;
  }

  void start_copies() {
    if (!runs_.has_waiting() || (runs_.is_busy() && reading_count_ > 0)) return;
    for (const StartedSlot& started : runs_.start()) {
      slots_[started.index].arrival.copy_count += started.operation_count;
      sink_.submitted(slots_[started.index].work.piece);
    }
  }

  void retire_copies() {
    for (const std::uint32_t index : runs_.take_ended()) retire(index);
  }

  void retire(std::uint32_t index) {
    sink_.arrived(slots_[index].arrival);
    slots_[index].work = {};
    slots_[index].reader = nullptr;
    (index < host_slot_count_ ? free_ : free_own_).push_back(index);
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
  const OwnSlots* const own_;
  const Plan& plan_;
  TransferSink& sink_;
  const std::uint32_t host_slot_count_;
  const std::uint64_t read_bytes_max_;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> free_;
  std::deque<std::uint32_t> free_own_;
  std::deque<Held> held_;                   // before all that the sink has
  OwnSlotReads* reads_ = nullptr;           // once they are there
  std::shared_ptr<const File> own_reader_;  // of the piece that can_use_own_slot() was asked about
  std::vector<std::uint32_t> unplaced_;     // slots that are filled and wait for their slab
  ResidencyAhead residency_;
  CopyRuns runs_;
  std::uint32_t reading_count_ = 0;
  bool had_first_byte_ = false;
  bool used_ring_ = false;  // its refusals matter to this load
  bool read_direct_ = false;
  std::set<std::uint32_t> direct_refused_;  // files
  std::set<std::uint32_t> own_refused_;     // likewise
  std::vector<Copy> copies_;
};

}  // namespace

void run_pieces(StagedParts& parts, const OwnSlots* own, const Plan& plan, TransferSink& sink) {
  PieceRun(parts, own, plan, sink).run();
}

}  // namespace inrush::engine
