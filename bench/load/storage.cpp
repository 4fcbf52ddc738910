// What storage gives to O_DIRECT reads: size x depth, by the queue that loads use (io_uring where the machine
// has it). The page cache is neither used nor filled.
//
//   inrush_bench_storage SECONDS_A_POINT FILE...
//
// Prints one JSON line a point: {"size": 4194304, "depth": 16, "gb_per_s": 2.113, "io_uring": true}.
#include <inrush/error.hpp>

#include "base/host_pages.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace inrush;
using engine::Clock;
using engine::seconds_between;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr std::array<std::uint64_t, 5> sizes = {256ULL << 10, mib, 4 * mib, 8 * mib, 16 * mib};
constexpr std::array<std::uint32_t, 5> depths = {1, 4, 16, 32, 64};
constexpr std::uint64_t in_flight_bytes_max = 512 * mib;

using Files = std::vector<std::shared_ptr<engine::File>>;

// Whole reads of one size, one file after the other, from the start again at the end.
class Places {
 public:
  Places(const Files& files, std::uint64_t size_bytes) : files_(files), size_bytes_(size_bytes) {}

  void next(engine::ReadRequest& request) {
    while (offset_ + size_bytes_ > files_[file_]->status().size_bytes) {
      offset_ = 0;
      file_ = (file_ + 1) % files_.size();
    }
    request.file = files_[file_];
    request.offset = offset_;
    offset_ += size_bytes_;
  }

 private:
  const Files& files_;
  const std::uint64_t size_bytes_;
  std::size_t file_ = 0;
  std::uint64_t offset_ = 0;
};

struct Point {
  std::uint64_t size_bytes = 0;
  std::uint32_t depth = 0;
  std::chrono::duration<double> duration{};
};

void measure(const Files& files, const Point& point) {
  const auto pages = std::make_shared<engine::HostPages>(point.size_bytes * point.depth);
  pages->populate(0, pages->bytes().size());
  engine::LocalQueue queue({.reader_count = point.depth,
                            .ring_depth = point.depth,
                            .staging = {.bytes = pages->bytes(), .owner = pages}});
  Places places(files, point.size_bytes);
  const auto submit = [&](std::uint64_t slot) {
    engine::ReadRequest request;
    request.tag = slot;
    request.mode = engine::ReadMode::direct;
    request.target = pages->bytes().subspan(slot * point.size_bytes, point.size_bytes);
    request.target_owner = pages;
    places.next(request);
    queue.submit(std::move(request));
  };
  const Clock::time_point start = Clock::now();
  for (std::uint32_t slot = 0; slot < point.depth; ++slot) submit(slot);
  std::uint64_t moved_bytes = 0;
  std::array<engine::Completion, 64> done;
  while (queue.in_flight_count() > 0) {
    const std::size_t count = queue.wait(done, Clock::time_point::max());
    for (const engine::Completion& completion : std::span(done).first(count)) {
      if (completion.error != 0) throw Error(ErrorCode::storage_failed, std::strerror(completion.error));
      moved_bytes += completion.moved_bytes;
      if (Clock::now() - start < point.duration) submit(completion.tag);
    }
  }
  fmt::print("{{\"size\": {}, \"depth\": {}, \"gb_per_s\": {:.3f}, \"io_uring\": {}}}\n", point.size_bytes,
             point.depth, static_cast<double>(moved_bytes) / 1e9 / seconds_between(start, Clock::now()),
             queue.has_io_uring());
}

}  // namespace

int main(int count, char** words) try {
  if (count < 3)
    throw Error(ErrorCode::invalid_request, "usage: inrush_bench_storage SECONDS_A_POINT FILE...");
  const engine::LocalStore store;
  Files files;
  for (int i = 2; i < count; ++i) {
    files.push_back(store.open(words[i]));
    if (files.back()->direct_alignment_bytes() == 0 || files.back()->status().size_bytes < sizes.back()) {
      throw Error(ErrorCode::environment_unfit, std::string(words[i]) + ": less than 16 MiB, or no O_DIRECT");
    }
  }
  for (const std::uint64_t size_bytes : sizes) {
    for (const std::uint32_t depth : depths) {
      if (size_bytes * depth > in_flight_bytes_max) continue;
      measure(files, {size_bytes, depth, std::chrono::duration<double>(std::stod(words[1]))});
    }
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "inrush_bench_storage: {}\n", error.what());
  return 1;
}
