// Which way reads by cuFile took, judged by what the library counted and not by what was configured. Pure.
#pragma once

#include "gpu/cufile_driver.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace inrush::engine {

enum class GdsWay : std::uint8_t { unproven, p2pdma, nvidia_fs, both, compat };

struct GdsEvidence {
  CufileFacts facts;
  std::uint64_t read_count = 0;  // reads of this load by cuFile
  std::optional<CufileCounts> before;
  std::optional<CufileCounts> after;
};

struct GdsProof {
  GdsWay way = GdsWay::unproven;
  std::string path;    // for Report::bytes_by_path
  std::string reason;  // what it was judged by

  bool operator==(const GdsProof&) const = default;
};

// Counters are of the process: what another user of cuFile reads meanwhile can only make a verdict weaker.
[[nodiscard]] GdsProof judge_gds(const GdsEvidence& evidence);

}  // namespace inrush::engine
