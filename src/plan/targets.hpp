// The second step of a plan: which of the selected tensors are written to memory that the caller has.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/request.hpp>

#include "plan/select.hpp"

#include <vector>

namespace inrush::engine {

// Sets the addresses, and moves tensors with a target behind those without; each kind stays in the order of
// the files, and empty ones stay first. Throws invalid_request, with names, shapes and sizes: a target of a
// tensor that is not selected, of another size, null, or overlapping another one.
void bind_targets(const Checkpoint& checkpoint, const Targets& targets, std::vector<Selected>& selected);

}  // namespace inrush::engine
