#include <inrush/dtype.hpp>

#include <gtest/gtest.h>

#include <map>
#include <string_view>

namespace inrush {

namespace {

// From the table in the reference implementation (safetensors 0.8): bits of one element.
const std::map<std::string_view, std::uint32_t> reference = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};

TEST(DType, EachOfThe22HasItsNameAndSize) {
  ASSERT_EQ(reference.size(), dtype_count);
  for (const auto& [name, bits] : reference) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
    EXPECT_EQ(dtype_bits(*dtype), bits) << name;
  }
}

TEST(DType, EnumAndTableAreInOneOrder) {
  EXPECT_EQ(dtype_name(DType::boolean), "BOOL");
  EXPECT_EQ(dtype_name(DType::f8_e4m3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::bf16), "BF16");
  EXPECT_EQ(dtype_name(DType::c64), "C64");
  EXPECT_EQ(dtype_name(DType::u64), "U64");
}

TEST(DType, OtherNamesAreUnknown) {
  for (const std::string_view name :
       {"", "f32", "F8", "E8M0", "F8_E4M3FN", "C128", "C32", "I4", "F4_E2M1", "F32 ", "BF1"}) {
    EXPECT_FALSE(parse_dtype(name)) << name;
  }
}

}  // namespace

}  // namespace inrush
