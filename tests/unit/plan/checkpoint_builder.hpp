// Checkpoints for tests of the planner, made by hand: no file behind them.
#pragma once

#include <inrush/checkpoint.hpp>

#include "checkpoint/catalog.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inrush::tests {

inline std::uint64_t bytes_of(DType dtype, const std::vector<std::uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>()) *
         dtype_bits(dtype) / 8;
}

class CheckpointBuilder {
 public:
  CheckpointBuilder() { catalog_.path = "model"; }

  CheckpointBuilder& file(const std::string& path, std::uint64_t data_offset) {
    catalog_.files.push_back({path, data_offset, {}, {}});
    end_ = data_offset;
    return *this;
  }

  // Right behind the one before it.
  CheckpointBuilder& tensor(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape) {
    engine::TensorRecord record;
    record.name_offset = catalog_.names.size();
    record.name_bytes = static_cast<std::uint32_t>(name.size());
    record.offset = end_;
    record.size_bytes = bytes_of(dtype, shape);
    record.file = static_cast<std::uint32_t>(catalog_.files.size() - 1);
    record.shape_offset = catalog_.dimensions.size();
    record.rank = static_cast<std::uint32_t>(shape.size());
    record.dtype = dtype;
    catalog_.names += name;
    catalog_.dimensions.insert(catalog_.dimensions.end(), shape.begin(), shape.end());
    catalog_.tensors.push_back(record);
    end_ += record.size_bytes;
    catalog_.size_bytes += record.size_bytes;
    catalog_.files.back().identity.size_bytes = end_;
    return *this;
  }

  [[nodiscard]] Checkpoint build() {
    catalog_.name_table = engine::NameTable(catalog_.tensors.size(), 1);
    static_cast<void>(engine::fill_name_table(catalog_, catalog_.name_table));
    return Checkpoint(std::make_shared<const engine::Catalog>(std::move(catalog_)));
  }

 private:
  engine::Catalog catalog_;
  std::uint64_t end_ = 0;
};

}  // namespace inrush::tests
