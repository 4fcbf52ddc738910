// The storage behind a Checkpoint: flat arrays, so that a million tensors cost tens of bytes each and no
// allocation of their own. Filled by one thread in discover(), never changed afterwards.
#pragma once

#include <inrush/checkpoint.hpp>

#include "checkpoint/name_table.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::inline v0 {

namespace checkpoint_detail {

struct TensorRecord {
  std::uint64_t name_offset = 0;  // into TensorList::names
  std::uint64_t offset = 0;       // in the file
  std::uint64_t size_bytes = 0;
  std::uint32_t name_bytes = 0;
  std::uint32_t file = 0;
  std::uint64_t shape_offset = 0;  // into TensorList::dimensions
  std::uint32_t rank = 0;
  DType dtype = DType::u8;
};

struct TensorList {
  std::vector<TensorRecord> tensors;
  std::string names;
  std::vector<std::uint64_t> dimensions;

  [[nodiscard]] std::string_view name(std::size_t index) const {
    return std::string_view(names).substr(tensors[index].name_offset, tensors[index].name_bytes);
  }
};

struct Catalog : TensorList {  // tensors by file, then offset
  std::string path;
  std::vector<CheckpointFile> files;
  engine::NameTable name_table;
  std::uint64_t size_bytes = 0;
  std::vector<std::string> notes;
};

}  // namespace checkpoint_detail

}  // namespace inrush::inline v0

namespace inrush::engine {

using checkpoint_detail::Catalog;
using checkpoint_detail::TensorList;
using checkpoint_detail::TensorRecord;

// Two tensors of one name.
struct DuplicateName {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

// Inserts the names of `list` up to the first duplicate, which it returns.
[[nodiscard]] std::optional<DuplicateName> fill_name_table(const TensorList& list, NameTable& table);

}  // namespace inrush::engine
