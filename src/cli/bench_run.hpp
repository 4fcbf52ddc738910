// What `inrush bench` was asked to do, and the doing. One thread.
#pragma once

#include <inrush/checkpoint.hpp>

#include "cli/bench_result.hpp"
#include "cli/progress_display.hpp"

#include <cstdint>
#include <string>

namespace inrush::engine {

// As spelled on the command line, where the spelling is still to be understood.
struct BenchArguments {
  std::string path;
  std::string device = "auto";
  std::string state = "both";
  std::string seconds;
  std::uint32_t load_count = 3;
  ProgressMode progress = ProgressMode::none;
  DiscoverOptions discover;
};

// Measures limits, then loads, and compares the bytes of each. Throws Error (corrupt_checkpoint where bytes
// differ) or Interrupted.
[[nodiscard]] BenchResult run_bench(const BenchArguments& arguments);

}  // namespace inrush::engine
