#include "checkpoint/name_table.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace inrush::engine {

// At most two slots in three are used: linear probing then looks at about two slots for a name that is there.
NameTable::NameTable(std::size_t name_count, std::uint64_t seed)
    : slots_(std::bit_ceil(name_count + name_count / 2 + 1), 0), seed_(seed) {}

std::uint64_t NameTable::hash_name(std::string_view name) const noexcept {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed_);
}

}  // namespace inrush::engine
