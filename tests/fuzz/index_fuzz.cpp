// Any text as an index is refused as corrupt, or names files beneath its folder only and each tensor once.
#include "checkpoint/index.hpp"
#include "fuzz/require.hpp"

#include <inrush/error.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace inrush::fuzz {

namespace {

void require_beneath(const std::string& name) {
  const std::filesystem::path path(name);
  require(!name.empty() && path.is_relative() && name.ends_with(".safetensors"), "a relative *.safetensors");
  require(name.find('\0') == std::string::npos && name.find('\\') == std::string::npos, "no odd byte");
  for (const std::filesystem::path& part : path)
    require(part != ".." && part != "." && !part.empty(), "no ..");
}

void require_consistent(const engine::ShardIndex& index) {
  require(std::ranges::is_sorted(index.shards), "files are sorted");
  require(std::ranges::adjacent_find(index.shards) == index.shards.end(), "a file is listed once");
  for (const std::string& name : index.shards) require_beneath(name);
  require(!index.entries.empty(), "an index names tensors");
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    require(index.entries[i].shard < index.shards.size(), "a tensor's file is listed");
    require(index.find(index.name(i)) == i, "a name stands once");
  }
}

}  // namespace

}  // namespace inrush::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace inrush;
  std::optional<engine::ShardIndex> index;
  try {
    index = engine::parse_index(fuzz::text_of(data, size), "model.safetensors.index.json", {});
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::corrupt_checkpoint, "what is refused is corrupt");
    return 0;
  }
  fuzz::require_consistent(*index);
  return 0;
}
