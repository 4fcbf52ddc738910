// What the environment says beside the settings of loader.hpp.
#pragma once

namespace inrush::engine {

// CUDA_DEVICE_MAX_CONNECTIONS=1: all streams of the process share one queue of the device.
[[nodiscard]] bool streams_share_one_queue();

}  // namespace inrush::engine
