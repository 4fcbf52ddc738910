#include "loader/read_ahead.hpp"

#include <inrush/error.hpp>

#include "base/clock.hpp"
#include "base/engine_thread.hpp"
#include "loader/host_facts.hpp"
#include "loader/warm.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

using namespace std::chrono_literals;

// A device that is open, or not there, is known before: then nothing is to be read.
constexpr auto head_start = 10ms;
// What a cancel gives a read, too (transfer/piece_run). A window of 16 MiB takes 9 ms of a drive.
constexpr auto end_patience = 100ms;

// Where the whole checkpoint fits, the plan will keep what is read, whatever part of it that is.
bool will_keep_pages(const Checkpoint& checkpoint, PageCachePolicy policy) {
  if (policy != PageCachePolicy::automatic) return policy == PageCachePolicy::keep;
  return checkpoint.size_bytes() + checkpoint.size_bytes() / 10 <= read_host_facts().free_bytes;
}

bool reads_through_host(PathPreference path) {
  return path == PathPreference::automatic || path == PathPreference::staged;
}

}  // namespace

struct ReadAhead::Shared {
  Checkpoint checkpoint;
  LoadRequest request;  // which bytes, and nothing of the caller's
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  bool has_ended = false;
  std::atomic<std::uint64_t> read_bytes = 0;

  bool wait_for_end(Clock::duration patience) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, patience, [this] { return is_over; });
  }

  void run() noexcept {
    try {
      if (!wait_for_end(head_start) && will_keep_pages(checkpoint, request.page_cache)) {
        request.interrupted = [this] { return wait_for_end(0ms); };
        static_cast<void>(warm_within(checkpoint, request,
                                      {.room_bytes = [] { return page_cache_room_bytes(); },
                                       .on_read = [this](std::uint64_t bytes) { read_bytes += bytes; }}));
      }
    } catch (const std::exception&) {  // it was ended, or the load meets the same
    }
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }
};

ReadAhead::ReadAhead(const Checkpoint& checkpoint, const LoadRequest& request) {
  if (!reads_through_host(request.path) || request.page_cache == PageCachePolicy::bypass || request.select) {
    return;
  }
  shared_ = std::make_shared<Shared>();
  shared_->checkpoint = checkpoint;
  shared_->request.only = request.only;
  shared_->request.slices = request.slices;
  shared_->request.page_cache = request.page_cache;
  try {
    thread_ = start_engine_thread("inrush-ahead", [shared = shared_] { shared->run(); });
  } catch (const std::system_error&) {  // the load says what a machine without threads cannot do
    shared_.reset();
  }
}

ReadAhead::~ReadAhead() { end(); }

std::uint64_t ReadAhead::end() noexcept {
  if (!thread_.joinable()) return shared_ == nullptr ? 0 : shared_->read_bytes.load();
  std::unique_lock lock(shared_->mutex);
  shared_->is_over = true;
  shared_->changed.notify_all();
  const bool has_ended = shared_->changed.wait_for(lock, end_patience, [this] { return shared_->has_ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return shared_->read_bytes;
}

}  // namespace inrush::engine
