// How much of a checkpoint is in the page cache.
#include <inrush/loader.hpp>

#include "base/range.hpp"
#include "storage/local_store.hpp"

#include <algorithm>
#include <vector>

namespace inrush::engine {

namespace {

// As long as the pieces of most loads, which come one way as a whole.
constexpr std::uint64_t window_bytes = 4ULL << 20;

std::uint64_t resident_bytes_of(const File& file, const ByteRange& run) {
  std::uint64_t bytes = 0;
  for (std::uint64_t offset = run.offset; offset < run.end(); offset += window_bytes) {
    const ByteRange window{offset, std::min(window_bytes, run.end() - offset)};
    if (file.is_resident(window)) bytes += window.size_bytes;
  }
  return bytes;
}

// The tensors of each file, neighbours joined.
std::vector<std::vector<ByteRange>> runs_by_file(const Checkpoint& checkpoint) {
  std::vector<std::vector<ByteRange>> by_file(checkpoint.files().size());
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    if (tensor.size_bytes == 0) continue;
    std::vector<ByteRange>& runs = by_file[tensor.file];
    if (!runs.empty() && runs.back().end() == tensor.offset) {
      runs.back().size_bytes += tensor.size_bytes;
    } else {
      runs.push_back({tensor.offset, tensor.size_bytes});
    }
  }
  return by_file;
}

}  // namespace

}  // namespace inrush::engine

namespace inrush::inline v0 {

std::uint64_t resident_bytes(const Checkpoint& checkpoint) {
  const std::vector<std::vector<engine::ByteRange>> by_file = engine::runs_by_file(checkpoint);
  const engine::LocalStore store;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < by_file.size(); ++i) {
    if (by_file[i].empty()) continue;
    const std::shared_ptr<engine::File> file = store.open(checkpoint.files()[i].path);
    for (const engine::ByteRange& run : by_file[i]) bytes += engine::resident_bytes_of(*file, run);
  }
  return bytes;
}

}  // namespace inrush::inline v0
