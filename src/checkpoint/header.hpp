// From the text of a safetensors header to tensors with validated byte ranges. Pure, but that it asks
// DiscoverOptions::interrupted; any thread.
// The rules are those of the reference implementation (safetensors 0.8, `SafeTensors::read_metadata`),
// stricter in four places: duplicate tensor names, duplicate metadata keys, and the two accidents of serde
// (dtype as object, tensor as array) are refused.
#pragma once

#include "checkpoint/catalog.hpp"
#include "checkpoint/header_bytes.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace inrush::engine {

struct Header {
  TensorList list;  // by offset in the file; every range lies in the file, none overlap, no byte of the data
                    // is left over
  std::map<std::string, std::string> metadata;
  std::uint64_t unknown_field_count = 0;  // legal, ignored
  std::string unknown_field;              // the first one
};

// Where the header was read from, for messages and for the check against the file's size.
struct HeaderSource {
  const std::string& path;
  std::uint64_t file_bytes = 0;
  std::uint64_t name_seed = 0;
};

// Throws corrupt_checkpoint: file, tensor, range, cause; cancelled, and what `interrupted` throws.
[[nodiscard]] Header parse_header(const HeaderBytes& bytes, const HeaderSource& source,
                                  const DiscoverOptions& options);

}  // namespace inrush::engine
