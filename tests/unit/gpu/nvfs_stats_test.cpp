// The statistics of nvidia-fs. The texts are written after the format strings of nvfs-stat.c at 2.3.1, 2.7
// and 2.28.4 (2.12 to 2.28 print alike), with figures of ours.
#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace inrush {
namespace {

constexpr std::string_view uuid = "f4ce0000-0011-2233-4455-66778899aabb";

// 2.3.1: no line about what is enabled, no batches, colons in the version, fewer keys.
std::string layout_2_3() {
  return "GDS Version: 0.9.0.18 \n"
         "NVFS statistics(ver: 2.0)\n"
         "NVFS Driver(version: 2:3:1)\n\n"
         "Active Shadow-Buffer (MiB): 128\n"
         "Active Process: 1\n"
         "Reads\t\t\t\t: n=1000 ok=998 err=2 readMiB=4000 io_state_err=1\n"
         "Reads\t\t\t\t: Bandwidth(MiB/s)=6200 Avg-Latency(usec)=640\n"
         "Sparse Reads\t\t        : n=3 io=4 holes=5 pages=6 \n"
         "Writes\t\t\t\t: n=20 ok=20 err=0 writeMiB=80 io_state_err=0 pg-cache=0 pg-cache-fail=0 "
         "pg-cache-eio=0\n"
         "Writes\t\t\t\t: Bandwidth(MiB/s)=1500 Avg-Latency(usec)=2600\n"
         "Mmap\t\t\t\t: n=9 ok=9 err=0 munmap=8\n"
         "Bar1-map\t\t\t: n=16 ok=15 err=1 free=11 callbacks=2 active=4\n"
         "Error\t\t\t\t: cpu-gpu-pages=7 sg-ext=8 dma-map=9\n"
         "Ops\t\t\t\t: Read=3 Write=0\n"
         "GPU 0000:65:00.0  uuid:" +
         std::string(uuid) + " : Registered_MiB=256 Cache_MiB=128 max_pinned_MiB=384 \n";
}

// 2.7 with nothing counted: reads and writes have no count, and there is no line of batches.
std::string layout_2_7() {
  return "GDS Version: 1.0.0.82 \n"
         "NVFS statistics(ver: 4.0)\n"
         "NVFS Driver(version: 2.7.49)\n"
         "Mellanox PeerDirect Supported: False\n"
         "IO stats: Disabled, peer IO stats: Disabled\n"
         "Logging level: warn\n\n"
         "Active Shadow-Buffer (MiB): 0\n"
         "Active Process: 0\n"
         "Reads\t\t\t\t: err=5 io_state_err=6\n"
         "Sparse Reads\t\t        : n=0 io=0 holes=0 pages=0 \n"
         "Writes\t\t\t\t: err=0 io_state_err=0 pg-cache=0 pg-cache-fail=0 pg-cache-eio=0\n"
         "Mmap\t\t\t\t: n=0 ok=0 err=0 munmap=0\n"
         "Bar1-map\t\t\t: n=0 ok=0 err=0 free=0 callbacks=0 active=0 delay-frees=0\n"
         "Error\t\t\t\t: cpu-gpu-pages=0 sg-ext=0 dma-map=0 dma-ref=0\n"
         "Ops\t\t\t\t: Read=0 Write=0\n";
}

// 2.28.4 with everything counted, and two GPUs.
std::string layout_2_28() {
  return "GDS Version: 1.17.1.22 \n"
         "NVFS statistics(ver: 4.0)\n"
         "NVFS Driver(version: 2.28.4)\n"
         "Mellanox PeerDirect Supported: True\n"
         "IO stats: Enabled, peer IO stats: Enabled\n"
         "Logging level: info\n\n"
         "Active Shadow-Buffer (MiB): 512\n"
         "Active Process: 2\n"
         "Batches\t\t\t\t: n=70 ok=69 err=1 Avg-Submit-Latency(usec)=33\n"
         "Reads\t\t\t\t: n=18446744073709551615 ok=123456 err=12 readMiB=987654 io_state_err=3\n"
         "Reads\t\t\t\t: Bandwidth(MiB/s)=13800 Avg-Latency(usec)=1150\n"
         "Sparse Reads\t\t        : n=1 io=2 holes=3 pages=4 \n"
         "Writes\t\t\t\t: n=31 ok=30 err=1 writeMiB=120 io_state_err=4 pg-cache=1 pg-cache-fail=2 "
         "pg-cache-eio=3\n"
         "Writes\t\t\t\t: Bandwidth(MiB/s)=2500 Avg-Latency(usec)=1600\n"
         "Mmap\t\t\t\t: n=41 ok=40 err=1 munmap=39\n"
         "Bar1-map\t\t\t: n=51 ok=50 err=1 free=44 callbacks=5 active=6 delay-frees=7\n"
         "Error\t\t\t\t: cpu-gpu-pages=11 sg-ext=12 dma-map=13 dma-ref=14\n"
         "Ops\t\t\t\t: Read=21 Write=22 BatchIO=23\n"
         "GPU 0000:65:00.0  uuid:" +
         std::string(uuid) +
         " : Registered_MiB=256 Cache_MiB=128 max_pinned_MiB=384 cross_root_port(%)=12\n"
         "GPU 0001:e3:00.0  uuid:00112233-4455-6677-8899-aabbccddeeff : Registered_MiB=0 Cache_MiB=64 "
         "max_pinned_MiB=64 cross_root_port(%)=0\n";
}

const std::vector<std::string>& all_layouts() {
  static const std::vector<std::string> layouts = {layout_2_3(), layout_2_7(), layout_2_28()};
  return layouts;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

TEST(GdsDriverStatsTest, ReadsTheFirstLayout) {
  const GdsDriverStats expected = {
      .driver_version = "2.3.1",
      .gds_version = "0.9.0.18",
      .layout_version = "2.0",
      .io_stats_enabled = std::nullopt,
      .peer_stats_enabled = std::nullopt,
      .active_process_count = 1,
      .shadow_buffer_mib = 128,
      .reads = {1000, 998, 2, 1, 4000, 6200, 640},
      .writes = {20, 20, 0, 0, 80, 1500, 2600},
      .batches = {},
      .bar1_maps = {16, 15, 1, 11, 2, 4, std::nullopt},
      .errors = {7, 8, 9, std::nullopt},
      .operations = {3, 0, std::nullopt},
      .gpus = {{"0000:65:00.0", std::string(uuid), 256, 128, 384, std::nullopt}}};
  EXPECT_EQ(parse_gds_driver_stats(layout_2_3()), expected);
}

TEST(GdsDriverStatsTest, WhatIsNotCountedHasNoNumber) {
  const GdsDriverStats stats = parse_gds_driver_stats(layout_2_7());
  EXPECT_EQ(stats.driver_version, "2.7.49");
  EXPECT_EQ(stats.io_stats_enabled, false);
  EXPECT_EQ(stats.peer_stats_enabled, false);
  const std::nullopt_t none = std::nullopt;
  EXPECT_EQ(stats.reads, (GdsDriverIo{none, none, 5, 6, none, none, none}));
  EXPECT_EQ(stats.writes, (GdsDriverIo{none, none, 0, 0, none, none, none}));
  EXPECT_EQ(stats.batches, GdsDriverIo{});
  EXPECT_EQ(stats.operations, (GdsDriverOperations{0, 0, none}));
  EXPECT_EQ(stats.errors, (GdsDriverErrors{0, 0, 0, 0}));
  EXPECT_EQ(stats.active_process_count, 0U);
  EXPECT_TRUE(stats.gpus.empty());
}

TEST(GdsDriverStatsTest, ReadsTheNewestLayout) {
  const GdsDriverStats stats = parse_gds_driver_stats(layout_2_28());
  EXPECT_EQ(stats.driver_version, "2.28.4");
  EXPECT_EQ(stats.gds_version, "1.17.1.22");
  EXPECT_EQ(stats.io_stats_enabled, true);
  EXPECT_EQ(stats.peer_stats_enabled, true);
  EXPECT_EQ(stats.shadow_buffer_mib, 512U);
  EXPECT_EQ(stats.reads, (GdsDriverIo{UINT64_MAX, 123456, 12, 3, 987654, 13800, 1150}));
  EXPECT_EQ(stats.writes, (GdsDriverIo{31, 30, 1, 4, 120, 2500, 1600}));
  const std::nullopt_t none = std::nullopt;
  EXPECT_EQ(stats.batches, (GdsDriverIo{70, 69, 1, none, none, none, 33}));
  EXPECT_EQ(stats.bar1_maps, (GdsDriverMaps{51, 50, 1, 44, 5, 6, 7}));
  EXPECT_EQ(stats.errors, (GdsDriverErrors{11, 12, 13, 14}));
  EXPECT_EQ(stats.operations, (GdsDriverOperations{21, 22, 23}));
  ASSERT_EQ(stats.gpus.size(), 2U);
  EXPECT_EQ(stats.gpus[0], (GdsDriverGpu{"0000:65:00.0", std::string(uuid), 256, 128, 384, 12}));
  EXPECT_EQ(stats.gpus[1],
            (GdsDriverGpu{"0001:e3:00.0", "00112233-4455-6677-8899-aabbccddeeff", 0, 64, 64, 0}));
}

TEST(GdsDriverStatsTest, NothingIsMadeUpOfNothing) {
  for (const std::string_view text : {"", "\n\n\n", "junk", "= : =\n:::\n", "GPU\nReads\nReads :\n"}) {
    EXPECT_EQ(parse_gds_driver_stats(text), GdsDriverStats{}) << text;
  }
}

TEST(GdsDriverStatsTest, OtherWordsAndBlanksDoNotMatter) {
  const std::string text =
      "  \t\r\nUnheard-of: n=7 ok=7\r\nSparse Reads : n=8\n"
      "  Reads:n=1   new-key=99\t ok=2 \r\n"
      "no colon n=5\n = \n"
      "Ops : Read=3 Read Write= Write=4\n"
      "Readsome : n=6\n";
  GdsDriverStats expected;
  expected.reads.count = 1;
  expected.reads.ok_count = 2;
  expected.operations = {3, 4, std::nullopt};
  EXPECT_EQ(parse_gds_driver_stats(text), expected);
}

TEST(GdsDriverStatsTest, WhatIsNoNumberIsUnknown) {
  for (const std::string number : {"", "-1", "+1", "12abc", "0x10", "1.5", "18446744073709551616", "=3"}) {
    const std::string text =
        "Reads : n=" + number + " ok=4\nActive Process: " + number + "\nIO stats: Perhaps, peer IO stats:\n";
    GdsDriverStats expected;
    expected.reads.ok_count = 4;
    EXPECT_EQ(parse_gds_driver_stats(text), expected) << number;
  }
}

// Each part of the whole is in `part` as well, or null or missing there.
void expect_part(const boost::json::value& part, const boost::json::value& whole, const std::string& place) {
  if (part.is_null()) return;
  ASSERT_EQ(part.kind(), whole.kind()) << place;
  if (part.is_object()) {
    for (const auto& [name, value] : part.get_object()) {
      expect_part(value, whole.at(name), place + "." + std::string(name));
    }
  } else if (part.is_array()) {
    ASSERT_LE(part.get_array().size(), whole.get_array().size()) << place;
    for (std::size_t i = 0; i < part.get_array().size(); ++i) {
      expect_part(part.at(i), whole.at(i), place + "[]");
    }
  } else {
    EXPECT_EQ(part, whole) << place;
  }
}

TEST(GdsDriverStatsTest, TextCutAnywhereSaysLessAndNothingElse) {
  for (const std::string& text : all_layouts()) {
    const auto whole = boost::json::parse(gds_driver_stats_to_json(parse_gds_driver_stats(text)));
    for (std::size_t size = 0; size < text.size(); ++size) {
      // A copy of its own, so that a read beyond the end is one beyond an allocation.
      const std::vector<char> part(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
      const GdsDriverStats stats = parse_gds_driver_stats({part.data(), part.size()});
      expect_part(boost::json::parse(gds_driver_stats_to_json(stats)), whole,
                  "cut at " + std::to_string(size));
      EXPECT_FALSE(gds_driver_stats_to_text(stats).empty());
    }
  }
}

TEST(GdsDriverStatsTest, AnyByteInAnyPlaceIsHarmless) {
  const std::string text = layout_2_28();
  for (std::size_t place = 0; place < text.size(); ++place) {
    for (const char byte : {'\0', '\n', '=', ':', '\xff', '\x1b', ' '}) {
      std::string changed = text;
      changed[place] = byte;
      const GdsDriverStats stats = parse_gds_driver_stats(changed);
      EXPECT_TRUE(boost::json::parse(gds_driver_stats_to_json(stats)).is_object()) << place;
      const std::string shown = gds_driver_stats_to_text(stats);
      EXPECT_FALSE(has(shown, "\x1b") || has(shown, "\xff") || has(shown, std::string_view("\0", 1)))
          << place;
    }
  }
}

TEST(GdsDriverStatsTest, TextShowsNumbersAndDashes) {
  const std::string counted = gds_driver_stats_to_text(parse_gds_driver_stats(layout_2_28()));
  for (const std::string_view part :
       {"nvidia-fs 2.28.4, GDS 1.17.1.22\n", "I/O counts  enabled\n", "987654", "13800",
        "51 asked, 50 ok, 1 failed, 6 active", "44 freed, 7 freed late, 5 taken back", "11 mixed pages",
        "21 reads, 22 writes, 23 batches", "0000:65:00.0", "at most pinned 384 MiB, 12 % between root ports",
        "Compat mode and P2PDMA do not go through nvidia-fs"}) {
    EXPECT_TRUE(has(counted, part)) << part << " is not in\n" << counted;
  }
  EXPECT_FALSE(has(counted, "rw_stats_enabled")) << "nothing is left to enable";

  const std::string disabled = gds_driver_stats_to_text(parse_gds_driver_stats(layout_2_7()));
  EXPECT_TRUE(has(disabled, "disabled")) << disabled;
  EXPECT_TRUE(has(disabled, "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled\n")) << disabled;
  EXPECT_TRUE(has(disabled, "  batches                -            -")) << disabled;

  const std::string unknown = gds_driver_stats_to_text({});
  EXPECT_TRUE(has(unknown, "nvidia-fs unknown, GDS unknown\n")) << unknown;
  EXPECT_TRUE(has(unknown, "I/O counts  unknown\n")) << unknown;
  EXPECT_FALSE(has(unknown, "0 ")) << "a number out of nothing:\n" << unknown;
}

TEST(GdsDriverStatsTest, JsonHasEveryFieldAndNullForUnknown) {
  const auto json = boost::json::parse(gds_driver_stats_to_json(parse_gds_driver_stats(layout_2_28())));
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("driver_version"), "2.28.4");
  EXPECT_EQ(json.at("io_stats_enabled"), true);
  EXPECT_EQ(json.at("reads").at("count"), UINT64_MAX);
  EXPECT_EQ(json.at("writes").at("moved_mib"), 120);
  EXPECT_EQ(json.at("bar1_maps").at("delayed_free_count"), 7);
  EXPECT_EQ(json.at("errors").at("dma_reference_count"), 14);
  EXPECT_EQ(json.at("operations").at("batch_count"), 23);
  EXPECT_EQ(json.at("gpus").at(0).at("uuid").as_string(), uuid);
  EXPECT_EQ(json.at("gpus").at(1).at("cross_root_port_percent"), 0);
  const auto unknown = boost::json::parse(gds_driver_stats_to_json({}));
  EXPECT_TRUE(unknown.at("driver_version").is_null());
  EXPECT_TRUE(unknown.at("io_stats_enabled").is_null());
  EXPECT_TRUE(unknown.at("reads").at("count").is_null());
  EXPECT_TRUE(unknown.at("gpus").as_array().empty());
}

class ReadGdsDriverStatsTest : public testing::Test {
 protected:
  ReadGdsDriverStatsTest() {
    std::string name = testing::TempDir() + "inrush-nvfs-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~ReadGdsDriverStatsTest() override { std::filesystem::remove_all(folder_); }

  static void expect_failed(const std::string& path, std::string_view part) {
    try {
      (void)read_gds_driver_stats(path);
      ADD_FAILURE() << "read " << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::storage_failed);
      EXPECT_TRUE(has(error.what(), path)) << error.what();
      EXPECT_TRUE(has(error.what(), part)) << error.what();
    }
  }

  std::filesystem::path folder_;
};

TEST_F(ReadGdsDriverStatsTest, ReadsTheFile) {
  std::ofstream(folder_ / "stats") << layout_2_28();
  EXPECT_EQ(read_gds_driver_stats(folder_ / "stats"), parse_gds_driver_stats(layout_2_28()));
  std::ofstream(folder_ / "empty");
  EXPECT_EQ(read_gds_driver_stats(folder_ / "empty"), GdsDriverStats{});
}

TEST_F(ReadGdsDriverStatsTest, AnAbsentFileIsNoError) {
  std::ofstream(folder_ / "file");
  EXPECT_EQ(read_gds_driver_stats(folder_ / "stats"), std::nullopt);
  EXPECT_EQ(read_gds_driver_stats(folder_ / "absent" / "stats"), std::nullopt);
  EXPECT_EQ(read_gds_driver_stats(folder_ / "file" / "stats"), std::nullopt);
}

TEST_F(ReadGdsDriverStatsTest, WhatCannotBeReadIsAnError) {
  expect_failed(folder_, "Is a directory");
  expect_failed("/dev/zero", "larger than");
  std::filesystem::create_symlink("loop", folder_ / "loop");
  expect_failed(folder_ / "loop", "open: ");
}

TEST_F(ReadGdsDriverStatsTest, AFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_gds_driver_stats(folder_ / "fifo"), GdsDriverStats{});
}

}  // namespace
}  // namespace inrush
