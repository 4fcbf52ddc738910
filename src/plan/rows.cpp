#include "plan/rows.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <numeric>
#include <span>
#include <string>

namespace inrush::engine {

namespace {

[[noreturn]] void refuse(const TensorInfo& tensor, const Slice& slice, const std::string& cause) {
  throw Error(ErrorCode::invalid_request,
              fmt::format("tensor \"{}\", {} [{}]: slice of dimension {}, start {}, length {}: {}",
                          printable(tensor.name), dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "),
                          slice.dimension, slice.start, slice.length, cause));
}

std::uint64_t product(std::span<const std::uint64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1}, std::multiplies<>());
}

void check_range(const TensorInfo& tensor, const Slice& slice) {
  if (slice.dimension >= tensor.shape.size()) {
    refuse(tensor, slice,
           fmt::format("the tensor has {} dimensions; they count from 0", tensor.shape.size()));
  }
  const std::uint64_t extent = tensor.shape[slice.dimension];
  const auto end = checked_add(slice.start, slice.length);
  if (!end || *end > extent) refuse(tensor, slice, fmt::format("the dimension has {} elements", extent));
}

// Bits, not bytes: an element of F4 or F6 has no byte of its own. Worked example: F4 [2, 3, 5] has rows of 15
// elements, 60 bits, so that the second row starts inside a byte and no slice of dimension 1 can be cut out.
struct SliceBits {
  std::uint64_t start = 0;
  std::uint64_t length = 0;
  std::uint64_t pitch = 0;
};

}  // namespace

Rows whole_rows(const TensorInfo& tensor) {
  return {tensor.file, tensor.offset, tensor.size_bytes, tensor.size_bytes, 1};
}

Rows slice_rows(const TensorInfo& tensor, const Slice& slice) {
  check_range(tensor, slice);
  const std::uint64_t extent = tensor.shape[slice.dimension];
  // An empty tensor may have extents whose product wraps; a tensor with bytes has none, discovery checked it.
  if (slice.length == 0 || tensor.size_bytes == 0) return {tensor.file, tensor.offset, 0, 0, 1};
  if (slice.length == extent) return whole_rows(tensor);

  const std::uint64_t row_count = product(tensor.shape.first(slice.dimension));
  const std::uint64_t element_bits =
      product(tensor.shape.subspan(slice.dimension + 1)) * dtype_bits(tensor.dtype);
  const SliceBits bits = {slice.start * element_bits, slice.length * element_bits, extent * element_bits};
  if (row_count > 1 && bits.pitch % 8 != 0) {
    refuse(tensor, slice, "the dimensions before it do not start on byte boundaries; take the whole tensor");
  }
  if (bits.start % 8 != 0 || bits.length % 8 != 0) {
    refuse(tensor, slice,
           fmt::format("not on byte boundaries; start and length must be multiples of {}",
                       8 / std::gcd(element_bits, std::uint64_t{8})));
  }
  const std::uint64_t row_bytes = bits.length / 8;
  const std::uint64_t pitch_bytes = row_count > 1 ? bits.pitch / 8 : row_bytes;
  return {tensor.file, tensor.offset + bits.start / 8, row_bytes, pitch_bytes, row_count};
}

}  // namespace inrush::engine
