// Which way the reads of a load took: every verdict, and what may not become one.
#include "transfer/gds_proof.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {
namespace {

struct ProofCase {
  std::string what;
  std::uint64_t read_count = 0;
  std::optional<CufileCounts> before;
  std::optional<CufileCounts> after;
  GdsWay way = GdsWay::unproven;
  std::string path;
};

std::ostream& operator<<(std::ostream& out, const ProofCase& tested) { return out << tested.what; }

constexpr const char* unproven_path = "storage -> device (cuFile, way unproven)";
constexpr const char* p2pdma_path = "storage -> device (cuFile P2PDMA)";
constexpr const char* nvidia_fs_path = "storage -> device (cuFile nvidia-fs)";
constexpr const char* both_path = "storage -> device (cuFile P2PDMA and nvidia-fs)";
constexpr const char* compat_path = "storage -> host -> device (cuFile compat)";

// Counts as {P2PDMA, nvidia-fs, POSIX}.
std::vector<ProofCase> cases() {
  const CufileCounts none{};
  return {
      {"each by P2PDMA", 8, none, CufileCounts{8, 0, 0}, GdsWay::p2pdma, p2pdma_path},
      {"each by nvidia-fs", 8, none, CufileCounts{0, 8, 0}, GdsWay::nvidia_fs, nvidia_fs_path},
      {"some by each", 8, none, CufileCounts{3, 5, 0}, GdsWay::both, both_path},
      {"each by POSIX", 8, none, CufileCounts{0, 0, 8}, GdsWay::compat, compat_path},
      {"one read", 1, none, CufileCounts{1, 0, 0}, GdsWay::p2pdma, p2pdma_path},

      {"what was before does not count", 4, CufileCounts{5, 6, 7}, CufileCounts{9, 6, 7}, GdsWay::p2pdma,
       p2pdma_path},
      {"POSIX of before does not count", 4, CufileCounts{0, 0, 900}, CufileCounts{0, 4, 900},
       GdsWay::nvidia_fs, nvidia_fs_path},

      // The library counts one call as several where it cuts it, and others use it too.
      {"more than ours by P2PDMA", 8, none, CufileCounts{31, 0, 0}, GdsWay::p2pdma, p2pdma_path},
      {"more than ours by nvidia-fs", 8, none, CufileCounts{0, 9, 0}, GdsWay::nvidia_fs, nvidia_fs_path},
      {"more than ours, of both", 8, none, CufileCounts{8, 8, 0}, GdsWay::both, both_path},
      {"more than ours by POSIX", 8, none, CufileCounts{0, 0, 16}, GdsWay::compat, compat_path},

      {"fewer than ours by P2PDMA", 8, none, CufileCounts{7, 0, 0}, GdsWay::unproven, unproven_path},
      {"fewer than ours, of both", 8, none, CufileCounts{3, 4, 0}, GdsWay::unproven, unproven_path},
      {"fewer than ours by POSIX", 8, none, CufileCounts{0, 0, 7}, GdsWay::unproven, unproven_path},
      {"one of them by POSIX", 8, none, CufileCounts{7, 0, 1}, GdsWay::unproven, unproven_path},
      {"one by POSIX that may be somebody else's", 8, none, CufileCounts{8, 0, 1}, GdsWay::unproven,
       unproven_path},
      {"one of them by P2PDMA", 8, none, CufileCounts{1, 0, 7}, GdsWay::unproven, unproven_path},
      {"counters that never move", 8, none, none, GdsWay::unproven, unproven_path},
      {"nothing was read", 0, none, none, GdsWay::unproven, unproven_path},

      {"no counters before", 8, std::nullopt, CufileCounts{8, 0, 0}, GdsWay::unproven, unproven_path},
      {"no counters after", 8, none, std::nullopt, GdsWay::unproven, unproven_path},
      {"no counters", 8, std::nullopt, std::nullopt, GdsWay::unproven, unproven_path},

      // The host program may set the counters back (cuFileStatsReset), or close the driver, while we load.
      {"P2PDMA set back, ours by POSIX", 4, CufileCounts{10, 0, 4}, CufileCounts{0, 0, 4}, GdsWay::unproven,
       unproven_path},
      {"P2PDMA set back", 4, CufileCounts{10, 0, 0}, CufileCounts{4, 0, 0}, GdsWay::unproven, unproven_path},
      {"nvidia-fs set back", 4, CufileCounts{0, 10, 0}, CufileCounts{0, 4, 0}, GdsWay::unproven,
       unproven_path},
      {"POSIX set back", 4, CufileCounts{0, 0, 10}, CufileCounts{4, 0, 0}, GdsWay::unproven, unproven_path},
  };
}

class GdsProofTest : public testing::TestWithParam<ProofCase> {
 protected:
  [[nodiscard]] static GdsProof judge(bool is_strict) {
    const ProofCase& tested = GetParam();
    CufileFacts facts;
    facts.version = "1.23";
    facts.is_strict = is_strict;
    return judge_gds({facts, tested.read_count, tested.before, tested.after});
  }
};

TEST_P(GdsProofTest, Verdict) {
  const ProofCase& tested = GetParam();
  const GdsProof proof = judge(true);
  EXPECT_EQ(proof.way, tested.way) << proof.reason;
  EXPECT_EQ(proof.path, tested.path);
  EXPECT_NE(proof.reason.find("libcufile 1.23 "), std::string::npos) << proof.reason;
  EXPECT_EQ(proof.reason.find("compat mode was allowed"), std::string::npos) << proof.reason;
  EXPECT_EQ(proof.reason.find("18446744073709551"), std::string::npos) << "below zero: " << proof.reason;
}

// The verdict is by the counters; that compat mode was allowed is told beside it.
TEST_P(GdsProofTest, NotStrictIsTheSameVerdictAndSaysSo) {
  const ProofCase& tested = GetParam();
  const GdsProof proof = judge(false);
  EXPECT_EQ(proof.way, tested.way) << proof.reason;
  EXPECT_EQ(proof.path, tested.path);
  const bool was_counted =
      tested.before && tested.after && proof.reason.find(" counted ") != std::string::npos;
  EXPECT_EQ(proof.reason.ends_with("; compat mode was allowed"), was_counted) << proof.reason;
}

INSTANTIATE_TEST_SUITE_P(Counters, GdsProofTest, testing::ValuesIn(cases()));

TEST(GdsProof, TheReasonHasAllNumbers) {
  CufileFacts facts;
  facts.version = "1.19";
  facts.is_strict = true;
  EXPECT_EQ(judge_gds({facts, 6, CufileCounts{1, 1, 1}, CufileCounts{3, 5, 2}}).reason,
            "libcufile 1.19 counted 2 reads by P2PDMA, 4 by nvidia-fs and 1 by POSIX for 6 of ours");
  EXPECT_EQ(judge_gds({facts, 6, std::nullopt, CufileCounts{}}).reason,
            "libcufile 1.19 does not count reads by their way");
}

}  // namespace
}  // namespace inrush::engine
