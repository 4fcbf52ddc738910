// What the environment says beside the settings of loader.hpp.
#pragma once

#include <cstdint>

namespace inrush::engine {

// Of the queues that a device has for the streams of this process: CUDA_DEVICE_MAX_CONNECTIONS, else 8.
[[nodiscard]] std::uint32_t device_queue_count();

}  // namespace inrush::engine
