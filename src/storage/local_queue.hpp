// The queue of local files: direct reads through io_uring where the machine has it, reads into device memory
// and all others on threads, one wait for all of them. Owned by one load; one thread submits and waits. Its
// own threads outlive it only inside a read that does not return.
#pragma once

#include <inrush/loader.hpp>

#include "base/fallbacks.hpp"
#include "storage/completion_list.hpp"
#include "storage/read_queue.hpp"
#include "storage/reader_threads.hpp"
#include "storage/uring_reads.hpp"

#include <cstdint>
#include <memory>

namespace inrush::engine {

// Threads for reads into device memory, beside the others and only once there is such a read: they sleep in
// the kernel while the devices work.
inline constexpr std::uint32_t device_reader_count = 16;

struct LocalQueueOptions {
  std::uint32_t reader_count = 4;  // at least 1
  // Whether the thread that waits reads, too, what is in memory. Where there are as many readers as CPUs, it
  // would else get its turn late, and they stand still meanwhile.
  bool waiter_reads = false;
  std::uint32_t ring_depth = 64;  // direct reads that io_uring has in flight at once
  IoUring io_uring = IoUring::automatic;
  StagingMemory staging = {};                 // as register_staging(); may be empty
  std::shared_ptr<Fallbacks> fallbacks = {};  // none: refusals are not recorded
};

class LocalQueue final : public ReadQueue {
 public:
  // Throws out_of_memory where no thread can be started. io_uring refused: recorded, threads read instead.
  explicit LocalQueue(LocalQueueOptions options);
  ~LocalQueue() override;
  LocalQueue(const LocalQueue&) = delete;
  LocalQueue& operator=(const LocalQueue&) = delete;

  void submit(ReadRequest request) override;
  [[nodiscard]] std::size_t wait(std::span<Completion> completions, Clock::time_point until) override;
  [[nodiscard]] std::size_t in_flight_count() const noexcept override;

  // Memory that direct reads will land in, in addition to what was registered before: it becomes a fixed
  // buffer, so that the kernel does not pin and release its pages for each read. Held until the queue ends.
  // Refused: recorded, plain reads.
  void register_staging(StagingMemory staging);
  [[nodiscard]] bool has_io_uring() const noexcept { return uring_ != nullptr; }

 private:
  const QueueLinks links_;
  const bool waiter_reads_;
  std::shared_ptr<ReaderThreads> readers_;
  std::unique_ptr<ReaderThreads> device_readers_;
  std::unique_ptr<UringReads> uring_;  // after readers_: it ends first, and may still hand reads to them
};

}  // namespace inrush::engine
