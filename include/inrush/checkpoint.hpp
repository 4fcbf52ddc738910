// What a checkpoint holds: its files, and its tensors with dtype, shape and validated byte range.
// A Checkpoint is an immutable value that keeps no file open; copies share their storage and may be used from
// any thread.
#pragma once

#include <inrush/dtype.hpp>
#include <inrush/version.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::inline v0 {

namespace checkpoint_detail {
struct Catalog;
}

// What makes a file the same file. A load requires it again before and after it reads.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::array<std::uint64_t, 2> header_hash = {};  // XXH3-128 of the length prefix and the header's text

  bool operator==(const FileIdentity&) const = default;
};

struct CheckpointFile {
  std::string path;               // as it is opened again by a load
  std::uint64_t data_offset = 0;  // 8 + header length: where the tensors' bytes start; 0: another format
  FileIdentity identity;
  std::map<std::string, std::string> metadata;  // `__metadata__`; empty where it is absent or null
};

// A view into a Checkpoint: valid as long as that or a copy of it lives.
struct TensorInfo {
  std::string_view name;
  DType dtype = DType::u8;
  std::span<const std::uint64_t> shape;  // elements of each dimension, C order; empty for a scalar
  std::uint32_t file = 0;                // index into Checkpoint::files()
  std::uint64_t offset = 0;              // of its first byte in that file
  std::uint64_t size_bytes = 0;
};

enum class LinkPolicy : std::uint8_t {
  inside,  // shard links may lead to the blobs of the same Hugging Face cache entry, and nowhere else outside
           // the folder
  follow,  // follow shard links wherever they lead
};

enum class IndexPolicy : std::uint8_t {
  use,     // an index decides which file holds which tensor; tensors outside it are left unread and noted
  strict,  // as `use`, but a tensor outside the index is an error
  ignore,  // act as if there were no index: model.safetensors, else all *.safetensors of the folder
};

// Caps against hostile input. Each is named in the error that it causes.
struct DiscoverOptions {
  LinkPolicy links = LinkPolicy::inside;
  IndexPolicy index = IndexPolicy::use;
  std::uint64_t header_bytes_max = 100'000'000;  // the reference's own cap
  std::uint64_t index_bytes_max = 256ULL << 20;
  std::uint64_t tensor_count_max = 2'000'000;     // of one file
  std::uint64_t name_bytes_max = 4ULL << 20;      // decoded
  std::uint64_t metadata_count_max = 65'536;      // entries of __metadata__ of one file
  std::uint64_t dimension_count_max = 8'000'000;  // of all shapes of one file together
  std::uint32_t rank_max = 64;
  std::uint32_t nesting_max = 128;  // of fields that are not part of the format
  std::uint32_t file_count_max = 20'000;
  // Asked on the thread that is in discover(), between files and now and then in a large header. True ends
  // the call with `cancelled`. It may throw; the exception passes through discover().
  std::function<bool()> interrupted = {};
};

class INRUSH_API Checkpoint {
 public:
  Checkpoint();  // no files, no tensors
  explicit Checkpoint(std::shared_ptr<const checkpoint_detail::Catalog> catalog);

  // What the user named.
  [[nodiscard]] const std::string& path() const noexcept;
  [[nodiscard]] std::span<const CheckpointFile> files() const noexcept;
  [[nodiscard]] std::size_t tensor_count() const noexcept;
  // Tensors are ordered by file, then by offset. `index` < tensor_count().
  [[nodiscard]] TensorInfo tensor(std::size_t index) const noexcept;
  // Index of the tensor of that name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept;
  // Bytes of all tensors together.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  // What discovery met that is legal but worth knowing: tensors outside the index, a second copy left unread,
  // unknown fields.
  [[nodiscard]] std::span<const std::string> notes() const noexcept;

 private:
  std::shared_ptr<const checkpoint_detail::Catalog> catalog_;
};

// Finds and validates a checkpoint: a .safetensors file, a folder, a Hugging Face cache snapshot, or a
// *.safetensors.index.json. In a folder: one index if there is one, else model.safetensors, else all
// *.safetensors of the top level, sorted by name. Reads headers only, closes every file again, blocks on
// storage. Throws not_found, corrupt_checkpoint (file, tensor, range and cause), invalid_request (two
// indexes; a FIFO or device node), storage_failed, out_of_memory, cancelled.
[[nodiscard]] INRUSH_API Checkpoint discover(const std::string& path, const DiscoverOptions& options = {});

// A tensor whose place another format tells: `offset` is that of its first byte in files[file], and its bytes
// follow each other in C order.
struct TensorPlace {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
};

// A checkpoint of byte ranges of any files: the archives of torch.save, the folders of
// torch.distributed.checkpoint. `path` is what the user named, for messages. Opens each file to learn its
// size and identity, reads none of it, and closes it again. Throws invalid_request (a file or a name that is
// not there or not unique, a shape that does not fill whole bytes), corrupt_checkpoint (a range that leaves
// its file, or two that overlap), not_found, storage_failed.
[[nodiscard]] INRUSH_API Checkpoint describe_checkpoint(const std::string& path,
                                                        std::span<const std::string> files,
                                                        std::vector<TensorPlace> tensors);

}  // namespace inrush::inline v0
