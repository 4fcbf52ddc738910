// Whether pieces were in the page cache before the load read anywhere near them. Asked ahead of the reads,
// since the kernel reads ahead too: with a read-ahead of 8 MiB 87 % of a cold load looked like page cache
// when each piece was asked about at its turn. The path's thread alone.
#pragma once

#include <inrush/plan.hpp>

#include "storage/file.hpp"

#include <cstdint>
#include <vector>

namespace inrush::engine {

class ResidencyAhead {
 public:
  // `plan` must outlive it.
  explicit ResidencyAhead(const Plan& plan) : plan_(plan), answers_(plan.pieces.size()) {}

  // `file` is the piece's. Asks it about further pieces too, in the order of reading.
  [[nodiscard]] bool was_resident(std::uint32_t piece, const File& file);

 private:
  enum class Answer : std::uint8_t { unasked, resident, absent };

  const Plan& plan_;
  std::vector<Answer> answers_;  // by piece
  std::uint32_t asked_end_ = 0;  // where the last asking ended
};

}  // namespace inrush::engine
