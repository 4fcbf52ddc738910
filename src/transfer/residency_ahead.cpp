#include "transfer/residency_ahead.hpp"

#include <algorithm>

namespace inrush::engine {

namespace {

// More than kernels read ahead (128 KiB to 16 MiB in use), and all of the reads in flight.
constexpr std::uint64_t ahead_bytes = 128ULL << 20;

}  // namespace

bool ResidencyAhead::was_resident(std::uint32_t piece, const File& file) {
  const Piece& asked = plan_.pieces[piece];
  const std::uint32_t first = answers_[piece] == Answer::unasked ? piece : std::max(piece, asked_end_);
  for (std::uint32_t i = first; i < answers_.size(); ++i) {
    const Piece& next = plan_.pieces[i];
    if (next.file != asked.file || next.offset >= asked.offset + ahead_bytes) break;
    asked_end_ = i + 1;
    if (answers_[i] != Answer::unasked) continue;
    answers_[i] = file.is_resident({next.offset, next.size_bytes}) ? Answer::resident : Answer::absent;
  }
  return answers_[piece] == Answer::resident;
}

}  // namespace inrush::engine
