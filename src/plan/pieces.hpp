// The fourth step of a plan: the reads, in order, and what of each goes where.
#pragma once

#include <inrush/plan.hpp>

#include "plan/select.hpp"

#include <cstdint>
#include <vector>

namespace inrush::engine {

// Bytes between two wanted ranges that are read and thrown away rather than skipped. One core reads 8 GB/s
// out of the page cache (limits.md), so 64 KiB cost 8 us, about what a further read and its slot cost.
inline constexpr std::uint64_t gap_bytes_max = 64ULL << 10;

// Bounds the memory of a plan for files that only claim to be large (sparse ones): 16 Mi reads of 8 MiB are
// 141 TB.
inline constexpr std::uint64_t piece_count_max = 1ULL << 24;

// Adds pieces and segments to a plan that has its slabs and placements; `selected` is in the order of the
// placements. Pieces are cut at multiples of `piece_bytes` of the file position, so that only the ends of
// what is read are unaligned. Throws invalid_request where the limit above is passed.
void lay_pieces(const std::vector<Selected>& selected, std::uint64_t piece_bytes, Plan& plan);

}  // namespace inrush::engine
