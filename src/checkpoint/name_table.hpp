// From a tensor's name to its number: open addressing over names that are stored elsewhere, 8 bytes a slot.
// Finds duplicates while it is filled. Const calls may run on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace inrush::engine {

class NameTable {
 public:
  NameTable() = default;
  // `seed` comes from a hash of the whole file that the names stand in, so that a file can hardly be written
  // whose names collide: a table of a fixed hash takes quadratic time on such a file.
  NameTable(std::size_t name_count, std::uint64_t seed);

  // `name_at(index)` is the name of each index inserted so far. Returns the index that has this name already;
  // else inserts.
  template <class NameAt>
  std::optional<std::uint32_t> insert(std::uint32_t index, const NameAt& name_at) {
    const Probe probe = seek(name_at(index), name_at);
    if (probe.found) return probe.found;
    slots_[probe.slot] = probe.tag | (index + 1U);
    return std::nullopt;
  }

  template <class NameAt>
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name, const NameAt& name_at) const {
    if (slots_.empty()) return std::nullopt;
    return seek(name, name_at).found;
  }

 private:
  struct Probe {
    std::size_t slot = 0;
    std::uint64_t tag = 0;
    std::optional<std::uint32_t> found;
  };

  template <class NameAt>
  Probe seek(std::string_view name, const NameAt& name_at) const {
    const std::uint64_t hash = hash_name(name);
    const std::size_t mask = slots_.size() - 1;
    Probe probe{.slot = hash & mask, .tag = hash & tag_mask, .found = std::nullopt};
    for (; slots_[probe.slot] != 0; probe.slot = (probe.slot + 1) & mask) {
      const std::uint64_t slot = slots_[probe.slot];
      if ((slot & tag_mask) != probe.tag) continue;
      const auto index = static_cast<std::uint32_t>(slot) - 1U;
      if (name_at(index) != name) continue;
      probe.found = index;
      break;
    }
    return probe;
  }

  [[nodiscard]] std::uint64_t hash_name(std::string_view name) const noexcept;

  // The upper half of a slot repeats half of the hash: without it every occupied slot on the way costs two
  // cache misses (record and name) just to be told apart.
  static constexpr std::uint64_t tag_mask = 0xFFFF'FFFF'0000'0000ULL;

  std::vector<std::uint64_t> slots_;  // tag | index + 1; 0: empty
  std::uint64_t seed_ = 0;
};

}  // namespace inrush::engine
