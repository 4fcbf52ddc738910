// warm() with the free memory as a test wants it.
#pragma once

#include <inrush/loader.hpp>

#include "storage/file.hpp"

#include <cstdint>
#include <functional>

namespace inrush::engine {

struct WarmCallbacks {
  const Store& store;
  std::function<std::uint64_t()> room_bytes;  // what new pages may take now
  std::function<void(const Progress&)> on_progress = {};
  std::function<void(std::uint64_t bytes)> on_read = {};  // that were not there before
};

// Contract and errors of inrush::warm().
[[nodiscard]] WarmReport warm_within(const Checkpoint& checkpoint, const LoadRequest& request,
                                     const WarmCallbacks& callbacks);

}  // namespace inrush::engine
