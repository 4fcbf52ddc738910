// What `inrush bench` found, and how it is printed: tables for people, and JSON. Pure functions.
#pragma once

#include <inrush/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace inrush::engine {

// What the page cache was made to hold before a load; BenchLoad::resident_share is what it held.
enum class BenchState : std::uint8_t { cold, warm };

// One load whose bytes were compared with the files after the clock had stopped.
struct BenchLoad {
  BenchState state = BenchState::cold;
  std::string which;          // "first" or "later", of one Loader
  double seconds = 0;         // until the caller holds the last tensor
  double cpu_seconds = 0;     // of all threads
  double resident_share = 0;  // of its bytes, in the page cache just before it: 0 to 1
  Report report;
};

struct BenchResult {
  std::string path;
  Device device;
  std::uint32_t cpu_count = 1;
  std::size_t file_count = 0;
  std::size_t tensor_count = 0;
  std::uint64_t size_bytes = 0;
  Limits limits;
  std::vector<BenchLoad> loads;
  std::vector<std::string> notes;
};

// The limit that binds a load.
struct BenchBound {
  std::string name;  // "storage", "page cache", "pinned"; empty where a limit that it takes was not measured
  double bytes_per_second = 0;
};

// The least of what its bytes came through: storage, or the page cache where it held most of them, unless the
// device read that by itself (windows); and pinned copies to a GPU.
[[nodiscard]] BenchBound bound_of(const Limits& limits, const BenchLoad& load);

[[nodiscard]] std::string bench_text(const BenchResult& result);
// One document, with a line break at the end.
[[nodiscard]] std::string bench_json(const BenchResult& result);

}  // namespace inrush::engine
