// Checkpoints of other formats, whose reader knows already where each tensor is.
#include "checkpoint/describe.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"
#include "checkpoint/catalog_builder.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_set>

namespace inrush::engine {

namespace {

std::string place_text(const std::string& path, const TensorPlace& tensor, std::uint64_t size_bytes) {
  return fmt::format("{}: tensor \"{}\", {}", printable(path), printable(tensor.name),
                     range_text(tensor.offset, size_bytes));
}

std::uint64_t size_of(const TensorPlace& tensor) {
  std::optional<std::uint64_t> bits = dtype_bits(tensor.dtype);
  for (const std::uint64_t extent : tensor.shape) {
    if (bits) bits = checked_multiply(*bits, extent);
  }
  if (bits && *bits % 8 == 0) return *bits / 8;
  throw Error(
      ErrorCode::invalid_request,
      fmt::format("tensor \"{}\": its shape in {} {}", printable(tensor.name), dtype_name(tensor.dtype),
                  bits ? "does not fill whole bytes" : "has a size that overflows 64 bits"));
}

void require_sound(std::span<const std::string> files, std::span<const TensorPlace> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorPlace& tensor : tensors) {
    if (tensor.file >= files.size()) {
      throw Error(ErrorCode::invalid_request, fmt::format("tensor \"{}\" is in file {}, and there are {}",
                                                          printable(tensor.name), tensor.file, files.size()));
    }
    if (!names.insert(tensor.name).second) {
      throw Error(ErrorCode::invalid_request,
                  fmt::format("two tensors have the name \"{}\"", printable(tensor.name)));
    }
    if (tensor.name.size() > std::numeric_limits<std::uint32_t>::max() ||
        tensor.shape.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(ErrorCode::invalid_request, "a name or a shape is longer than 2^32");
    }
  }
}

Shard open_shard(const Store& store, const std::string& path) {
  const FileStatus status = store.open(path)->status();
  Shard shard;
  shard.file.path = path;
  shard.file.identity = {.device = status.device,
                         .inode = status.inode,
                         .size_bytes = status.size_bytes,
                         .mtime_ns = status.mtime_ns,
                         .ctime_ns = status.ctime_ns};
  return shard;
}

// Tensors come by ascending offset.
void append(const TensorPlace& tensor, Shard& shard) {
  const std::uint64_t size_bytes = size_of(tensor);
  const std::string& path = shard.file.path;
  const std::uint64_t file_bytes = shard.file.identity.size_bytes;
  if (tensor.offset > file_bytes || size_bytes > file_bytes - tensor.offset) {
    throw Error(ErrorCode::corrupt_checkpoint,
                fmt::format("{}: the file ends at {}", place_text(path, tensor, size_bytes), file_bytes));
  }
  TensorList& list = shard.list;
  if (!list.tensors.empty() && size_bytes > 0) {
    const TensorRecord& last = list.tensors.back();
    if (last.offset + last.size_bytes > tensor.offset) {
      throw Error(ErrorCode::corrupt_checkpoint,
                  fmt::format("{}: it overlaps tensor \"{}\", {}", place_text(path, tensor, size_bytes),
                              printable(list.name(list.tensors.size() - 1)),
                              range_text(last.offset, last.size_bytes)));
    }
  }
  list.tensors.push_back({.name_offset = list.names.size(),
                          .offset = tensor.offset,
                          .size_bytes = size_bytes,
                          .name_bytes = static_cast<std::uint32_t>(tensor.name.size()),
                          .shape_offset = list.dimensions.size(),
                          .rank = static_cast<std::uint32_t>(tensor.shape.size()),
                          .dtype = tensor.dtype});
  list.names += tensor.name;
  list.dimensions.insert(list.dimensions.end(), tensor.shape.begin(), tensor.shape.end());
}

}  // namespace

Checkpoint describe_checkpoint_in(const Store& store, const std::string& path,
                                  std::span<const std::string> files, std::vector<TensorPlace> tensors) {
  require_sound(files, tensors);
  // Where several begin at one offset, those without bytes come first.
  std::ranges::sort(tensors, {}, [](const TensorPlace& tensor) {
    return std::tuple(tensor.file, tensor.offset, size_of(tensor), std::string_view(tensor.name));
  });
  CatalogBuilder builder(path);
  auto tensor = tensors.begin();
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    Shard shard = open_shard(store, files[file]);
    for (; tensor != tensors.end() && tensor->file == file; ++tensor) append(*tensor, shard);
    builder.add(std::move(shard));
  }
  return Checkpoint(builder.finish());
}

}  // namespace inrush::engine

namespace inrush::inline v0 {

Checkpoint describe_checkpoint(const std::string& path, std::span<const std::string> files,
                               std::vector<TensorPlace> tensors) {
  return engine::describe_checkpoint_in(engine::LocalStore(), path, files, std::move(tensors));
}

}  // namespace inrush::inline v0
