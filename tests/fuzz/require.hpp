// What a fuzz target demands. A demand that is not met ends the process, which libFuzzer takes for a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace inrush::fuzz {

inline void require(bool holds, const char* demand) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", demand);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace inrush::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
