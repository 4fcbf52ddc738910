#include "plan/slabs.hpp"

#include "base/range.hpp"

#include <algorithm>

namespace inrush::engine {

namespace {

// A window has to hold the slab that is being filled, the one being taken and the next ones: with quarters,
// reading never waits for the very last tensor of a slab to be taken.
constexpr std::uint64_t slabs_per_window = 4;

}  // namespace

SlabLimits slab_limits(const LoadRequest& request, const Machine& machine) {
  SlabLimits limits = {machine.slab_bytes_max, machine.own_slab_bytes_min};
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
    const bool is_alone = size_bytes >= limits.own_slab_bytes_min || size_bytes > limits.slab_bytes_max;
    std::uint64_t slab_offset =
        is_open ? round_up(layout.slabs.back().size_bytes, tensor_alignment_bytes) : 0;
    if (!is_open || is_alone || slab_offset > limits.slab_bytes_max - size_bytes) {
      layout.slabs.push_back({device, 0, tensor_alignment_bytes, 0, 0});
      slab_offset = 0;
    }
    const auto slab = static_cast<std::uint32_t>(layout.slabs.size() - 1);
    layout.placements.push_back({one.tensor, slab, slab_offset, size_bytes, one.slice});
    layout.slabs.back().size_bytes = slab_offset + size_bytes;
    is_open = !is_alone;
  }
  return layout;
}

}  // namespace inrush::engine
