// What every path does with the pieces of a plan: reads fill slots, each filled slot is copied to its final
// address, an event of the copy stream guards the slot. A piece comes through a slot of host memory or, where
// cuFile reads, of device memory. On the CPU target a buffered read of a whole run lands in place.
#pragma once

#include "base/fallbacks.hpp"
#include "base/stop_signal.hpp"
#include "gpu/gpu.hpp"
#include "storage/read_queue.hpp"
#include "transfer/gds_reads.hpp"
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

enum class ResidentRanges : std::uint8_t {
  staged,     // what the page cache has comes from there, which nothing beats
  by_cufile,  // also they go by cuFile: the path was forced
};

struct GdsParts {
  // Asked before each piece until it gives something: nothing while cuFile is being opened, and for good
  // where that failed (the fallback is recorded then).
  std::function<GdsReads*()> reads;
  ResidentRanges resident = ResidentRanges::staged;
  std::string_view name = "GDS";  // of the path, in fallbacks; a literal
};

// Moves all that the sink hands out, as TransferPath::run(). `gds` null: through host memory alone.
void run_pieces(StagedParts& parts, const GdsParts* gds, const Plan& plan, TransferSink& sink);

}  // namespace inrush::engine
