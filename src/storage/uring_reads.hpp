// Direct reads through io_uring. One thread owns the ring, submits and reaps; submit() hands it requests from
// any thread. It is a thread of ours because a task that exits waits in the kernel for the reads it
// submitted: a thread of the caller's would hang on a dead mount. Owned by a LocalQueue; with a read in
// flight at its end, the thread stays until that returns.
#pragma once

#include "storage/read_queue.hpp"
#include "storage/reader_threads.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>

namespace inrush::engine {

// Staging memory with what keeps it alive. The owner is needed: a stale registration would let reads land in
// pages that the process no longer maps there.
struct StagingMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

class UringReads {
 public:
  // Takes a request that the ring could not; called from any thread, must not throw.
  using Decline = std::function<void(ReadRequest)>;

  // Nothing where io_uring is refused; the reason is recorded under "io_uring".
  [[nodiscard]] static std::unique_ptr<UringReads> start(std::uint32_t depth, const QueueLinks& links,
                                                         Decline decline);
  ~UringReads();
  UringReads(const UringReads&) = delete;
  UringReads& operator=(const UringReads&) = delete;

  // The file offers a direct descriptor; the completion is expected already.
  void submit(ReadRequest request);
  // As LocalQueue::register_staging(). Done by the ring's thread before any read that is submitted later.
  void register_staging(StagingMemory staging);

 private:
  class Ring;
  UringReads(std::shared_ptr<Ring> ring, std::thread thread);

  std::shared_ptr<Ring> ring_;
  std::thread thread_;
};

}  // namespace inrush::engine
