#include <gtest/gtest.h>
#include <boost/json.hpp>
#include <inrush/report.hpp>

#include <limits>

namespace inrush {
namespace {

Report sample() {
  Report report;
  report.device = {DeviceKind::cuda, 1, ""};
  report.path = "staged";
  report.complete = true;
  report.tensor_count = 2;
  report.planned_bytes = 3'000'000'000;
  report.loaded_bytes = 3'000'000'000;
  report.read_bytes = 3'000'004'096;
  report.read_ahead_bytes = 500'000'000;
  report.bytes_by_path = {{"page cache -> ring", 2'000'000'000}, {"O_DIRECT -> ring", 1'000'000'000}};
  report.seconds = {0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.5};
  report.bytes_per_second = 6e9;
  report.read_count = 400;
  report.copy_count = 410;
  report.retry_count = 3;
  report.orphan_count = 1;
  report.fallbacks = {{"io_uring", "io_uring_setup: Operation not permitted", 2}};
  report.pinned_peak_bytes = 100;
  report.staging_peak_bytes = 200;
  report.window_peak_bytes = 250;
  report.host_peak_bytes = 300;
  report.notes = {"a \"second\" copy was left unread"};
  report.suspect_tensors = {"lm_head\n"};
  report.overwritten_targets = {"bias\t"};
  return report;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(ReportTest, JsonHasEveryField) {
  const boost::json::object json = boost::json::parse(report_to_json(sample())).as_object();
  const boost::json::object expected = {
      {"schema_version", 1},
      {"device", "cuda:1"},
      {"path", "staged"},
      {"complete", true},
      {"tensor_count", 2},
      {"planned_bytes", 3'000'000'000},
      {"loaded_bytes", 3'000'000'000},
      {"read_bytes", 3'000'004'096},
      {"bytes_by_path",
       {{{"path", "page cache -> ring"}, {"bytes", 2'000'000'000}},
        {{"path", "O_DIRECT -> ring"}, {"bytes", 1'000'000'000}}}},
      {"seconds",
       {{"open", 0.001},
        {"headers", 0.002},
        {"plan", 0.003},
        {"allocate", 0.004},
        {"first_byte", 0.005},
        {"first_tensor", 0.006},
        {"last_byte", 0.5}}},
      {"bytes_per_second", 6e9},
      {"read_ahead_bytes", 500'000'000},
      {"read_count", 400},
      {"copy_count", 410},
      {"retry_count", 3},
      {"orphan_count", 1},
      {"fallbacks",
       boost::json::array{
           {{"what", "io_uring"}, {"reason", "io_uring_setup: Operation not permitted"}, {"count", 2}}}},
      {"pinned_peak_bytes", 100},
      {"staging_peak_bytes", 200},
      {"window_peak_bytes", 250},
      {"host_peak_bytes", 300},
      {"notes", boost::json::array{"a \"second\" copy was left unread"}},
      {"suspect_tensors", boost::json::array{"lm_head\n"}},
      {"overwritten_targets", boost::json::array{"bias\t"}},
  };
  EXPECT_EQ(json, expected) << boost::json::serialize(json);
}

TEST(ReportTest, JsonStaysJsonWhateverTheNumbers) {
  Report report = sample();
  report.seconds.first_tensor = -1;
  report.seconds.last_byte = std::numeric_limits<double>::infinity();
  report.bytes_per_second = std::numeric_limits<double>::quiet_NaN();
  report.loaded_bytes = UINT64_MAX;
  const boost::json::value json = boost::json::parse(report_to_json(report));
  EXPECT_TRUE(json.at("seconds").at("first_tensor").is_null());
  EXPECT_TRUE(json.at("seconds").at("last_byte").is_null());
  EXPECT_TRUE(json.at("bytes_per_second").is_null());
  EXPECT_EQ(json.at("loaded_bytes").as_uint64(), UINT64_MAX);
}

TEST(ReportTest, TextSaysWhatPeopleAsk) {
  EXPECT_EQ(report_to_text(sample()),
            "loaded 2 tensors, 3.00 GB to cuda:1 in 0.500 s: 6.00 GB/s\n"
            "  path       staged\n"
            "  bytes      2.00 GB (66.7 %) page cache -> ring\n"
            "             1.00 GB (33.3 %) O_DIRECT -> ring\n"
            "  reads      3.00 GB in 400 reads, 3 continued or repeated, 1 never returned\n"
            "  ahead      500 MB into the page cache while the device was being opened\n"
            "  copies     410 by the device, 137 per GB\n"
            "  stages     open 1.00 ms, headers 2.00 ms, plan 3.00 ms, allocate 4.00 ms, first byte 5.00 ms, "
            "first tensor 6.00 ms, last byte 0.500 s (since the start)\n"
            "  memory     staging peak 200 B (100 B pinned), process peak 300 B\n"
            "  windows    250 B of page cache registered at one time\n"
            "  fallbacks  without io_uring: io_uring_setup: Operation not permitted (2 times)\n"
            "  notes      a \"second\" copy was left unread\n"
            "  suspect    lm_head\\x0a\n"
            "  targets    overwritten: bias\\x09\n");
}

TEST(ReportTest, TextOfAnUnfinishedLoadSaysSo) {
  Report report = sample();
  report.complete = false;
  report.tensor_count = 1;
  report.loaded_bytes = 1'000'000'000;
  const std::string text = report_to_text(report);
  EXPECT_TRUE(has(text, "incomplete: 1 tensor, 1.00 GB of 3.00 GB on cuda:1\n")) << text;
}

TEST(ReportTest, TextOfAnEmptyReportHasNoBlankLabels) {
  const std::string text = report_to_text(Report{});
  EXPECT_FALSE(has(text, "stages")) << text;
  EXPECT_FALSE(has(text, "fallbacks")) << text;
  EXPECT_FALSE(has(text, "nan")) << text;
}

TEST(ReportTest, LongListsAreCut) {
  Report report = sample();
  report.notes.assign(50, "note");
  const std::string text = report_to_text(report);
  EXPECT_TRUE(has(text, "... and 30 more")) << text;
}

TEST(ReportTest, TextHelpersAreThoseOfTheMessages) {
  EXPECT_EQ(format_bytes(1'500'000'000), "1.50 GB");
  EXPECT_EQ(escape_text("a\x1b[31m\"", 100), "a\\x1b[31m\\x22");
  EXPECT_EQ(escape_text("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace inrush
