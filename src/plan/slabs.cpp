#include "plan/slabs.hpp"

#include "base/range.hpp"

#include <algorithm>

namespace inrush::engine {

namespace {

// A window has to hold the slab that is being filled, the one being taken and the next ones: with quarters,
// reading never waits for the very last tensor of a slab to be taken.
constexpr std::uint64_t slabs_per_window = 4;

// Targets lie anywhere, so a group has no extent: its bytes alone bound it. One large enough makes the pieces
// as long as those of an allocated slab. The placement's offset is the address until the lowest one is known.
void add_target(const Selected& one, const Device& device, const SlabLimits& limits, SlabLayout& layout) {
  const std::uint64_t size_bytes = one.rows.size_bytes();
  const bool has_room = !layout.slabs.empty() && layout.slabs.back().target_address != 0 &&
                        layout.slabs.back().size_bytes + size_bytes <= limits.group_bytes_max;
  if (!has_room) layout.slabs.push_back({device, 0, 1, 0, 0, one.target_address});
  Slab& slab = layout.slabs.back();
  slab.size_bytes += size_bytes;
  slab.target_address = std::min(slab.target_address, one.target_address);
  const auto index = static_cast<std::uint32_t>(layout.slabs.size() - 1);
  layout.placements.push_back({one.tensor, index, one.target_address, size_bytes, one.slice});
}

}  // namespace

SlabLimits slab_limits(const LoadRequest& request, const Machine& machine) {
  SlabLimits limits = {machine.slab_bytes_max, machine.own_slab_bytes_min, machine.slab_bytes_max};
  if (request.window_bytes_max > 0) {
    limits.slab_bytes_max = std::min(limits.slab_bytes_max, request.window_bytes_max / slabs_per_window);
  }
  return limits;
}

SlabLayout lay_slabs(const std::vector<Selected>& selected, const Device& device, const SlabLimits& limits) {
  SlabLayout layout;
  layout.placements.reserve(selected.size());
  bool is_open = false;  // whether the last slab takes further tensors
  for (const Selected& one : selected) {
    const std::uint64_t size_bytes = one.rows.size_bytes();
    if (size_bytes == 0) {
      layout.placements.push_back({one.tensor, 0, 0, 0, one.slice});
      continue;
    }
    if (one.target_address != 0) {
      add_target(one, device, limits, layout);
      continue;
    }
    const bool is_alone = size_bytes >= limits.own_slab_bytes_min || size_bytes > limits.slab_bytes_max;
    std::uint64_t slab_offset =
        is_open ? round_up(layout.slabs.back().size_bytes, tensor_alignment_bytes) : 0;
    if (!is_open || is_alone || slab_offset > limits.slab_bytes_max - size_bytes) {
      layout.slabs.push_back({device, 0, tensor_alignment_bytes, 0, 0, 0});
      slab_offset = 0;
    }
    const auto slab = static_cast<std::uint32_t>(layout.slabs.size() - 1);
    layout.placements.push_back({one.tensor, slab, slab_offset, size_bytes, one.slice});
    layout.slabs.back().size_bytes = slab_offset + size_bytes;
    is_open = !is_alone;
  }
  for (Placement& placement : layout.placements) {
    if (placement.size_bytes > 0) placement.slab_offset -= layout.slabs[placement.slab].target_address;
  }
  return layout;
}

std::uint64_t allocated_bytes(const Plan& plan) {
  std::uint64_t bytes = plan.loaded_bytes;
  for (const Slab& slab : plan.slabs) {
    if (slab.target_address != 0) bytes -= slab.size_bytes;
  }
  return bytes;
}

}  // namespace inrush::engine
