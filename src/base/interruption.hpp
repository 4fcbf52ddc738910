// What the caller's `interrupted` (of a request or of DiscoverOptions) says. Asked on the caller's thread,
// with no lock of ours held: it may take its time, and it may throw.
#pragma once

#include <inrush/error.hpp>

#include <functional>

namespace inrush::engine {

// Throws cancelled where the caller wants the call to end, and what `interrupted` throws.
inline void check_interrupted(const std::function<bool()>& interrupted) {
  if (interrupted && interrupted())
    throw Error(ErrorCode::cancelled, "the call was cancelled: `interrupted` said so");
}

}  // namespace inrush::engine
