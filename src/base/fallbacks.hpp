// Where every step down is written: what was given up, why, how often. Shared by the parts of one load;
// thread-safe.
#pragma once

#include <inrush/report.hpp>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {

class Fallbacks {
 public:
  // Returns true the first time that this pair is recorded, so that the caller can log it once.
  bool record(std::string_view what, std::string_view reason) {
    const std::lock_guard lock(mutex_);
    for (Fallback& known : list_) {
      if (known.what == what && known.reason == reason) {
        ++known.count;
        return false;
      }
    }
    list_.push_back({std::string(what), std::string(reason), 1});
    return true;
  }

  [[nodiscard]] std::vector<Fallback> list() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Fallback> list_;
};

}  // namespace inrush::engine
