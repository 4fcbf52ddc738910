// Storage -> staging ring -> device: reads fill slots, each filled slot is copied straight to its final
// address, and an event of the copy stream guards the slot. On the CPU target a buffered read of a whole run
// lands in place, without a slot's memory.
#pragma once

#include "base/fallbacks.hpp"
#include "base/stop_signal.hpp"
#include "gpu/gpu.hpp"
#include "storage/read_queue.hpp"
#include "transfer/ring.hpp"
#include "transfer/transfer_path.hpp"

#include <functional>
#include <memory>

namespace inrush::engine {

// What a StagedPath works with. All of it is used by the thread in run() alone while that lasts.
struct StagedParts {
  Gpu& gpu;
  CopyStream& stream;
  ReadQueue& queue;  // with nothing in flight
  std::shared_ptr<Ring> ring;
  Fallbacks& fallbacks;
  const StopSignal& stop;
  std::function<void()>
      before_direct;  // called once before the first direct read: registers the ring with the queue
};

class StagedPath final : public TransferPath {
 public:
  explicit StagedPath(StagedParts parts) : parts_(std::move(parts)) {}
  void run(const Plan& plan, TransferSink& sink) override;

 private:
  StagedParts parts_;
};

}  // namespace inrush::engine
