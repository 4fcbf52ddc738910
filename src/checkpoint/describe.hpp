// describe_checkpoint() in any Store: tests give one that is not the file system.
#pragma once

#include <inrush/checkpoint.hpp>

#include "storage/file.hpp"

#include <span>
#include <string>
#include <vector>

namespace inrush::engine {

// Throws as describe_checkpoint() does.
[[nodiscard]] Checkpoint describe_checkpoint_in(const Store& store, const std::string& path,
                                                std::span<const std::string> files,
                                                std::vector<TensorPlace> tensors);

}  // namespace inrush::engine
