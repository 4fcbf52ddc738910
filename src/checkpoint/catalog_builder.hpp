// Joins the shards of a checkpoint, in their order, into one Catalog. Owned by one discover() call.
#pragma once

#include "checkpoint/read_shard.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace inrush::engine {

class CatalogBuilder {
 public:
  // `path` is what the user named.
  explicit CatalogBuilder(const std::string& path);

  // Takes all tensors of a shard. Throws corrupt_checkpoint where the checkpoint becomes larger than 2^64
  // bytes or tensors.
  void add(Shard&& shard);
  // Takes those tensors of it: indexes into shard.list, ascending.
  void add(Shard&& shard, std::span<const std::uint32_t> chosen);
  void note(std::string text);

  // Throws corrupt_checkpoint for a name that occurs in two files. Ends the use of the builder.
  [[nodiscard]] std::shared_ptr<const Catalog> finish();

 private:
  void add_file(Shard& shard);
  void append(const TensorList& list, std::uint32_t index);

  std::shared_ptr<Catalog> catalog_;
  std::uint64_t file_bytes_ = 0;  // of all files
};

}  // namespace inrush::engine
