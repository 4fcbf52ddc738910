#include "checkpoint/catalog.hpp"

namespace inrush::engine {

std::optional<DuplicateName> fill_name_table(const TensorList& list, NameTable& table) {
  const auto name_at = [&](std::uint32_t index) { return list.name(index); };
  for (std::uint32_t index = 0; index < list.tensors.size(); ++index) {
    if (const auto first = table.insert(index, name_at))
      return DuplicateName{.first = *first, .second = index};
  }
  return std::nullopt;
}

}  // namespace inrush::engine
