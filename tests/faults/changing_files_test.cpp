// Somebody writes to the files while they are read: what is handed out is what was there at the start, or the
// load ends with an error, and what was handed out before is called suspect.
#include "faults/fault_fixture.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

namespace inrush::faults {
namespace {

enum class Change { shrink, grow, replace, rewrite };
constexpr std::array<Change, 4> changes = {Change::shrink, Change::grow, Change::replace, Change::rewrite};
constexpr std::array<const char*, 4> kinds = {"file shrunk", "file grown", "file replaced", "file rewritten"};

class ChangingFileTest : public DeviceFaultTest {
 protected:
  ChangingFileTest() {
    write_model(2, 150 * kib);
    for (int i = 0; i < 2; ++i) {
      std::ifstream file(shard(i), std::ios::binary);
      originals_.at(static_cast<std::size_t>(i)) = {std::istreambuf_iterator<char>(file), {}};
    }
  }

  void restore() {
    for (int i = 0; i < 2; ++i)
      folder_.write("shard-" + std::to_string(i) + ".safetensors",
                    originals_.at(static_cast<std::size_t>(i)));
    use_model(std::move(contents_));
  }

  // `at`: where in the file, for changes that have a place.
  void change(Change how, int file, std::uint64_t at) const {
    const std::string& bytes = originals_.at(static_cast<std::size_t>(file));
    const std::string path = shard(file);
    at = 1 + at % (bytes.size() - 1);
    switch (how) {
      case Change::shrink:
        std::filesystem::resize_file(path, at);
        break;
      case Change::grow:
        std::ofstream(path, std::ios::binary | std::ios::app) << "more";
        break;
      case Change::replace: {
        const std::string other = folder_.write("other.tmp", std::string(bytes.size(), 'x'));
        std::filesystem::rename(other, path);
        break;
      }
      case Change::rewrite: {
        std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(static_cast<std::streamoff>(at));
        stream << std::string(std::min<std::size_t>(5000, bytes.size() - at), 'x');
        break;
      }
    }
  }

  FaultCase make(Change how) {
    FaultCase tried{.kind = kinds.at(static_cast<std::size_t>(how)), .number = next_number_++};
    tried.request.page_cache = tried.number % 4 < 2 ? PageCachePolicy::keep : PageCachePolicy::bypass;
    tried.rules.is_cold = tried.number % 3 == 0;
    tried.expected.codes = {ErrorCode::corrupt_checkpoint, ErrorCode::not_found, ErrorCode::storage_failed};
    tried.expected.words = {"shard-"};
    tried.expected.are_files_changed = true;
    return tried;
  }

  std::array<std::string, 2> originals_;
  std::uint64_t next_number_ = 0;
};

TEST_P(ChangingFileTest, BeforeEachRead) {
  const std::uint64_t reads = count_calls({}).reads;
  for (const Change how : changes) {
    for (std::uint64_t nth = 1; nth <= reads; ++nth) {
      for (int file = 0; file < 2; ++file) {
        FaultCase tried = make(how);
        const std::uint64_t at = tried.number * 7919;
        tried.rules.read = [=, this](const ReadCall& call) -> ReadFate {
          if (call.number != nth) return {};
          return {.before = [=, this] { change(how, file, at); }};
        };
        run(std::move(tried));
        restore();
      }
    }
  }
}

TEST_P(ChangingFileTest, AtAnyTimeByAThreadOfItsOwn) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Change how = changes.at(seed % 4);
    FaultCase tried = make(how);
    if (!is_chosen(tried.kind, tried.number)) continue;
    std::mt19937_64 random(seed);
    std::atomic<bool> go = false;
    const std::uint64_t spins = random() % 20'000;
    const std::uint64_t at = random();
    const int file = static_cast<int>(random() % 2);
    std::thread writer([&, this] {
      while (!go.load()) std::this_thread::yield();
      for (std::uint64_t i = 0; i < spins; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      change(how, file, at);
    });
    tried.is_outside = true;
    tried.arm = [&] { go.store(true); };
    tried.disarm = [&] { writer.join(); };
    run(std::move(tried));
    restore();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ChangingFileTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

}  // namespace
}  // namespace inrush::faults
