#include "transfer/device_ring.hpp"

#include <utility>

namespace inrush::engine {

namespace {

// GPU pages are 64 KiB, and a slot that starts inside one is charged for the whole of it.
constexpr std::uint64_t ring_alignment_bytes = 2ULL << 20;

}  // namespace

DeviceRing::DeviceRing(Gpu& gpu, std::shared_ptr<CufileDriver> driver, RingShape shape)
    : shape_(shape),
      driver_(std::move(driver)),
      memory_(gpu.allocate(shape.slot_bytes * shape.slot_count, ring_alignment_bytes)),
      registration_(driver_->register_memory(bytes())) {}

std::span<std::byte> DeviceRing::bytes() const noexcept {
  return {static_cast<std::byte*>(memory_.get()), shape_.slot_bytes * shape_.slot_count};
}

std::span<std::byte> DeviceRing::slot(std::uint32_t index) const noexcept {
  return bytes().subspan(index * shape_.slot_bytes, shape_.slot_bytes);
}

}  // namespace inrush::engine
