// Where the bytes of a tensor, or of a slice of it, lie in its file: rows of one length at one distance.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/request.hpp>

#include <cstdint>

namespace inrush::engine {

struct Rows {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // of the first row, in the file
  std::uint64_t row_bytes = 0;
  std::uint64_t pitch_bytes = 0;  // from the start of a row to that of the next
  std::uint64_t row_count = 1;

  [[nodiscard]] std::uint64_t size_bytes() const { return row_bytes * row_count; }
  bool operator==(const Rows&) const = default;
};

// A contiguous tensor is one row.
[[nodiscard]] Rows whole_rows(const TensorInfo& tensor);
// Throws invalid_request, with the tensor's name and shape: no such dimension, out of range, not on byte
// boundaries.
[[nodiscard]] Rows slice_rows(const TensorInfo& tensor, const Slice& slice);

}  // namespace inrush::engine
