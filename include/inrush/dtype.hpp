// The 22 element types of the safetensors format (reference implementation v0.8, enum Dtype), under their
// names in the file.
#pragma once

#include <inrush/version.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace inrush::inline v0 {

// clang-format off
enum class DType : std::uint8_t {
  boolean, f4, f6_e2m3, f6_e3m2, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64,
};
// clang-format on

inline constexpr std::uint32_t dtype_count = 22;

// "BF16", "F8_E4M3", ...: the spelling of the file format.
[[nodiscard]] INRUSH_API std::string_view dtype_name(DType dtype) noexcept;
// Exact spelling only; nothing for a name that the format does not know.
[[nodiscard]] INRUSH_API std::optional<DType> parse_dtype(std::string_view name) noexcept;
// Bits of one element: 4 for F4, 6 for F6_*, else a multiple of 8. A shape counts elements, also for F4.
[[nodiscard]] INRUSH_API std::uint32_t dtype_bits(DType dtype) noexcept;

}  // namespace inrush::inline v0
