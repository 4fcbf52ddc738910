#include "transfer/gds_proof.hpp"

#include <fmt/format.h>

namespace inrush::engine {

namespace {

bool is_set_back(const CufileCounts& before, const CufileCounts& after) {
  return after.p2p_reads < before.p2p_reads || after.nvfs_reads < before.nvfs_reads ||
         after.posix_reads < before.posix_reads;
}

CufileCounts operator-(const CufileCounts& a, const CufileCounts& b) {
  return {a.p2p_reads - b.p2p_reads, a.nvfs_reads - b.nvfs_reads, a.posix_reads - b.posix_reads};
}

GdsProof unproven(std::string reason) {
  return {GdsWay::unproven, "storage -> device (cuFile, way unproven)", std::move(reason)};
}

}  // namespace

GdsProof judge_gds(const GdsEvidence& evidence) {
  if (!evidence.before || !evidence.after) {
    return unproven(fmt::format("libcufile {} does not count reads by their way", evidence.facts.version));
  }
  if (is_set_back(*evidence.before, *evidence.after)) {
    return unproven(
        fmt::format("the counters of libcufile {} were set back meanwhile", evidence.facts.version));
  }
  const CufileCounts moved = *evidence.after - *evidence.before;
  const std::uint64_t direct = moved.p2p_reads + moved.nvfs_reads;
  std::string counted = fmt::format(
      "libcufile {} counted {} reads by P2PDMA, {} by nvidia-fs and {} by POSIX for {} of ours",
      evidence.facts.version, moved.p2p_reads, moved.nvfs_reads, moved.posix_reads, evidence.read_count);
  if (!evidence.facts.is_strict) counted += "; compat mode was allowed";
  // One call can be counted as several where the library cuts it, so more than ours is no contradiction.
  if (moved.posix_reads == 0 && direct >= evidence.read_count && direct > 0) {
    if (moved.nvfs_reads == 0) return {GdsWay::p2pdma, "storage -> device (cuFile P2PDMA)", counted};
    if (moved.p2p_reads == 0) return {GdsWay::nvidia_fs, "storage -> device (cuFile nvidia-fs)", counted};
    return {GdsWay::both, "storage -> device (cuFile P2PDMA and nvidia-fs)", counted};
  }
  if (direct == 0 && moved.posix_reads >= evidence.read_count && moved.posix_reads > 0)
    return {GdsWay::compat, "storage -> host -> device (cuFile compat)", counted};
  return unproven(std::move(counted));
}

}  // namespace inrush::engine
