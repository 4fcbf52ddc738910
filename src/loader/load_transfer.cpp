// The path that a load takes, on the path's thread.
#include "loader/load_gds.hpp"
#include "loader/load_impl.hpp"
#include "transfer/gds_path.hpp"
#include "transfer/staged_path.hpp"
#include "transfer/window_reads.hpp"

#include <utility>

namespace inrush::engine {

namespace {

// One is filled and one copied from; the third is ready when either ends.
constexpr std::uint32_t window_count = 3;

}  // namespace

void LoadImpl::run_transfer() {
  StagedParts staged{.gpu = *parts_.gpu,
                     .stream = *staging_->stream,
                     .queue = *staging_->queue,
                     .ring = staging_->ring,
                     .fallbacks = fallbacks_,
                     .stop = stop_,
                     .before_direct = [this] { register_ring(); }};
  if (parts_.cufile == nullptr) return run_staged(std::move(staged));
  LoadGds gds({.plan = parts_.plan,
               .opening = *parts_.cufile,
               .staging = *staging_,
               .fallbacks = fallbacks_,
               .report = report_});
  try {
    GdsPath(std::move(staged), gds.slots()).run(parts_.plan, *this);
  } catch (...) {
    gds.judge();
    throw;
  }
  gds.judge();
}

void LoadImpl::run_staged(StagedParts staged) {
  // Registering windows in mid-load would wait for the streams that wait for it.
  if (!parts_.plan.page_cache_windows || parts_.streams_wait_for_values)
    return StagedPath(std::move(staged)).run(parts_.plan, *this);
  WindowReads windows(parts_.gpu, {parts_.plan.slot_bytes, window_count});
  OwnSlots slots{
      .reads = [&] { return &windows; }, .ranges = OwnSlotRanges::cached, .name = "page cache windows"};
  try {
    StagedPath(std::move(staged), std::move(slots)).run(parts_.plan, *this);
  } catch (...) {
    report_.set_windows(windows.peak_bytes());
    throw;
  }
  report_.set_windows(windows.peak_bytes());
}

void LoadImpl::register_ring() {
  if (std::exchange(staging_->is_registered, true)) return;
  staging_->queue->register_staging({staging_->ring->bytes(), staging_->ring});
}

}  // namespace inrush::engine
