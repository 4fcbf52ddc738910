// The clock of deadlines and stages.
#pragma once

#include <chrono>

namespace inrush::engine {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace inrush::engine
