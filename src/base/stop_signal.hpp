// Why a load must end before it is complete: somebody cancelled it, or its deadline passed. Set from any
// thread.
#pragma once

#include <inrush/error.hpp>

#include "base/clock.hpp"

#include <atomic>

namespace inrush::engine {

class StopSignal {
 public:
  explicit StopSignal(Clock::time_point deadline = Clock::time_point::max()) : deadline_(deadline) {}

  void cancel() noexcept { cancelled_.store(true); }
  [[nodiscard]] Clock::time_point deadline() const noexcept { return deadline_; }
  [[nodiscard]] bool is_set() const noexcept { return cancelled_.load() || Clock::now() >= deadline_; }
  // Throws cancelled or timed_out.
  void check() const {
    if (cancelled_.load()) throw Error(ErrorCode::cancelled, "the load was cancelled");
    if (Clock::now() >= deadline_) {
      throw Error(ErrorCode::timed_out, "the deadline passed");
    }
  }

 private:
  Clock::time_point deadline_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace inrush::engine
