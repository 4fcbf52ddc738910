// The help in messages about a name that a checkpoint does not have.
#pragma once

#include <inrush/checkpoint.hpp>

#include <string>
#include <string_view>

namespace inrush::engine {

// `the nearest names are "a", "b"`, or how many tensors there are where none comes near. Takes one pass over
// all names.
[[nodiscard]] std::string near_names(const Checkpoint& checkpoint, std::string_view pattern);

}  // namespace inrush::engine
