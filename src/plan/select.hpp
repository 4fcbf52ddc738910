// The first step of a plan: which tensors, and which rows of them.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/request.hpp>

#include "plan/rows.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace inrush::engine {

struct Selected {
  std::uint64_t tensor = 0;  // index into the Checkpoint
  Rows rows;
  std::optional<Slice> slice;
  std::uint64_t target_address = 0;  // 0: memory is allocated for it, or it needs none; see bind_targets()
};

// Empty ones first, then in order of file and offset. Throws invalid_request: a pattern that matches nothing
// (with names that come near), a slice of an unknown tensor, a slice that does not fit. A slice of a tensor
// that is not selected is checked and has no effect.
[[nodiscard]] std::vector<Selected> select_tensors(const Checkpoint& checkpoint, const LoadRequest& request);

}  // namespace inrush::engine
