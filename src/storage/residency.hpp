// Whether a range of a file is in the page cache. Stateless; any thread.
#pragma once

#include "base/range.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace inrush::engine {

// Ways to ask, best first. A test names one to see that each answers; auto-detection goes down the list.
enum class ResidencyWay {
  cachestat,  // exact; Linux 6.5, and later only for owners and writers
  nowait,     // samples pages with reads that refuse to wait
  mincore,    // samples pages; tells the truth only to an owner or a writer of the file
};

enum class Residency { resident, absent, unknown };

[[nodiscard]] Residency residency(int fd, ByteRange range, ResidencyWay way) noexcept;
// By the first way that answers; false where none does, so that the range is read from storage.
[[nodiscard]] bool is_range_resident(int fd, ByteRange range) noexcept;

// Reads what of the range is in the page cache, from its start on, and returns how many bytes that is. 0 also
// for the end of the file, errors and files that cannot be asked: what it is a plain read says. Never waits
// for storage.
[[nodiscard]] std::uint64_t read_resident(int fd, std::uint64_t offset, std::span<std::byte> target) noexcept;

}  // namespace inrush::engine
