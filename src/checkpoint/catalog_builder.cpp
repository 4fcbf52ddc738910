#include "checkpoint/catalog_builder.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::uint64_t seed_factor =
    0x9E37'79B9'7F4A'7C15ULL;  // odd: no bit of an earlier file's hash is lost

}  // namespace

CatalogBuilder::CatalogBuilder(const std::string& path) : catalog_(std::make_shared<Catalog>()) {
  catalog_->path = path;
}

void CatalogBuilder::add_file(Shard& shard) {
  const auto total_bytes = checked_add(file_bytes_, shard.file.identity.size_bytes);
  const std::size_t tensor_count = catalog_->tensors.size() + shard.list.tensors.size();
  if (!total_bytes || tensor_count >= std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::corrupt_checkpoint,
                fmt::format("{}: with this file the checkpoint has more than 2^64 bytes or 2^32 tensors",
                            printable(shard.file.path)));
  }
  file_bytes_ = *total_bytes;
  if (shard.unknown_field_count > 0) {
    note(fmt::format("{}: ignored {} fields that safetensors does not know, the first is \"{}\"",
                     printable(shard.file.path), shard.unknown_field_count, shard.unknown_field));
  }
  catalog_->files.push_back(std::move(shard.file));
}

void CatalogBuilder::add(Shard&& shard) {
  add_file(shard);
  // One file is the case where a copy would show: the arrays are as large as its header.
  if (catalog_->files.size() == 1) {
    static_cast<TensorList&>(*catalog_) = std::move(shard.list);
    return;
  }
  for (std::uint32_t index = 0; index < shard.list.tensors.size(); ++index) append(shard.list, index);
}

void CatalogBuilder::add(Shard&& shard, std::span<const std::uint32_t> chosen) {
  if (chosen.size() == shard.list.tensors.size()) {
    add(std::move(shard));
    return;
  }
  add_file(shard);
  for (const std::uint32_t index : chosen) append(shard.list, index);
}

void CatalogBuilder::append(const TensorList& list, std::uint32_t index) {
  Catalog& catalog = *catalog_;
  TensorRecord record = list.tensors[index];
  const auto shape = list.dimensions.begin() + static_cast<std::ptrdiff_t>(record.shape_offset);
  record.name_offset = catalog.names.size();
  record.shape_offset = catalog.dimensions.size();
  record.file = static_cast<std::uint32_t>(catalog.files.size() - 1);
  catalog.names.append(list.name(index));
  catalog.dimensions.insert(catalog.dimensions.end(), shape, shape + record.rank);
  catalog.tensors.push_back(record);
}

void CatalogBuilder::note(std::string text) { catalog_->notes.push_back(std::move(text)); }

std::shared_ptr<const Catalog> CatalogBuilder::finish() {
  Catalog& catalog = *catalog_;
  std::uint64_t seed = 0;
  for (const CheckpointFile& file : catalog.files) seed = seed * seed_factor + file.identity.header_hash[0];
  // Cannot wrap: the tensors of a file do not overlap, and the files' sizes were added with a check.
  for (const TensorRecord& record : catalog.tensors) catalog.size_bytes += record.size_bytes;
  catalog.name_table = NameTable(catalog.tensors.size(), seed);
  const auto duplicate = fill_name_table(catalog, catalog.name_table);
  if (!duplicate) return std::move(catalog_);
  const auto path_of = [&](std::uint32_t index) {
    return printable(catalog.files[catalog.tensors[index].file].path);
  };
  throw Error(ErrorCode::corrupt_checkpoint,
              fmt::format("{}: tensor \"{}\" is in {} and in {}, and no index says which one counts: name "
                          "one file, or remove the "
                          "files that do not belong to this checkpoint",
                          printable(catalog.path), printable(catalog.name(duplicate->second)),
                          path_of(duplicate->first), path_of(duplicate->second)));
}

}  // namespace inrush::engine
