#include "base/text.hpp"

#include <fmt/format.h>

#include <array>
#include <system_error>

namespace inrush::engine {

std::string errno_text(int error) { return std::generic_category().message(error); }

namespace {

// Length of the UTF-8 sequence that starts at `text[0]`; 0 if it is malformed. Overlong forms and surrogates
// count as malformed.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  const auto second = length > 1 ? static_cast<unsigned char>(text[1]) : 0;
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
  if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view text, std::size_t size_max) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= size_max) return out + "...";
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = utf8_length(text);
    // U+0080..U+009F are control characters too: terminals obey some of them.
    const bool control = lead < 0x20 || lead == 0x7F ||
                         (lead == 0xC2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (length == 0 || control || lead == '\\' || lead == '"') {
      const std::size_t escaped = length == 0 ? 1 : length;
      for (std::size_t i = 0; i < escaped; ++i)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      text.remove_prefix(escaped);
    } else {
      out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

std::string range_text(std::uint64_t offset, std::uint64_t size_bytes) {
  return fmt::format("bytes [{}, {})", offset, offset + size_bytes);
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  static constexpr std::array units = {"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

}  // namespace inrush::engine
