#include <inrush/loader.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace inrush::inline v0 {

namespace {

struct Unit {
  std::string_view name;  // lower case
  std::uint64_t bytes;
};

constexpr std::array<Unit, 14> units = {{{"", 1},
                                         {"b", 1},
                                         {"k", 1ULL << 10},
                                         {"kib", 1ULL << 10},
                                         {"kb", 1'000},
                                         {"m", 1ULL << 20},
                                         {"mib", 1ULL << 20},
                                         {"mb", 1'000'000},
                                         {"g", 1ULL << 30},
                                         {"gib", 1ULL << 30},
                                         {"gb", 1'000'000'000},
                                         {"t", 1ULL << 40},
                                         {"tib", 1ULL << 40},
                                         {"tb", 1'000'000'000'000}}};

std::optional<std::uint64_t> parse_digits(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view spelling) {
  const std::size_t digits = std::min(spelling.find_first_not_of("0123456789"), spelling.size());
  std::string name(spelling.substr(digits));
  for (char& letter : name)
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  const auto count = parse_digits(spelling.substr(0, digits));
  const auto unit = std::ranges::find(units, std::string_view(name), &Unit::name);
  const auto bytes =
      count && unit != units.end() ? engine::checked_multiply(*count, unit->bytes) : std::nullopt;
  if (!bytes) {
    throw Error(
        ErrorCode::invalid_request,
        fmt::format(
            "\"{}\" is not a size: write bytes, or 64KiB, 8M, 2GiB (powers of 1024), or 8MB (of 1000)",
            engine::printable(spelling)));
  }
  return *bytes;
}

}  // namespace inrush::inline v0
