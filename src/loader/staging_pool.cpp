#include "loader/staging_pool.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace inrush::engine {

namespace {

// Two slots of the least size that copies to a device at speed.
constexpr std::uint64_t staging_bytes_floor = 2ULL << 20;

bool fits(const Staging& staging, const StagingRequest& request) {
  return staging.gpu == request.gpu && staging.ring->shape() == request.shape &&
         staging.reader_count == request.reader_count && staging.path_reads == request.path_reads;
}

std::unique_ptr<Staging> make_staging(const StagingRequest& request) {
  auto staging = std::make_unique<Staging>();
  staging->gpu = request.gpu;
  staging->ring = std::make_shared<Ring>(request.shape);
  staging->stream = request.gpu->open_stream();
  staging->reader_count = request.reader_count;
  staging->path_reads = request.path_reads;
  staging->fallbacks = std::make_shared<Fallbacks>();
  // Two threads at least: the path reads nothing that is not in memory.
  const std::uint32_t thread_count =
      std::max(std::min(2U, request.reader_count), request.reader_count - (request.path_reads ? 1 : 0));
  staging->queue = std::make_unique<LocalQueue>(LocalQueueOptions{.reader_count = thread_count,
                                                                  .waiter_reads = request.path_reads,
                                                                  .io_uring = request.io_uring,
                                                                  .staging = {},
                                                                  .fallbacks = staging->fallbacks});
  return staging;
}

}  // namespace

Error StagingPool::all_lent_locked() const {
  return {ErrorCode::out_of_memory,
          fmt::format(
              "{} of the staging budget of {} is in use by other loads of this Loader; finish one or raise "
              "staging_bytes_max",
              bytes_text(lent_bytes_), bytes_text(bytes_max_))};
}

std::uint64_t StagingPool::available_bytes() const {
  const std::lock_guard lock(mutex_);
  const std::uint64_t left_bytes = bytes_max_ - std::min(bytes_max_, lent_bytes_);
  if (lent_bytes_ > 0 && left_bytes < staging_bytes_floor) throw all_lent_locked();
  return left_bytes;
}

std::unique_ptr<Staging> StagingPool::lend(const StagingRequest& request) {
  const std::uint64_t wanted_bytes = request.shape.slot_bytes * request.shape.slot_count;
  std::vector<std::unique_ptr<Staging>> dropped;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    if (lent_bytes_ + wanted_bytes > bytes_max_) throw all_lent_locked();
    lent_bytes_ += wanted_bytes;
    for (auto& staging : idle_) {
      if (!fits(*staging, request)) continue;
      std::unique_ptr<Staging> found = std::move(staging);
      std::erase(idle_, nullptr);
      return found;
    }
    // Of another shape: the budget is for what is used. Letting go of a ring waits for streams that wait.
    if (!request.gpu->streams_wait()) dropped.swap(idle_);
  }
  dropped.clear();
  try {
    return make_staging(request);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    lent_bytes_ -= wanted_bytes;
    throw;
  }
}

void StagingPool::give_back(std::unique_ptr<Staging> staging) {
  const std::lock_guard lock(mutex_);
  lent_bytes_ -= staging->ring->bytes().size();
  idle_.push_back(std::move(staging));
}

void StagingPool::abandon(std::unique_ptr<Staging> staging) noexcept {
  const std::lock_guard lock(mutex_);
  lent_bytes_ -= staging->ring->bytes().size();
}

void StagingPool::release_idle() {
  std::vector<std::unique_ptr<Staging>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(idle_);
}

}  // namespace inrush::engine
