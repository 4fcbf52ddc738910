// The device that an option --device names.
#pragma once

#include <inrush/loader.hpp>

#include <string>

namespace inrush::engine {

// "auto": the first GPU if the driver shows one, under the number that people know it by and not its UUID,
// else the CPU. Throws invalid_request for a spelling that is none.
[[nodiscard]] Device choose_device_named(Loader& loader, const std::string& spelling);

}  // namespace inrush::engine
