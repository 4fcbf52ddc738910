// The third step of a plan: the buffers to allocate, the groups of targets, and where in them each tensor
// lies.
#pragma once

#include <inrush/plan.hpp>

#include "plan/select.hpp"

#include <cstdint>
#include <vector>

namespace inrush::engine {

// What cudaMalloc promises and every vector instruction of a GPU is content with.
inline constexpr std::uint64_t tensor_alignment_bytes = 256;

struct SlabLimits {
  std::uint64_t slab_bytes_max = 0;      // only a single larger tensor makes a slab larger
  std::uint64_t own_slab_bytes_min = 0;  // a tensor of this size or more is alone in its slab
  std::uint64_t group_bytes_max =
      0;  // bytes of the targets in one group; only a single larger one exceeds it
};

[[nodiscard]] SlabLimits slab_limits(const LoadRequest& request, const Machine& machine);

struct SlabLayout {
  std::vector<Slab> slabs;            // their pieces are not known yet
  std::vector<Placement> placements;  // one for each selected tensor, in the same order
};

// Empty tensors take no room: where there is nothing else, there is no slab.
[[nodiscard]] SlabLayout lay_slabs(const std::vector<Selected>& selected, const Device& device,
                                   const SlabLimits& limits);

// Bytes of the tensors that the plan allocates memory for.
[[nodiscard]] std::uint64_t allocated_bytes(const Plan& plan);

}  // namespace inrush::engine
