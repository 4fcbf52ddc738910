#include <inrush/dtype.hpp>

#include <algorithm>
#include <array>

namespace inrush::inline v0 {

namespace {

struct DTypeFacts {
  std::string_view name;
  std::uint32_t bits;
};

// In the order of the enum, which is the order of the reference implementation (safetensors 0.8, `enum
// Dtype`).
constexpr std::array<DTypeFacts, dtype_count> facts = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

}  // namespace

std::string_view dtype_name(DType dtype) noexcept { return facts[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  const auto* found =
      std::find_if(facts.begin(), facts.end(), [&](const DTypeFacts& row) { return row.name == name; });
  if (found == facts.end()) return std::nullopt;
  return static_cast<DType>(found - facts.begin());
}

std::uint32_t dtype_bits(DType dtype) noexcept { return facts[static_cast<std::size_t>(dtype)].bits; }

}  // namespace inrush::inline v0
