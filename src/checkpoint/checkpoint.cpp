#include <inrush/checkpoint.hpp>

#include "checkpoint/catalog.hpp"

#include <utility>

namespace inrush::inline v0 {

Checkpoint::Checkpoint() : catalog_(std::make_shared<checkpoint_detail::Catalog>()) {}

Checkpoint::Checkpoint(std::shared_ptr<const checkpoint_detail::Catalog> catalog)
    : catalog_(std::move(catalog)) {}

const std::string& Checkpoint::path() const noexcept { return catalog_->path; }

std::span<const CheckpointFile> Checkpoint::files() const noexcept { return catalog_->files; }

std::size_t Checkpoint::tensor_count() const noexcept { return catalog_->tensors.size(); }

TensorInfo Checkpoint::tensor(std::size_t index) const noexcept {
  const checkpoint_detail::TensorRecord& record = catalog_->tensors[index];
  return {.name = catalog_->name(index),
          .dtype = record.dtype,
          .shape = std::span(catalog_->dimensions).subspan(record.shape_offset, record.rank),
          .file = record.file,
          .offset = record.offset,
          .size_bytes = record.size_bytes};
}

std::optional<std::size_t> Checkpoint::find(std::string_view name) const noexcept {
  return catalog_->name_table.find(name, [&](std::uint32_t index) { return catalog_->name(index); });
}

std::uint64_t Checkpoint::size_bytes() const noexcept { return catalog_->size_bytes; }

std::span<const std::string> Checkpoint::notes() const noexcept { return catalog_->notes; }

}  // namespace inrush::inline v0
