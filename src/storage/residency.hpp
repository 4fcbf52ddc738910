// Whether a range of a file is in the page cache. Stateless; any thread.
#pragma once

#include "base/range.hpp"

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

}  // namespace inrush::engine
