// The clock of deadlines and stages.
#pragma once

#include <chrono>

namespace inrush::engine {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// `from` + `duration`, or the end of time where that is beyond it: callers say nanoseconds::max() for "no
// limit".
inline Clock::time_point later(Clock::time_point from, std::chrono::nanoseconds duration) {
  return duration > Clock::time_point::max() - from ? Clock::time_point::max() : from + duration;
}

}  // namespace inrush::engine
