// A model.safetensors.index.json: which shard holds which tensor. Validated; names no file that could lie
// outside its folder.
#pragma once

#include "checkpoint/name_table.hpp"

#include <inrush/checkpoint.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {

struct IndexEntry {
  std::uint64_t name_offset = 0;  // into ShardIndex::names
  std::uint32_t name_bytes = 0;
  std::uint32_t shard = 0;  // into ShardIndex::shards
};

struct ShardIndex {
  std::vector<std::string> shards;  // relative to the index's folder; sorted, each once
  std::vector<IndexEntry> entries;
  std::string names;
  NameTable table;  // of the entries' names
  std::optional<std::uint64_t>
      total_size_bytes;  // as metadata.total_size says, which is often wrong (tied weights)

  [[nodiscard]] std::string_view name(std::size_t index) const {
    return std::string_view(names).substr(entries[index].name_offset, entries[index].name_bytes);
  }
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
};

// `path` is for messages. Throws corrupt_checkpoint: place and cause; cancelled, and what `interrupted`
// throws. Else pure; any thread.
[[nodiscard]] ShardIndex parse_index(std::string_view text, const std::string& path,
                                     const DiscoverOptions& options);

}  // namespace inrush::engine
