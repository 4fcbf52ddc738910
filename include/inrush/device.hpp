// A device by name: the CPU target or one GPU. A plain value; making one touches no driver.
#pragma once

#include <inrush/version.hpp>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace inrush::inline v0 {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::uint32_t index = 0;  // ordinal among the devices that the process sees (CUDA_VISIBLE_DEVICES applies)
  std::string uuid = {};    // "GPU-..." or "MIG-..." where the device was named so; then `index` is not used

  auto operator<=>(const Device&) const = default;
};

// Accepts "cpu", "cuda" (the first visible one), "cuda:1", "1", "GPU-<uuid>", "MIG-<uuid>".
// Throws invalid_request for any other spelling; whether the device exists is for the Loader to say.
[[nodiscard]] INRUSH_API Device parse_device(std::string_view spelling);
[[nodiscard]] INRUSH_API std::string device_name(const Device& device);

}  // namespace inrush::inline v0
