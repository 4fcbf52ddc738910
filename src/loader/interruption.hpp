// When LoadRequest::interrupted is asked. On the consumer's thread.
#pragma once

#include "base/clock.hpp"
#include "base/interruption.hpp"

#include <chrono>
#include <functional>

namespace inrush::engine {

class Interruption {
 public:
  // `interrupted` must outlive it.
  explicit Interruption(const std::function<bool()>& interrupted) : interrupted_(interrupted) {}

  // Asks. Throws cancelled, and what the caller's function throws.
  void check() {
    if (!interrupted_) return;
    check_interrupted(interrupted_);
    due_ = Clock::now() + period;
  }
  // Whether the last question is so long ago that it is time for the next. A consumer may take a million
  // tensors, and each question may cost it a lock of its own (Python's).
  [[nodiscard]] bool is_due() const { return interrupted_ && Clock::now() >= due_; }
  // A wait must end then, so that it is asked again; the end of time where nobody is to be asked.
  [[nodiscard]] Clock::time_point due() const { return interrupted_ ? due_ : Clock::time_point::max(); }

 private:
  // 50 ms are promised.
  static constexpr auto period = std::chrono::milliseconds(20);

  const std::function<bool()>& interrupted_;
  Clock::time_point due_ = Clock::time_point::min();
};

}  // namespace inrush::engine
