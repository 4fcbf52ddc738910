#include <inrush/error.hpp>

#include <array>

namespace inrush::inline v0 {

std::string_view error_code_name(ErrorCode code) noexcept {
  static constexpr std::array<std::string_view, 10> names = {
      "invalid_request", "environment_unfit", "not_found", "corrupt_checkpoint", "storage_failed",
      "out_of_memory",   "device_failed",     "timed_out", "cancelled",          "internal"};
  return names.at(static_cast<std::size_t>(code));
}

Error::Error(ErrorCode code, const std::string& message, int system_error)
    : std::runtime_error(message), code_(code), system_error_(system_error) {}

Error Error::within(std::string_view place) const {
  return {code_, std::string(place) + ": " + what(), system_error_};
}

}  // namespace inrush::inline v0
