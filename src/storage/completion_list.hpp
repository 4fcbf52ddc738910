// Completions on their way from the threads that read to the one that waits. Shared by a queue and its
// threads, which may outlive it; add() from any thread, the rest from the thread that owns the queue.
#pragma once

#include "base/clock.hpp"
#include "storage/read_queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

namespace inrush::engine {

class CompletionList {
 public:
  // Before a read is handed to another thread. Makes room, so that add() never allocates.
  void expect() {
    const std::lock_guard lock(mutex_);
    done_.reserve(in_flight_count_ + 1);
    ++in_flight_count_;
  }

  void add(const Completion& completion) noexcept {
    const std::lock_guard lock(mutex_);
    done_.push_back(completion);
    // Under the lock: the waiter may destroy its share of this list as soon as it sees the last completion.
    added_.notify_one();
  }

  // As ReadQueue::wait().
  [[nodiscard]] std::size_t wait(std::span<Completion> completions, Clock::time_point until) {
    std::unique_lock lock(mutex_);
    added_.wait_until(lock, until, [this] { return !done_.empty() || in_flight_count_ == 0; });
    const std::size_t count = std::min(completions.size(), done_.size());
    const auto taken_end = done_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(done_.begin(), taken_end, completions.begin());
    done_.erase(done_.begin(), taken_end);
    in_flight_count_ -= count;
    return count;
  }

  // Whether wait() would return one at once.
  [[nodiscard]] bool has_any() const noexcept {
    const std::lock_guard lock(mutex_);
    return !done_.empty();
  }

  // Reads whose completion was not yet returned by wait().
  [[nodiscard]] std::size_t in_flight_count() const noexcept {
    const std::lock_guard lock(mutex_);
    return in_flight_count_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable added_;
  std::vector<Completion> done_;
  std::size_t in_flight_count_ = 0;
};

}  // namespace inrush::engine
