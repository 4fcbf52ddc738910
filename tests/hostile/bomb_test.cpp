// Headers of 99 MB that are written to cost memory. Each gets its verdict in a process of its own, whose peak
// of resident memory is held to a limit; the time is printed, never asserted.
#include "fakes/child_process.hpp"
#include "fakes/safetensors_text.hpp"
#include "fakes/temp_folder.hpp"

#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>

namespace inrush {

namespace {

constexpr std::size_t header_bytes = 99'000'000;
constexpr std::uint64_t megabyte = 1'000'000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t peak_factor = 6;  // shadow memory, and freed memory that is kept to be watched
#else
constexpr std::uint64_t peak_factor = 1;
#endif

struct Bomb {
  std::string name;
  std::uint64_t peak_bytes_max;
  std::string expected;  // in the error; empty: it is legal and accepted
  std::string before;
  std::function<std::string(std::size_t)> part;  // repeated until the header is full
  std::string after;
  std::size_t data_bytes = 0;
};

std::ostream& operator<<(std::ostream& out, const Bomb& bomb) { return out << bomb.name; }

std::string header_of(const Bomb& bomb) {
  std::string header = bomb.before;
  header.reserve(header_bytes + (2ULL << 20));
  for (std::size_t number = 0; header.size() + bomb.after.size() < header_bytes; ++number) {
    header += bomb.part(number);
  }
  return header += bomb.after;
}

// Of this process since the last reset.
std::uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

struct Outcome {
  std::uint64_t growth_bytes = 0;
  std::int64_t milliseconds = -1;
  std::string verdict;  // "accepted" or the message
};

// In the child, as text.
std::string open_and_measure(const std::string& path) {
  reset_peak();
  const std::uint64_t before = peak_bytes();
  const auto start = std::chrono::steady_clock::now();
  std::string verdict = "accepted";
  try {
    static_cast<void>(discover(path));
  } catch (const Error& error) {
    verdict = error.what();
  }
  const auto time = std::chrono::steady_clock::now() - start;
  return fmt::format("{} {} {}", peak_bytes() - before,
                     std::chrono::duration_cast<std::chrono::milliseconds>(time).count(), verdict);
}

Outcome outcome_of(const std::string& path) {
  Outcome outcome;
  std::istringstream text(fakes::run_in_child([&] { return open_and_measure(path); }));
  text >> outcome.growth_bytes >> outcome.milliseconds >> std::ws;
  std::getline(text, outcome.verdict);
  return outcome;
}

class HeaderOf99MB : public testing::TestWithParam<Bomb> {};

TEST_P(HeaderOf99MB, IsHeldToItsMemory) {
  const Bomb& bomb = GetParam();
  const fakes::TempFolder folder;
  const std::string path =
      folder.write("bomb.safetensors", fakes::safetensors_file(header_of(bomb), bomb.data_bytes));
  const Outcome outcome = outcome_of(path);
  const bool is_expected = bomb.expected.empty() ? outcome.verdict == "accepted"
                                                 : outcome.verdict.find(bomb.expected) != std::string::npos;
  EXPECT_TRUE(is_expected) << outcome.verdict;
  EXPECT_GT(outcome.growth_bytes, header_bytes) << "the peak was not measured";
  EXPECT_LE(outcome.growth_bytes, bomb.peak_bytes_max * peak_factor);
  std::cout << fmt::format("\ncount: resource bombs 1 wrong {} peak_mb {} milliseconds {} name {}\n",
                           HasFailure() ? 1 : 0, outcome.growth_bytes / megabyte, outcome.milliseconds,
                           bomb.name);
}

std::function<std::string(std::size_t)> same(std::string text) {
  while (text.size() < 4096) text += text;
  return [text = std::move(text)](std::size_t) { return text; };
}

std::string tensor(const std::string& name, const std::string& shape) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,0]}},)", name, shape);
}

std::string zeros(std::size_t count) {
  std::string text = "0";
  while (--count > 0) text += ",0";
  return text;
}

const std::string last = R"("last":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";

const Bomb bombs[] = {
    {"rank", 300 * megabyte, "DiscoverOptions::rank_max", R"({"a":{"dtype":"U8","shape":[1)", same(",1"),
     R"(],"data_offsets":[0,1]}})", 1},
    {"ignored_numbers", 300 * megabyte, "", R"({"a":{"x":[1)", same(",1"),
     R"(],"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
    {"ignored_fields", 300 * megabyte, "", R"({"a":{)", same(R"("x":0,)"),
     R"("dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
    {"blanks", 300 * megabyte, "", "{" + last, same(" "), "", 1},
    {"nesting", 300 * megabyte, "DiscoverOptions::nesting_max", R"({"a":{"x":)", same("["), "", 1},
    {"tensors", 400 * megabyte, "", "{", [](std::size_t i) { return tensor(fmt::format("{:x}", i), "0"); },
     last, 1},
    {"dimensions", 300 * megabyte, "DiscoverOptions::dimension_count_max", "{",
     [](std::size_t i) { return tensor(fmt::format("{:x}", i), zeros(64)); }, last, 1},
    {"long_names", 400 * megabyte, "", "{",
     [](std::size_t i) { return tensor(std::string((1ULL << 20) - 2, 'x') + fmt::format("{:02}", i), "0"); },
     last, 1},
    {"name", 300 * megabyte, "DiscoverOptions::name_bytes_max", R"({"\u0061)", same("a"),
     R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
    {"metadata_entries", 300 * megabyte, "DiscoverOptions::metadata_count_max", R"({"__metadata__":{)",
     [](std::size_t i) { return fmt::format(R"("{:x}":"",)", i); }, R"("last":""}})"},
    {"metadata_value", 400 * megabyte, "", R"({"__metadata__":{"a":"\u0061)", same("a"), R"("}})"},
};

INSTANTIATE_TEST_SUITE_P(Bombs, HeaderOf99MB, testing::ValuesIn(bombs),
                         [](const testing::TestParamInfo<Bomb>& bomb) { return bomb.param.name; });

}  // namespace

}  // namespace inrush
