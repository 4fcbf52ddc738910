// One safetensors file, from open to validated tensors, for discover(). Blocks on storage.
#pragma once

#include "checkpoint/header.hpp"
#include "storage/file.hpp"

namespace inrush::engine {

struct Shard {
  CheckpointFile file;
  TensorList list;
  std::uint64_t unknown_field_count = 0;
  std::string unknown_field;
};

// Throws corrupt_checkpoint, storage_failed; see read_header() and parse_header().
[[nodiscard]] Shard read_shard(const File& file, const DiscoverOptions& options);

}  // namespace inrush::engine
