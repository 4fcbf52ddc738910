#include "loader/read_ahead.hpp"

#include <inrush/plan.hpp>

#include "base/clock.hpp"
#include "base/engine_thread.hpp"
#include "loader/host_facts.hpp"
#include "loader/warm.hpp"
#include "plan/choices.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

using namespace std::chrono_literals;

// A device that is open, or not there, is known before: then nothing is to be read.
constexpr auto head_start = 20ms;
// What a cancel gives a read, too (transfer/piece_run). A stretch of 16 MiB takes 9 ms of a drive.
constexpr auto end_patience = 100ms;
// Planning a million tensors takes as long as the context, and the load's own plan would wait for the CPU.
constexpr std::size_t tensor_count_max = 100'000;

// Where the whole checkpoint fits, the plan will keep what is read, whatever part of it that is.
bool will_keep_pages(const Checkpoint& checkpoint, PageCachePolicy policy) {
  Machine machine;
  machine.host_free_bytes = read_host_facts().free_bytes;
  return choose_page_cache(policy, checkpoint.size_bytes(), machine).policy == PageCachePolicy::keep;
}

bool may_read_ahead(const Checkpoint& checkpoint, const LoadRequest& request) {
  return (request.path == PathPreference::automatic || request.path == PathPreference::staged) &&
         request.page_cache != PageCachePolicy::bypass && !request.select &&
         checkpoint.tensor_count() <= tensor_count_max;
}

}  // namespace

struct ReadAhead::Shared {
  Checkpoint checkpoint;
  LoadRequest request;  // which bytes, and nothing of the caller's
  std::shared_ptr<const Store> store;
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
                                      {.store = *store,
                                       .room_bytes = [] { return page_cache_room_bytes(); },
                                       .on_read = [this](std::uint64_t bytes) { read_bytes += bytes; }}));
      }
    } catch (const std::exception&) {  // it was ended, or the load meets the same
    }
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }
};

ReadAhead::ReadAhead(const Checkpoint& checkpoint, const LoadRequest& request,
                     std::shared_ptr<const Store> store)
    : shared_(std::make_shared<Shared>()) {
  if (!may_read_ahead(checkpoint, request)) return;
  shared_->checkpoint = checkpoint;
  shared_->request.only = request.only;
  shared_->request.slices = request.slices;
  shared_->request.page_cache = request.page_cache;
  shared_->store = std::move(store);
  try {
    thread_ = start_engine_thread("inrush-ahead", [shared = shared_] { shared->run(); });
  } catch (const std::system_error&) {  // the load says what a machine without threads cannot do
  }
}

ReadAhead::~ReadAhead() {
  if (!thread_.joinable()) return;
  end();
  std::unique_lock lock(shared_->mutex);
  const bool has_ended = shared_->changed.wait_for(lock, end_patience, [this] { return shared_->has_ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void ReadAhead::end() noexcept {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_over = true;
  shared_->changed.notify_all();
}

std::uint64_t ReadAhead::read_bytes() const noexcept { return shared_->read_bytes; }

}  // namespace inrush::engine
