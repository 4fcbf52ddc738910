#include "transfer/ring.hpp"

#include <algorithm>

namespace inrush::engine {

namespace {

// What one call pins: what copies join at most (transfer/copy_runs), and whole huge pages, since a page is
// registered once.
constexpr std::uint64_t pinned_at_once_bytes = 16ULL << 20;

}  // namespace

Ring::Ring(RingShape shape)
    : shape_(shape),
      pages_(shape.slot_bytes * shape.slot_count),
      used_(shape.slot_count),
      pins_(pages_.bytes().size() / group_bytes() + 1) {}

// Small slots divide a huge page, larger ones are made of them.
std::uint64_t Ring::group_bytes() const noexcept {
  return std::max<std::uint64_t>(pinned_at_once_bytes / shape_.slot_bytes, 1) * shape_.slot_bytes;
}

std::uint32_t Ring::pin_group(std::uint32_t index) const noexcept {
  return static_cast<std::uint32_t>(index * shape_.slot_bytes / group_bytes());
}

std::span<std::byte> Ring::slot_memory(std::uint32_t index) const noexcept {
  return pages_.bytes().subspan(index * shape_.slot_bytes, shape_.slot_bytes);
}

std::span<std::byte> Ring::use_slot(std::uint32_t index) noexcept {
  used_[index] = true;
  return slot_memory(index);
}

void Ring::pin_slot(std::uint32_t index, Gpu& gpu) {
  const std::uint32_t group = pin_group(index);
  if (pins_[group] != nullptr || gpu.is_host() || !pin_refusal_.empty()) return;
  const std::span<std::byte> rest = pages_.bytes().subspan(group * group_bytes());
  std::string refusal;
  pins_[group] = gpu.pin(rest.first(std::min<std::uint64_t>(rest.size(), group_bytes())), refusal);
  if (pins_[group] == nullptr) pin_refusal_ = refusal;
}

void Ring::pin_all(Gpu& gpu) {
  for (std::uint32_t index = 0; index < shape_.slot_count; ++index) pin_slot(index, gpu);
}

void Ring::report_refusals(Fallbacks& fallbacks) const {
  if (!pages_.huge_page_refusal().empty()) fallbacks.record("huge pages", pages_.huge_page_refusal());
  if (!pin_refusal_.empty()) fallbacks.record("pinned memory", pin_refusal_);
}

std::uint64_t Ring::pinned_bytes() const noexcept {
  const auto count =
      std::count_if(pins_.begin(), pins_.end(), [](const auto& pin) { return pin != nullptr; });
  return std::min<std::uint64_t>(static_cast<std::uint64_t>(count) * group_bytes(), pages_.bytes().size());
}

std::uint64_t Ring::used_bytes() const noexcept {
  return static_cast<std::uint64_t>(std::count(used_.begin(), used_.end(), true)) * shape_.slot_bytes;
}

}  // namespace inrush::engine
