// What cuFile answers, put into words and numbers of ours.
#pragma once

#include <inrush/error.hpp>

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace inrush::engine {

// Codes of cuFile begin above this; up to it a number is an errno.
inline constexpr int cufile_code_base = 5000;

// What one cuFileRead or cuFileWrite did.
struct CufileTransfer {
  std::uint64_t moved_bytes = 0;
  int error = 0;  // errno, or a code of cuFile; then moved_bytes is 0

  bool operator==(const CufileTransfer&) const = default;
};

// The three shapes of a failure (-1 with an errno, -1 with a code of cuFile in errno, a negative code) become
// one. A count above what was asked for is the library's own fault, and nothing of it can be trusted. Pure.
[[nodiscard]] CufileTransfer decode_cufile_transfer(ssize_t result, int errno_value,
                                                    std::uint64_t asked_bytes);

// "CU_FILE_DRIVER_NOT_INITIALIZED (5001): ..."; an errno in the system's words.
[[nodiscard]] std::string cufile_error_text(int code);

}  // namespace inrush::engine
