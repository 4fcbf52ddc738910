// The caller's streams that wait for words in host memory, all those of a context. Thread-safe; the context
// is bound.
//
// Seen on an H200 with driver 580 (2026-12-01): a device has a few queues for streams, 8 unless told
// otherwise, and once a stream that waits stands in each, copies below 32 KiB and fills of everybody stand
// behind them (from 8 such streams on; with 4 never). And while one stream waits, cuMemFree,
// cuMemHostUnregister and cuModuleLoadData wait for it, and copies of others stand still meanwhile: what it
// waits for never comes. Allocating, registering, launching, and making or destroying streams and events went
// on.
#pragma once

#include "gpu/cuda_table.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace inrush::engine {

class WaitingStreams {
 public:
  struct Wait {
    CuStream stream = nullptr;
    CuEvent behind = nullptr;  // recorded behind the stream's last wait
  };

  // Runs `queue`, which lets the stream wait and records the event. False, and nothing was queued: the stream
  // would be one more than `stream_count_max`.
  template <typename Queue>
  [[nodiscard]] bool add(const CudaTable& table, const Wait& wait, std::uint32_t stream_count_max,
                         Queue&& queue) {
    const std::lock_guard lock(mutex_);
    drop_passed(table);
    if (!behind_.contains(wait.stream) && behind_.size() >= stream_count_max) return false;
    std::forward<Queue>(queue)();
    behind_[wait.stream] = wait.behind;
    return true;
  }

  // Before the event is destroyed.
  void forget(CuEvent event) {
    const std::lock_guard lock(mutex_);
    std::erase_if(behind_, [event](const auto& one) { return one.second == event; });
  }

  [[nodiscard]] bool any(const CudaTable& table) {
    const std::lock_guard lock(mutex_);
    drop_passed(table);
    return !behind_.empty();
  }

  // Makes a call that waits for all streams, unless one waits: then false. None begins to wait meanwhile.
  template <typename Call>
  [[nodiscard]] bool run_alone(const CudaTable& table, Call&& call) {
    const std::lock_guard lock(mutex_);
    drop_passed(table);
    if (!behind_.empty()) return false;
    std::forward<Call>(call)();
    return true;
  }

  // Memory to free once no stream waits. Throws std::bad_alloc.
  void keep(CuAddress address) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(address);
  }
  // Inside run_alone().
  [[nodiscard]] std::vector<CuAddress> take_kept() noexcept { return std::exchange(kept_, {}); }

 private:
  void drop_passed(const CudaTable& table) {
    std::erase_if(behind_,
                  [&](const auto& one) { return table.event_query(one.second) != CuResult::not_ready; });
  }

  std::mutex mutex_;
  std::map<CuStream, CuEvent> behind_;  // by stream
  std::vector<CuAddress> kept_;
};

}  // namespace inrush::engine
