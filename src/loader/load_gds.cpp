#include "loader/load_gds.hpp"

#include <inrush/error.hpp>

#include <fmt/format.h>

#include <cstdint>

namespace inrush::engine {

namespace {

// Twice what its threads read at once, so that none waits for a copy.
constexpr std::uint32_t slot_count = 2 * device_reader_count;

// Depends on nothing but the staging's own slots: a ring that was freed for one of another size would wait
// for the whole device, and a stream of the caller's may be waiting for this load.
RingShape ring_shape(const Plan& plan) { return {plan.slot_bytes, slot_count}; }

}  // namespace

std::string_view LoadGds::name() const { return parts_.plan.path == "gds" ? "GDS" : "cuFile compat"; }

OwnSlots LoadGds::slots() {
  return {.reads = [this] { return reads(); },
          .ranges = parts_.plan.path_is_forced ? OwnSlotRanges::all : OwnSlotRanges::cold,
          .name = name()};
}

// The ring is registered by the first load that needs it, and kept.
GdsReads* LoadGds::reads() {
  if (reads_ != nullptr || has_failed_) return reads_.get();
  const std::shared_ptr<CufileDriver> driver = parts_.opening.driver();
  try {
    if (driver == nullptr) {
      if (const std::optional<Error> failure = parts_.opening.failure()) throw *failure;
      return nullptr;  // still being opened
    }
    std::shared_ptr<const DeviceRing>& ring = parts_.staging.device_ring;
    if (ring != nullptr && (ring->driver() != driver || ring->shape() != ring_shape(parts_.plan)))
      ring = nullptr;
    if (ring == nullptr)
      ring = std::make_shared<const DeviceRing>(*parts_.staging.gpu, driver, ring_shape(parts_.plan));
    reads_ = std::make_unique<GdsReads>(ring);
  } catch (const Error& error) {
    has_failed_ = true;
    parts_.fallbacks.record(name(), error.what());
  }
  return reads_.get();
}

void LoadGds::judge() {
  if (reads_ == nullptr && !has_failed_)
    parts_.fallbacks.record(name(), "libcufile was still being opened when the load ended");
  const GdsProof proof = reads_ != nullptr ? reads_->proof() : GdsProof{};
  parts_.report.set_proof(proof, parts_.plan.path);
  if (parts_.plan.path != "gds" || proof.way != GdsWay::compat) return;
  const std::string reason =
      fmt::format("libcufile read by its compat mode although that was forbidden: {}", proof.reason);
  parts_.fallbacks.record(name(), reason);
  parts_.opening.condemn(reason);
}

}  // namespace inrush::engine
