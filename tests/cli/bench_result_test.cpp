#include "cli/bench_result.hpp"

#include <gtest/gtest.h>

namespace inrush::engine {
namespace {

constexpr std::uint64_t gb = 1'000'000'000;

// 8 GB in four seconds: 2 GB/s.
BenchLoad load_of(BenchState state, double resident_share, std::vector<PathBytes> ways = {}) {
  BenchLoad load;
  load.state = state;
  load.which = "first";
  load.seconds = 4;
  load.cpu_seconds = 1.5;
  load.resident_share = resident_share;
  load.report.device = {.kind = DeviceKind::cuda};
  load.report.loaded_bytes = 8 * gb;
  load.report.bytes_by_path = std::move(ways);
  load.report.seconds = {.open = 0.01, .headers = 0.02, .plan = 0.005, .first_byte = 0.1, .last_byte = 3.9};
  return load;
}

BenchResult result_of(std::vector<BenchLoad> loads) {
  BenchResult result;
  result.path = "/models/llama";
  result.device.kind = DeviceKind::cuda;
  result.size_bytes = 8 * gb;
  result.limits.storage = {.bytes_per_second = 2.5e9, .how = "O_DIRECT"};
  result.limits.page_cache = {.bytes_per_second = 20e9, .how = "readers"};
  result.limits.pinned = {.bytes_per_second = 50e9, .how = "copies"};
  result.loads = std::move(loads);
  return result;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(BoundOf, IsTheLeastOfWhatTheBytesCameThrough) {
  Limits limits = result_of({}).limits;
  const BenchLoad cold = load_of(BenchState::cold, 0);
  BenchLoad warm = load_of(BenchState::warm, 1);
  EXPECT_EQ(bound_of(limits, cold).name, "storage");
  EXPECT_EQ(bound_of(limits, warm).name, "page cache");
  limits.pinned.bytes_per_second = 2e9;
  EXPECT_EQ(bound_of(limits, cold).name, "pinned");
  EXPECT_EQ(bound_of(limits, warm).bytes_per_second, 2e9);
  warm.report.device = {};
  EXPECT_EQ(bound_of(limits, warm).name, "page cache") << "nothing is copied to a device";
}

TEST(BoundOf, WindowsNeedNoReaders) {
  const Limits limits = result_of({}).limits;
  const BenchLoad windowed =
      load_of(BenchState::warm, 1, {{"page cache -> device (registered windows)", 8 * gb}});
  EXPECT_EQ(bound_of(limits, windowed).name, "pinned");
}

TEST(BoundOf, WithoutAFigureNothingIsClaimed) {
  BenchResult result = result_of({load_of(BenchState::cold, 0)});
  result.limits.storage = {.reason = "O_DIRECT is refused: because"};
  EXPECT_EQ(bound_of(result.limits, result.loads[0]).name, "");
  const std::string text = bench_text(result);
  EXPECT_TRUE(has(text, "  storage     not measured  O_DIRECT is refused: because\n")) << text;
  EXPECT_TRUE(has(text, "  cold   first    4.000  2.00  -              1.50  storage\n")) << text;
  EXPECT_TRUE(has(bench_json(result), R"("limit":null,"limit_share":null)"));
}

TEST(BenchText, SaysWhatAStateReallyWas) {
  const std::string text = bench_text(result_of(
      {load_of(BenchState::cold, 0.002,
               {{"page cache -> ring", 7 * gb}, {"storage -> page cache -> ring", gb}}),
       load_of(BenchState::cold, 0.3), load_of(BenchState::cold, 0.97), load_of(BenchState::warm, 0.4),
       load_of(BenchState::warm, 1, {{"page cache -> ring", 6 * gb}, {"O_DIRECT -> ring", 2 * gb}})}));
  EXPECT_TRUE(has(text, "80 % of storage      1.50  storage\n")) << text;
  EXPECT_TRUE(has(text, "80 % of storage      1.50  storage; 30 % was in the page cache\n")) << text;
  EXPECT_TRUE(has(text, "not cold: 97 % was in the page cache, its pages would not go\n")) << text;
  EXPECT_TRUE(has(text, "80 % of storage      1.50  not warm: 40 % was in the page cache\n")) << text;
  EXPECT_TRUE(has(text, "page cache; 25 % storage, its pages were taken meanwhile\n")) << text;
}

TEST(BenchText, SaysWhereTheTimeOfTheSlowestWent) {
  BenchResult result = result_of({load_of(BenchState::cold, 0), load_of(BenchState::cold, 0)});
  result.loads[1].seconds = 5;
  result.loads[1].which = "later";
  EXPECT_TRUE(has(bench_text(result),
                  "\n  cold, later: plan 5.0 ms, files and headers 15.0 ms, first byte 80.0 ms, all bytes "
                  "3.80 s, last tensor taken 1.10 s; CPUs busy for 1.50 s\n"))
      << bench_text(result);
}

TEST(BenchText, NotesAreSaidOnce) {
  BenchResult result = result_of({load_of(BenchState::cold, 0), load_of(BenchState::cold, 0)});
  for (BenchLoad& load : result.loads) load.report.fallbacks = {{"io_uring", "forbidden here", 3}};
  result.limits.storage.bytes_per_second = 1e9;
  const std::string text = bench_text(result);
  for (const std::string_view line : {"note: without io_uring: forbidden here\n",
                                      "note: a cold load was faster than the limit \"storage\""}) {
    const std::size_t place = text.find(line);
    ASSERT_NE(place, std::string::npos) << text;
    EXPECT_EQ(text.find(line, place + 1), std::string::npos) << text;
  }
  EXPECT_FALSE(has(text, "the device is the CPU"));
}

}  // namespace
}  // namespace inrush::engine
