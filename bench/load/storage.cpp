// What storage gives to O_DIRECT reads: size x depth, by the queue that loads use (io_uring where the machine
// has it). The page cache is neither used nor filled.
//
//   inrush_bench_storage SECONDS_A_POINT FILE...
//
// Prints one JSON line a point: {"size": 4194304, "depth": 16, "gb_per_s": 2.113, "io_uring": true}.
#include <inrush/error.hpp>

#include "loader/limits.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace inrush;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr std::array<std::uint64_t, 5> sizes = {256ULL << 10, mib, 4 * mib, 8 * mib, 16 * mib};
constexpr std::array<std::uint32_t, 5> depths = {1, 4, 16, 32, 64};
constexpr std::uint64_t in_flight_bytes_max = 512 * mib;

void measure(engine::ReadPlaces& places, const engine::ReadShape& shape,
             std::chrono::duration<double> duration) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(duration);
  const engine::ReadRate rate =
      engine::measure_reads(places, engine::ReadMode::direct, shape, {.duration = nanoseconds});
  fmt::print("{{\"size\": {}, \"depth\": {}, \"gb_per_s\": {:.3f}, \"io_uring\": {}}}\n", shape.size_bytes,
             shape.depth, rate.bytes_per_second / 1e9, rate.has_io_uring);
}

}  // namespace

int main(int count, char** words) try {
  if (count < 3)
    throw Error(ErrorCode::invalid_request, "usage: inrush_bench_storage SECONDS_A_POINT FILE...");
  const engine::LocalStore store;
  std::vector<std::shared_ptr<const engine::File>> files;
  for (int i = 2; i < count; ++i) {
    files.push_back(store.open(words[i]));
    if (files.back()->direct_alignment_bytes() == 0 || files.back()->status().size_bytes < sizes.back()) {
      throw Error(ErrorCode::environment_unfit, std::string(words[i]) + ": less than 16 MiB, or no O_DIRECT");
    }
  }
  engine::ReadPlaces places = engine::places_of(files);
  for (const std::uint64_t size_bytes : sizes) {
    for (const std::uint32_t depth : depths) {
      if (size_bytes * depth > in_flight_bytes_max) continue;
      measure(places, {.size_bytes = size_bytes, .depth = depth, .reader_count = depth},
              std::chrono::duration<double>(std::stod(words[1])));
    }
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "inrush_bench_storage: {}\n", error.what());
  return 1;
}
