#include "checkpoint/read_shard.hpp"

#include <utility>

namespace inrush::engine {

Shard read_shard(const File& file, const DiscoverOptions& options) {
  const FileStatus status = file.status();
  const HeaderBytes bytes = read_header(file, status, options.header_bytes_max);
  const std::array<std::uint64_t, 2> hash = hash_header(bytes);
  Header header = parse_header(
      bytes, {.path = file.path(), .file_bytes = status.size_bytes, .name_seed = hash[0]}, options);
  return {.file = {.path = file.path(),
                   .data_offset = bytes.size_bytes,
                   .identity = {.device = status.device,
                                .inode = status.inode,
                                .size_bytes = status.size_bytes,
                                .mtime_ns = status.mtime_ns,
                                .ctime_ns = status.ctime_ns,
                                .header_hash = hash},
                   .metadata = std::move(header.metadata)},
          .list = std::move(header.list),
          .unknown_field_count = header.unknown_field_count,
          .unknown_field = std::move(header.unknown_field)};
}

}  // namespace inrush::engine
