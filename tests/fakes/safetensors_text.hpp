// Writes safetensors files for tests: any header text, any data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace inrush::fakes {

inline std::string length_prefix(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

inline std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  std::string bytes = length_prefix(header.size());
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i * 7 + 1);
  return bytes;
}

// A file of U8 tensors of one byte each, under the given names in this order.
template <class Names>
std::string one_byte_tensors(const Names& names) {
  std::string header = "{";
  std::size_t count = 0;
  for (const std::string_view name : names) {
    if (count > 0) header += ',';
    header += '"' + std::string(name) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
              std::to_string(count) + ',' + std::to_string(count + 1) + "]}";
    ++count;
  }
  return safetensors_file(header + "}", count);
}

}  // namespace inrush::fakes
