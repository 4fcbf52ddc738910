// What every path does with the pieces of a plan: reads fill slots, each filled slot is copied to its final
// address, an event of the copy stream guards the slot. A piece comes through a slot of the host ring or
// through one that its way of reading brings along (own_slots.hpp). On the CPU target a buffered read of a
// whole run lands in place.
#pragma once

#include "base/fallbacks.hpp"
#include "base/stop_signal.hpp"
#include "gpu/gpu.hpp"
#include "storage/read_queue.hpp"
#include "transfer/own_slots.hpp"
#include "transfer/ring.hpp"
#include "transfer/transfer_path.hpp"

#include <functional>
#include <memory>
#include <string_view>

namespace inrush::engine {

// What moving pieces takes. All of it is used by the thread in run() alone while that lasts.
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

// Moves all that the sink hands out, as TransferPath::run(). `own` null: through the host ring alone.
void run_pieces(StagedParts& parts, const OwnSlots* own, const Plan& plan, TransferSink& sink);

}  // namespace inrush::engine
