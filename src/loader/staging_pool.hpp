// What a load needs to stage bytes: ring, read queue and copy stream of one device. Dear to make, so the
// Loader keeps them between loads and lends one to each load; the memory of all rings together stays within
// the budget.
#pragma once

#include <inrush/error.hpp>
#include <inrush/loader.hpp>

#include "base/fallbacks.hpp"
#include "gpu/gpu.hpp"
#include "storage/local_queue.hpp"
#include "transfer/device_ring.hpp"
#include "transfer/ring.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace inrush::engine {

struct Staging {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<Ring> ring;
  std::shared_ptr<Fallbacks> fallbacks;  // what the queue was refused: true for every load that uses it
  std::unique_ptr<CopyStream> stream;
  std::unique_ptr<LocalQueue> queue;
  std::uint32_t reader_count = 0;
  bool path_reads = false;
  bool is_registered = false;                     // the ring, with the queue, as fixed buffers
  std::shared_ptr<const DeviceRing> device_ring;  // made by the first load that reads by cuFile
};

struct StagingRequest {
  std::shared_ptr<Gpu> gpu;
  RingShape shape;
  std::uint32_t reader_count = 1;
  bool path_reads = false;  // its thread is one of the readers
  IoUring io_uring = IoUring::automatic;
};

class StagingPool {
 public:
  explicit StagingPool(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Bytes that a further load may stage in; idle ones count as free. Throws out_of_memory where other loads
  // leave too little.
  [[nodiscard]] std::uint64_t available_bytes() const;
  // Throws out_of_memory where the budget is in use by other loads.
  [[nodiscard]] std::unique_ptr<Staging> lend(const StagingRequest& request);
  // Takes it back for the next load.
  void give_back(std::unique_ptr<Staging> staging);
  // Gives it up: reads that never returned still use it. They keep its ring alive; it no longer counts.
  void abandon(std::unique_ptr<Staging> staging) noexcept;
  void release_idle();

 private:
  [[nodiscard]] Error all_lent_locked() const;

  mutable std::mutex mutex_;
  std::uint64_t bytes_max_;
  std::uint64_t lent_bytes_ = 0;
  std::vector<std::unique_ptr<Staging>> idle_;
};

}  // namespace inrush::engine
