// What the hardware gives, whatever a load makes of it: reads by the queue that loads use, copies from pinned
// memory to a device. For Loader::measure_limits() and the programs of bench/. Everything runs on the
// caller's thread and blocks.
#pragma once

#include <inrush/loader.hpp>

#include "base/range.hpp"
#include "gpu/gpu.hpp"
#include "storage/file.hpp"
#include "storage/read_queue.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace inrush::engine {

// How long one figure takes, and who may end it before.
struct Measuring {
  std::chrono::nanoseconds duration = std::chrono::seconds(1);
  std::function<bool()> interrupted = {};
};

// A part of a file that may be read. It begins at a multiple of every size that is read from it.
struct ReadPlace {
  std::shared_ptr<const File> file;
  ByteRange range;
};

// Whole reads of one size, one place after the other, from the first again after the last. It goes on where
// it was also when the size changes, so that a device's own cache helps as little as it can.
class ReadPlaces {
 public:
  explicit ReadPlaces(std::vector<ReadPlace> places) : places_(std::move(places)) {}

  [[nodiscard]] bool has_room_for(std::uint64_t size_bytes) const;
  // Sets file and offset of a request whose target is there. has_room_for() its size.
  void next(ReadRequest& request);

 private:
  std::vector<ReadPlace> places_;
  std::size_t index_ = 0;
  std::uint64_t offset_ = 0;
};

struct ReadShape {
  std::uint64_t size_bytes = 0;
  std::uint32_t depth = 0;         // reads in flight
  std::uint32_t reader_count = 0;  // threads, for what io_uring does not do
  IoUring io_uring = IoUring::automatic;
};

struct ReadRate {
  double bytes_per_second = 0;
  bool has_io_uring = false;
};

// Keeps `depth` reads in flight for the duration, then takes in what is under way. Uses size_bytes x depth of
// memory. Throws storage_failed (a read failed, or none came back for half a minute), out_of_memory,
// cancelled.
[[nodiscard]] ReadRate measure_reads(ReadPlaces& places, ReadMode mode, const ReadShape& shape,
                                     const Measuring& measuring);

// The whole of each file, for reads by O_DIRECT.
[[nodiscard]] ReadPlaces places_of(const std::vector<std::shared_ptr<const File>>& files);

// The best of several sizes and depths of O_DIRECT, within 256 MiB.
[[nodiscard]] Limit measure_storage(const std::vector<std::shared_ptr<const File>>& files, IoUring io_uring,
                                    const Measuring& measuring);
// Reads of what is resident, by so many threads. Where less than 1 GiB is resident, and the kernel has room,
// pages are brought in first, for as long as the figure takes.
[[nodiscard]] Limit measure_page_cache(const std::vector<std::shared_ptr<const File>>& files,
                                       std::uint32_t reader_count, const Measuring& measuring);
// Copies from pinned huge pages on one stream: what no load can exceed. Takes up to 256 MiB of host and
// 64 MiB of device memory. Throws device_failed, out_of_memory.
[[nodiscard]] Limit measure_pinned(Gpu& gpu, const Measuring& measuring);

// What Loader::measure_limits() knows.
struct LimitTask {
  const Checkpoint& checkpoint;
  Machine machine;
  std::shared_ptr<Gpu> gpu;
  IoUring io_uring = IoUring::automatic;
};
[[nodiscard]] Limits measure_limits(const LimitTask& task, const LimitOptions& options);

}  // namespace inrush::engine
