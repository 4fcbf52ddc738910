// Text for messages. Names in a checkpoint are hostile input: they are escaped before they reach a terminal
// or a log.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inrush::engine {

// "Input/output error" for EIO; thread-safe.
[[nodiscard]] std::string errno_text(int error);
// Control characters, quotes, backslashes and bytes that are not UTF-8 become \xNN; longer text is cut and
// ends with "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t size_max = 200);
// "bytes [0, 4096)".
[[nodiscard]] std::string range_text(std::uint64_t offset, std::uint64_t size_bytes);
// "1.50 GB", "90.9 MB", "17 B": powers of 1000, three digits.
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace inrush::engine
