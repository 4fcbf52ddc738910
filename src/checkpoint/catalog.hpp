// The storage behind a Checkpoint: flat arrays, so that a million tensors cost tens of bytes each and no allocation of their own.
#pragma once

#include <inrush/checkpoint.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace inrush::v0::checkpoint_detail {

struct TensorRecord {
  std::uint64_t name_offset = 0;  // into Catalog::names
  std::uint64_t offset = 0;       // in the file
  std::uint64_t size_bytes = 0;
  std::uint32_t name_bytes = 0;
  std::uint32_t file = 0;
  std::uint64_t shape_offset = 0;  // into Catalog::dimensions
  std::uint32_t rank = 0;
  DType dtype = DType::u8;
};

struct Catalog {
  std::string path;
  std::vector<CheckpointFile> files;
  std::vector<TensorRecord> tensors;  // by file, then offset
  std::string names;
  std::vector<std::uint64_t> dimensions;
  std::vector<std::uint32_t> name_table;  // open addressing: index + 1 into tensors, 0 for empty
  std::uint64_t name_seed = 0;            // of the hash: from the headers' own hash, so that names cannot be chosen to collide
  std::uint64_t size_bytes = 0;
  std::vector<std::string> notes;
};

}  // namespace inrush::v0::checkpoint_detail
