// Matches what the shards hold with what their index says. Owned by one discover() call.
#pragma once

#include "checkpoint/catalog_builder.hpp"
#include "checkpoint/index.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace inrush::engine {

class IndexedShards {
 public:
  // Keeps references to its arguments.
  IndexedShards(const ShardIndex& index, const std::string& index_path, IndexPolicy policy);

  // Gives the builder those tensors of a shard that the index assigns to it, and notes the others.
  // Throws corrupt_checkpoint for a tensor outside the index under IndexPolicy::strict.
  void add(Shard&& shard, std::uint32_t number, CatalogBuilder& builder);
  // After the last shard. Throws corrupt_checkpoint where a mapped tensor is not in its shard; notes a wrong
  // total_size.
  void finish(CatalogBuilder& builder) const;

 private:
  static constexpr std::uint32_t nowhere = 0xFFFF'FFFF;

  struct Sighting {
    std::uint32_t copy_in = nowhere;  // another shard that holds it too
    bool in_place = false;            // it is where the index says
  };

  const ShardIndex& index_;
  const std::string& index_path_;
  IndexPolicy policy_;
  std::vector<Sighting> sightings_;  // by entry of the index
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace inrush::engine
