#include "loader/limits.hpp"

#include <inrush/error.hpp>

#include "base/clock.hpp"
#include "base/host_pages.hpp"
#include "base/text.hpp"
#include "loader/host_facts.hpp"
#include "loader/interruption.hpp"
#include "plan/ring_choice.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::uint64_t mib = 1ULL << 20;
constexpr std::uint64_t memory_bytes_max = 256 * mib;
// Of a checkpoint of thousands: enough to be no one disk's luck, and few descriptors.
constexpr std::size_t file_count_max = 16;
constexpr std::chrono::seconds patience{30};

// Few in flight first: where the time is short or the disk slow, the sweep ends early.
struct DirectShape {
  std::uint64_t size_bytes = 0;
  std::uint32_t depth = 0;
};
constexpr std::array<DirectShape, 8> direct_shapes = {{{mib, 4},
                                                       {mib, 16},
                                                       {4 * mib, 4},
                                                       {4 * mib, 16},
                                                       {mib, 64},
                                                       {16 * mib, 4},
                                                       {4 * mib, 48},
                                                       {16 * mib, 12}}};
constexpr std::array<std::uint64_t, 2> cached_sizes = {4 * mib, mib};
// A load has a slot to fill while another is copied from.
constexpr std::uint32_t cached_reads_per_reader = 2;
constexpr std::uint64_t cached_window_bytes = 16 * mib;
// More than the last-level cache of most machines: reads of less would be copies within the CPU.
constexpr std::uint64_t cached_bytes_wanted = 1024 * mib;
constexpr std::uint64_t cached_bytes_max = 4096 * mib;
constexpr std::uint64_t pinned_piece_bytes = 64 * mib;
constexpr std::uint64_t pinned_piece_count = 4;
constexpr int pinned_passes_per_round = 4;
constexpr int pinned_rounds_min = 3;

std::string size_text(std::uint64_t size_bytes) { return fmt::format("{} MiB", size_bytes / mib); }

Limit not_measured(std::string reason) { return {.reason = std::move(reason)}; }

// Their files are memory: O_DIRECT is accepted by newer kernels, and then copies pages.
bool is_memory_file_system(const File& file) {
  constexpr long tmpfs = 0x01021994;
  constexpr long ramfs = 0x858458f6;
  constexpr long huge_pages = 0x958458f6;
  struct statfs status = {};
  const int descriptor = file.descriptor(ReadMode::buffered);
  if (descriptor < 0 || ::fstatfs(descriptor, &status) != 0) return false;
  return status.f_type == tmpfs || status.f_type == ramfs || status.f_type == huge_pages;
}

// The reads of one point in flight.
class ReadsInFlight {
 public:
  ReadsInFlight(ReadPlaces& places, ReadMode mode, const ReadShape& shape)
      : places_(places),
        mode_(mode),
        shape_(shape),
        pages_(std::make_shared<HostPages>(shape.size_bytes * shape.depth)),
        queue_({.reader_count = shape.reader_count,
                .ring_depth = shape.depth,
                .io_uring = shape.io_uring,
                .staging = staging(mode)}),
        reads_(shape.depth) {
    pages_->populate(0, pages_->bytes().size());
  }

  ReadRate run(const Measuring& measuring) {
    Interruption interruption(measuring.interrupted);
    const Clock::time_point start = Clock::now();
    const Clock::time_point stop = later(start, measuring.duration);
    const Clock::time_point give_up = later(stop, patience);
    for (std::uint64_t slot = 0; slot < shape_.depth; ++slot) submit(slot);
    std::array<Completion, 64> done;
    while (queue_.in_flight_count() > 0) {
      if (interruption.is_due()) interruption.check();
      const std::size_t count = queue_.wait(done, std::min(give_up, interruption.due()));
      if (count == 0 && Clock::now() >= give_up)
        throw Error(ErrorCode::storage_failed,
                    fmt::format("{}: reads did not come back within {} s", printable(reads_[0].file->path()),
                                patience.count()));
      for (const Completion& completion : std::span(done).first(count)) {
        take(completion);
        if (Clock::now() < stop) submit(completion.tag);
      }
    }
    return {static_cast<double>(moved_bytes_) / seconds_between(start, Clock::now()), queue_.has_io_uring()};
  }

 private:
  // Only direct reads land in memory that the kernel may keep pinned.
  [[nodiscard]] StagingMemory staging(ReadMode mode) const {
    return mode == ReadMode::direct ? StagingMemory{pages_->bytes(), pages_} : StagingMemory{};
  }

  void submit(std::uint64_t slot) {
    ReadRequest request;
    request.tag = slot;
    request.mode = mode_;
    request.target = pages_->bytes().subspan(slot * shape_.size_bytes, shape_.size_bytes);
    request.target_owner = pages_;
    places_.next(request);
    reads_[slot] = {request.file, {request.offset, shape_.size_bytes}};
    queue_.submit(std::move(request));
  }

  void take(const Completion& completion) {
    moved_bytes_ += completion.moved_bytes;
    const bool is_failure = completion.error != 0 && completion.error != EINTR && completion.error != EAGAIN;
    if (!is_failure && (completion.error != 0 || completion.moved_bytes > 0)) return;
    const ReadPlace& read = reads_[completion.tag];
    throw Error(ErrorCode::storage_failed,
                fmt::format("{}: read of {}: {}", printable(read.file->path()),
                            range_text(read.range.offset, read.range.size_bytes),
                            is_failure ? errno_text(completion.error) : "the file ends before it"),
                completion.error);
  }

  ReadPlaces& places_;
  const ReadMode mode_;
  const ReadShape shape_;
  const std::shared_ptr<HostPages> pages_;
  LocalQueue queue_;
  std::vector<ReadPlace> reads_;  // by slot
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace

bool ReadPlaces::has_room_for(std::uint64_t size_bytes) const {
  return std::ranges::any_of(places_,
                             [&](const ReadPlace& place) { return place.range.size_bytes >= size_bytes; });
}

void ReadPlaces::next(ReadRequest& request) {
  const std::uint64_t size_bytes = request.target.size();
  for (;;) {
    const ReadPlace& place = places_[index_];
    const std::uint64_t offset = round_up(std::max(offset_, place.range.offset), size_bytes);
    if (offset + size_bytes <= place.range.end()) {
      request.file = place.file;
      request.offset = offset;
      offset_ = offset + size_bytes;
      return;
    }
    index_ = (index_ + 1) % places_.size();
    offset_ = 0;
  }
}

ReadRate measure_reads(ReadPlaces& places, ReadMode mode, const ReadShape& shape,
                       const Measuring& measuring) {
  return ReadsInFlight(places, mode, shape).run(measuring);
}

ReadPlaces places_of(const std::vector<std::shared_ptr<const File>>& files) {
  std::vector<ReadPlace> places;
  for (const std::shared_ptr<const File>& file : files)
    places.push_back({file, {0, file->status().size_bytes}});
  return ReadPlaces(std::move(places));
}

Limit measure_storage(const std::vector<std::shared_ptr<const File>>& files, IoUring io_uring,
                      const Measuring& measuring) {
  for (const std::shared_ptr<const File>& file : files) {
    if (is_memory_file_system(*file))
      return not_measured(printable(file->path()) + ": the file system is memory, with no storage behind it");
    if (file->direct_alignment_bytes() == 0)
      return not_measured("O_DIRECT is refused: " + file->direct_refusal());
  }
  ReadPlaces places = places_of(files);
  Limit best = not_measured("every file is smaller than " + size_text(direct_shapes[0].size_bytes));
  const Clock::time_point end = later(Clock::now(), measuring.duration);
  const Measuring point{measuring.duration / direct_shapes.size(), measuring.interrupted};
  for (const DirectShape& shape : direct_shapes) {
    if (!places.has_room_for(shape.size_bytes)) continue;
    if (best.bytes_per_second > 0 && Clock::now() >= end) break;
    const ReadRate rate = measure_reads(places, ReadMode::direct,
                                        {shape.size_bytes, shape.depth, shape.depth, io_uring}, point);
    if (rate.bytes_per_second <= best.bytes_per_second) continue;
    best = {.bytes_per_second = rate.bytes_per_second,
            .how = fmt::format("O_DIRECT, reads of {}, {} at once, by {}", size_text(shape.size_bytes),
                               shape.depth, rate.has_io_uring ? "io_uring" : "threads")};
  }
  return best;
}

namespace {

std::uint64_t bytes_of(const std::vector<ReadPlace>& places) {
  std::uint64_t bytes = 0;
  for (const ReadPlace& place : places) bytes += place.range.size_bytes;
  return bytes;
}

// What of the files is in the page cache already, and what is not; a window each.
struct Windows {
  std::vector<ReadPlace> resident;
  std::vector<ReadPlace> absent;
};

Windows windows_of(const std::vector<std::shared_ptr<const File>>& files, Interruption& interruption) {
  Windows windows;
  std::uint64_t resident_bytes = 0;
  for (const std::shared_ptr<const File>& file : files) {
    const std::uint64_t end = round_down(file->status().size_bytes, cached_sizes.back());
    for (std::uint64_t offset = 0; offset < end && resident_bytes < cached_bytes_max;
         offset += cached_window_bytes) {
      if (interruption.is_due()) interruption.check();
      const ByteRange range{offset, std::min(cached_window_bytes, end - offset)};
      const bool is_resident = file->is_resident(range);
      (is_resident ? windows.resident : windows.absent).push_back({file, range});
      if (is_resident) resident_bytes += range.size_bytes;
    }
  }
  return windows;
}

// Brings windows in until there are enough, or the time or the room is up. Each is read once: in a virtual
// machine the first touch of a page waits for the host (0.2 GB/s were seen where the second gave 9).
void bring_in(Windows& windows, const Measuring& measuring, Interruption& interruption) {
  const Clock::time_point end = later(Clock::now(), measuring.duration);
  std::uint64_t resident_bytes = bytes_of(windows.resident);
  std::uint64_t room_bytes = page_cache_room_bytes();
  std::vector<std::byte> scratch;
  for (const ReadPlace& window : windows.absent) {
    if (resident_bytes >= cached_bytes_wanted || room_bytes < window.range.size_bytes) return;
    if (resident_bytes > 0 && Clock::now() >= end) return;
    if (interruption.is_due()) interruption.check();
    static_cast<void>(window.file->populate(window.range));  // what it cannot bring, the read does
    scratch.resize(window.range.size_bytes);
    read_fully(*window.file, window.range.offset, scratch);
    windows.resident.push_back(window);
    resident_bytes += window.range.size_bytes;
    room_bytes -= window.range.size_bytes;
  }
}

}  // namespace

Limit measure_page_cache(const std::vector<std::shared_ptr<const File>>& files, std::uint32_t reader_count,
                         const Measuring& measuring) {
  Interruption interruption(measuring.interrupted);
  Windows windows = windows_of(files, interruption);
  bring_in(windows, measuring, interruption);
  const std::string smallest = size_text(cached_sizes.back());
  if (windows.resident.empty() && windows.absent.empty())
    return not_measured("every file is smaller than " + smallest);
  if (windows.resident.empty()) return not_measured("there is no room in the page cache");
  ReadPlaces places(windows.resident);
  Limit best;
  const Measuring point{measuring.duration / cached_sizes.size(), measuring.interrupted};
  const std::uint32_t depth = reader_count * cached_reads_per_reader;
  for (const std::uint64_t size_bytes : cached_sizes) {
    if (!places.has_room_for(size_bytes)) continue;
    const ReadShape shape{
        size_bytes, static_cast<std::uint32_t>(std::min<std::uint64_t>(depth, memory_bytes_max / size_bytes)),
        reader_count, IoUring::off};
    const ReadRate rate = measure_reads(places, ReadMode::buffered, shape, point);
    if (rate.bytes_per_second <= best.bytes_per_second) continue;
    best = {.bytes_per_second = rate.bytes_per_second,
            .how = fmt::format("{} of it read into host memory by {} thread{}, {} each time",
                               bytes_text(bytes_of(windows.resident)), reader_count,
                               reader_count == 1 ? "" : "s", size_text(size_bytes))};
  }
  for (const ReadPlace& window : windows.resident) {
    if (!window.file->is_resident(window.range))
      return not_measured("the kernel took pages back while they were read: host memory is short");
  }
  return best;
}

Limit measure_pinned(Gpu& gpu, const Measuring& measuring) {
  static_assert(pinned_piece_bytes * pinned_piece_count <= memory_bytes_max);
  if (gpu.is_host()) return not_measured("the target is the CPU, to which nothing is copied");
  HostPages pages(pinned_piece_count * pinned_piece_bytes);
  pages.populate(0, pages.bytes().size());
  std::string refusal;
  const std::shared_ptr<void> pin = gpu.pin(pages.bytes(), refusal);
  if (pin == nullptr) return not_measured("pinned memory is refused: " + refusal);
  const std::shared_ptr<void> target = gpu.allocate(pinned_piece_bytes, 256);
  const std::unique_ptr<CopyStream> stream = gpu.open_stream();
  Interruption interruption(measuring.interrupted);
  double best = 0;
  const Clock::time_point end = later(Clock::now(), measuring.duration);
  for (int round = 0; round < pinned_rounds_min || Clock::now() < end; ++round) {
    const Clock::time_point start = Clock::now();
    std::vector<std::uint64_t> tickets;
    for (int pass = 0; pass < pinned_passes_per_round; ++pass) {
      for (std::uint64_t piece = 0; piece < pinned_piece_count; ++piece) {
        const Copy copy{.source = pages.bytes().data() + piece * pinned_piece_bytes,
                        .target = target.get(),
                        .row_bytes = pinned_piece_bytes};
        stream->copy({&copy, 1});
      }
      tickets.push_back(stream->record());
    }
    for (const std::uint64_t ticket : tickets) {
      stream->wait(ticket);
      if (interruption.is_due()) interruption.check();
    }
    constexpr double round_bytes = pinned_passes_per_round * pinned_piece_count * pinned_piece_bytes;
    best = std::max(best, round_bytes / seconds_between(start, Clock::now()));
  }
  return {.bytes_per_second = best,
          .how = fmt::format("copies of {} from pinned host memory", size_text(pinned_piece_bytes))};
}

namespace {

// The largest of them: they say most about the storage.
std::vector<std::shared_ptr<const File>> open_files(const Checkpoint& checkpoint) {
  std::vector<const CheckpointFile*> largest;
  for (const CheckpointFile& file : checkpoint.files()) largest.push_back(&file);
  std::ranges::stable_sort(largest, std::ranges::greater{},
                           [](const CheckpointFile* file) { return file->identity.size_bytes; });
  largest.resize(std::min(largest.size(), file_count_max));
  const LocalStore store;
  std::vector<std::shared_ptr<const File>> files;
  for (const CheckpointFile* file : largest) files.push_back(store.open(file->path));
  return files;
}

// What storage or memory refuses is a figure that is missing, and no reason to lose the others.
template <typename Measure>
Limit measured_or_why_not(Measure&& measure) {
  try {
    return measure();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::storage_failed && error.code() != ErrorCode::out_of_memory) throw;
    return not_measured(error.what());
  }
}

}  // namespace

Limits measure_limits(const LimitTask& task, const LimitOptions& options) {
  if (options.duration.count() <= 0)
    throw Error(ErrorCode::invalid_request, "the duration of a figure must be more than 0");
  const Measuring measuring{options.duration, options.interrupted};
  const std::vector<std::shared_ptr<const File>> files = open_files(task.checkpoint);
  const std::uint32_t reader_count =
      choose_ring(task.machine, task.checkpoint.size_bytes(), PageCachePolicy::keep).reader_count;
  Limits limits;
  limits.device = task.gpu->device();
  limits.storage = measured_or_why_not([&] { return measure_storage(files, task.io_uring, measuring); });
  limits.page_cache = measured_or_why_not([&] { return measure_page_cache(files, reader_count, measuring); });
  limits.pinned = measured_or_why_not([&] { return measure_pinned(*task.gpu, measuring); });
  return limits;
}

}  // namespace inrush::engine
