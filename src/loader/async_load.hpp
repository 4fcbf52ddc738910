// A load whose tensors are used before they have arrived. Made by Loader::load_async().
#pragma once

#include <inrush/loader.hpp>

#include "loader/load_impl.hpp"

#include <memory>

namespace inrush::engine {

// `request` with what such a load needs. Throws invalid_request.
[[nodiscard]] LoadRequest async_request(const LoadRequest& request, StreamWait wait);

// Returns while bytes move. Throws as Loader::load_async().
[[nodiscard]] std::unique_ptr<AsyncLoad> start_async_load(LoadParts parts, StreamWait wait);

}  // namespace inrush::engine
