#include <inrush/device.hpp>

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <charconv>
#include <optional>

namespace inrush::inline v0 {

namespace {

// Decimal digits alone; no sign, no space, no leading zero (torch refuses "cuda:01" too).
std::optional<std::uint32_t> parse_index(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  std::uint32_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return index;
}

bool is_hexadecimal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// "GPU-" or "MIG-" and the beginning of a UUID: groups of 8-4-4-4-12 digits. The beginning will do, as in
// CUDA_VISIBLE_DEVICES.
bool is_uuid(std::string_view text) {
  if (!text.starts_with("GPU-") && !text.starts_with("MIG-")) return false;
  const std::string_view digits = text.substr(4);
  if (digits.empty() || digits.size() > 36) return false;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? digits[i] != '-' : !is_hexadecimal(digits[i])) return false;
  }
  return true;
}

}  // namespace

Device parse_device(std::string_view spelling) {
  if (spelling == "cpu") return {};
  if (spelling == "cuda") return {.kind = DeviceKind::cuda};
  if (is_uuid(spelling)) return {.kind = DeviceKind::cuda, .uuid = std::string(spelling)};
  const std::string_view index = spelling.starts_with("cuda:") ? spelling.substr(5) : spelling;
  if (const auto parsed = parse_index(index)) return {.kind = DeviceKind::cuda, .index = *parsed};
  throw Error(ErrorCode::invalid_request,
              "device \"" + engine::printable(spelling, 60) +
                  "\" is not understood; say cpu, cuda, cuda:1, 1, GPU-<uuid> or MIG-<uuid>");
}

std::string device_name(const Device& device) {
  if (device.kind == DeviceKind::cpu) return "cpu";
  return device.uuid.empty() ? "cuda:" + std::to_string(device.index) : device.uuid;
}

}  // namespace inrush::inline v0
