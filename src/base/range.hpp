// Byte ranges and the arithmetic on sizes that come from outside: no sum or product wraps unnoticed.
#pragma once

#include <cstdint>
#include <optional>

namespace inrush::engine {

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;

  [[nodiscard]] std::uint64_t end() const { return offset + size_bytes; }
  bool operator==(const ByteRange&) const = default;
};

[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// `unit` is a power of two.
[[nodiscard]] constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) {
  return value & ~(unit - 1);
}
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return round_down(value + unit - 1, unit);
}

}  // namespace inrush::engine
