// The path that a load takes, on the path's thread.
#include "loader/load_gds.hpp"
#include "loader/load_impl.hpp"
#include "plan/slabs.hpp"
#include "transfer/gds_path.hpp"
#include "transfer/staged_path.hpp"
#include "transfer/window_reads.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace inrush::engine {

namespace {

// One is filled and one copied from; the third is ready when either ends.
constexpr std::uint32_t window_count = 3;
// Below, device memory to stage small tensors in would be half of what is loaded, for less than a
// millisecond.
constexpr std::uint64_t staged_load_bytes_min = 64ULL << 20;
constexpr const char* window_name = "page cache windows";

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
  std::unique_ptr<WindowReads> windows;
  try {
    if (parts_.plan.page_cache_windows)
      windows =
          std::make_unique<WindowReads>(parts_.gpu, RingShape{parts_.plan.slot_bytes, window_count},
                                        parts_.plan.reader_count > 1 ? Populate::always : Populate::missing);
  } catch (const Error& error) {
    fallbacks_.record(window_name, error.what());
  }
  if (windows == nullptr) return StagedPath(std::move(staged)).run(parts_.plan, *this);
  OwnSlots slots{
      .reads = [&] { return windows.get(); }, .ranges = OwnSlotRanges::resident, .name = window_name};
  try {
    StagedPath(std::move(staged), std::move(slots)).run(parts_.plan, *this);
  } catch (...) {
    report_.set_windows(windows->peak_bytes());
    throw;
  }
  report_.set_windows(windows->peak_bytes());
}

void LoadImpl::set_kernel_use() {
  KernelUse use = parts_.plan.loaded_bytes < staged_load_bytes_min ? KernelUse::alone : KernelUse::staged;
  if (parts_.streams_wait_for_values) use = KernelUse::forbidden;
  const std::uint64_t window_bytes = parts_.request.window_bytes_max;
  const std::uint64_t bytes = allocated_bytes(parts_.plan);
  staging_->stream->use_kernel(use, window_bytes == 0 ? bytes : std::min(bytes, window_bytes));
}

void LoadImpl::register_ring() {
  if (std::exchange(staging_->is_registered, true)) return;
  staging_->queue->register_staging({staging_->ring->bytes(), staging_->ring});
}

}  // namespace inrush::engine
