#include "plan/pieces.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace inrush::engine {

namespace {

// A range of the file and the place in the current slab where its first byte belongs.
struct Run {
  ByteRange source;
  std::uint64_t slab_offset = 0;
};

// Lays one placement after the other. All positions only grow, so the last piece and the last segment are all
// that can be extended.
class PieceBuilder final {
 public:
  PieceBuilder(std::uint64_t piece_bytes, Plan& plan) : piece_bytes_(piece_bytes), plan_(plan) {}

  void add(std::uint32_t placement, const Rows& rows) {
    placement_ = placement;
    file_ = rows.file;
    const Placement& place = plan_.placements[placement];
    slab_ = place.slab;
    for (std::uint64_t row = 0; row < rows.row_count;) {
      const std::uint64_t offset = rows.offset + row * rows.pitch_bytes;
      const std::uint64_t slab_offset = place.slab_offset + row * rows.row_bytes;
      const std::uint64_t row_count = std::min(rows.row_count - row, whole_rows_before_cut(rows, offset));
      if (row_count < 2) {
        add_run({{offset, rows.row_bytes}, slab_offset});
        ++row;
        continue;
      }
      reach({offset, (row_count - 1) * rows.pitch_bytes + rows.row_bytes});
      add_segment({offset - plan_.pieces.back().offset, rows.pitch_bytes, slab_offset, rows.row_bytes,
                   rows.row_bytes, row_count});
      row += row_count;
    }
  }

 private:
  [[nodiscard]] std::uint64_t next_cut(std::uint64_t offset) const {
    return (offset / piece_bytes_ + 1) * piece_bytes_;
  }

  // Rows from the one at `offset` on that one piece can take without a row being cut. Rows that lie far apart
  // come one by one.
  [[nodiscard]] std::uint64_t whole_rows_before_cut(const Rows& rows, std::uint64_t offset) const {
    const std::uint64_t room_bytes = next_cut(offset) - offset;
    if (rows.row_count == 1 || rows.pitch_bytes - rows.row_bytes > gap_bytes_max ||
        rows.row_bytes > room_bytes)
      return 0;
    return (room_bytes - rows.row_bytes) / rows.pitch_bytes + 1;
  }

  void add_run(Run run) {
    while (run.source.size_bytes > 0) {
      const std::uint64_t size_bytes =
          std::min(run.source.size_bytes, next_cut(run.source.offset) - run.source.offset);
      reach({run.source.offset, size_bytes});
      const std::uint64_t source_offset = run.source.offset - plan_.pieces.back().offset;
      add_segment({source_offset, size_bytes, run.slab_offset, size_bytes, size_bytes, 1});
      run = {{run.source.offset + size_bytes, run.source.size_bytes - size_bytes},
             run.slab_offset + size_bytes};
    }
  }

  // Makes the last piece one that holds `range`, which crosses no cut.
  void reach(ByteRange range) {
    if (!last_piece_takes(range)) open_piece(range.offset);
    Piece& piece = plan_.pieces.back();
    piece.size_bytes = range.end() - piece.offset;
    piece.placement_count = placement_ - piece.first_placement + 1;
  }

  [[nodiscard]] bool last_piece_takes(ByteRange range) const {
    if (plan_.pieces.empty()) return false;
    const Piece& piece = plan_.pieces.back();
    return piece.slab == slab_ && piece.file == file_ && next_cut(piece.offset) >= range.end() &&
           range.offset - (piece.offset + piece.size_bytes) <= gap_bytes_max;
  }

  void open_piece(std::uint64_t offset) {
    if (plan_.pieces.size() >= piece_count_max) {
      throw Error(ErrorCode::invalid_request,
                  fmt::format("the request needs more than {} reads: select fewer tensors or larger slices",
                              piece_count_max));
    }
    const auto piece = static_cast<std::uint32_t>(plan_.pieces.size());
    Slab& slab = plan_.slabs[slab_];
    if (slab.piece_count == 0) slab.first_piece = piece;
    ++slab.piece_count;
    const auto segment = static_cast<std::uint32_t>(plan_.segments.size());
    plan_.pieces.push_back({file_, offset, 0, slab_, segment, 0, placement_, 0});
  }

  void add_segment(const Segment& segment) {
    Piece& piece = plan_.pieces.back();
    if (piece.segment_count > 0 && segment.row_count == 1) {
      Segment& last = plan_.segments.back();
      const bool is_adjacent = last.source_offset + last.row_bytes == segment.source_offset &&
                               last.slab_offset + last.row_bytes == segment.slab_offset;
      if (last.row_count == 1 && is_adjacent) {
        last.row_bytes += segment.row_bytes;
        last.source_pitch_bytes = last.slab_pitch_bytes = last.row_bytes;
        return;
      }
    }
    plan_.segments.push_back(segment);
    ++piece.segment_count;
  }

  const std::uint64_t piece_bytes_;
  Plan& plan_;
  // Where the placement in hand is read from and goes to.
  std::uint32_t placement_ = 0;
  std::uint32_t file_ = 0;
  std::uint32_t slab_ = 0;
};

}  // namespace

void lay_pieces(const std::vector<Selected>& selected, std::uint64_t piece_bytes, Plan& plan) {
  PieceBuilder builder(piece_bytes, plan);
  plan.segments.reserve(selected.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    if (selected[i].rows.size_bytes() > 0) builder.add(static_cast<std::uint32_t>(i), selected[i].rows);
  }
}

}  // namespace inrush::engine
