// Safetensors files of random bytes, and what a process holds: to compare before and after.
#pragma once

#include <inrush/dtype.hpp>

#include "fakes/temp_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::fakes {

struct TestTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
};

// Tensor name -> its bytes, as they were written.
using TestBytes = std::map<std::string, std::string>;

// Writes the tensors in the order given, filled with bytes that depend on the seed. `header_padding`: spaces
// after the header, which move the data start.
TestBytes write_safetensors(const std::string& path, const std::vector<TestTensor>& tensors,
                            std::uint64_t seed, std::uint32_t header_padding = 0);
// Tensors of mixed dtypes, odd sizes, empty ones and scalars, `total_bytes` or a little more of data.
std::vector<TestTensor> mixed_tensors(std::uint64_t total_bytes, std::uint64_t seed);

// Of this process: to compare before and after.
struct ProcessCounts {
  std::size_t descriptors = 0;
  std::size_t threads = 0;

  bool operator==(const ProcessCounts&) const = default;
};
[[nodiscard]] ProcessCounts process_counts();
// Whether a thread of this process has that name.
[[nodiscard]] bool has_thread(std::string_view name);
// Whether there are no more than that, soon: a thread that was joined may stand in /proc for a moment more.
[[nodiscard]] bool returns_to(const ProcessCounts& counts);
// Resident memory; under AddressSanitizer, which keeps freed blocks back, what is allocated.
[[nodiscard]] std::uint64_t held_bytes();

}  // namespace inrush::fakes
