// discover() over any Store: which files make up a checkpoint, and what they hold. Opens one file at a time.
#pragma once

#include "storage/file.hpp"

#include <inrush/checkpoint.hpp>

#include <string>

namespace inrush::engine {

// Contract and errors of inrush::discover().
[[nodiscard]] Checkpoint discover_in(const Store& store, const std::string& path,
                                     const DiscoverOptions& options);

}  // namespace inrush::engine
