// Measures warm loads beside the pinned host-to-device limit of the same minute, and verifies every byte
// after the clock stopped.
//
//   inrush_bench_load DEVICE FOLDER_A [FOLDER_B] [REPEATS]
//
// Prints one JSON line a measurement. "first": the context lives, the Loader is new, no ring and no file was
// touched by it before. "later": the same Loader, the other folder, the first one's tensors dropped before.
#include <inrush/loader.hpp>

#include "gpu/cuda_driver.hpp"
#include "loader/limits.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace inrush;
using engine::Clock;
using engine::seconds_between;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr unsigned verify_thread_count = 8;

// What no load can exceed.
double measure_pinned_limit(engine::Gpu& gpu) {
  const Limit limit = engine::measure_pinned(gpu, {.duration = std::chrono::milliseconds(500)});
  if (!limit.reason.empty()) throw Error(ErrorCode::device_failed, limit.reason);
  return limit.bytes_per_second;
}

// Brings the files into the page cache by plain reads.
void read_all(const Checkpoint& checkpoint) {
  const engine::LocalStore store;
  std::vector<std::thread> threads;
  for (const CheckpointFile& file : checkpoint.files()) {
    threads.emplace_back([&store, path = file.path] {
      const std::shared_ptr<engine::File> opened = store.open(path);
      std::vector<std::byte> buffer(16 * mib);
      for (std::uint64_t offset = 0; offset < opened->status().size_bytes; offset += buffer.size()) {
        static_cast<void>(opened->read(engine::ReadMode::buffered, offset, buffer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool equals_file(Loader& loader, const Checkpoint& checkpoint, const Tensor& tensor) {
  const TensorInfo info = checkpoint.tensor(*checkpoint.find(tensor.name));
  const std::shared_ptr<engine::File> file = engine::LocalStore().open(checkpoint.files()[info.file].path);
  std::vector<std::byte> expected(std::min<std::uint64_t>(info.size_bytes, 32 * mib));
  std::vector<std::byte> loaded(expected.size());
  for (std::uint64_t offset = 0; offset < info.size_bytes; offset += expected.size()) {
    const std::uint64_t size = std::min<std::uint64_t>(expected.size(), info.size_bytes - offset);
    engine::read_fully(*file, info.offset + offset, std::span(expected).first(size));
    loader.copy_to_host(tensor, offset, std::span(loaded).first(size));
    if (std::memcmp(expected.data(), loaded.data(), size) != 0) return false;
  }
  return true;
}

std::uint64_t count_wrong(Loader& loader, const Checkpoint& checkpoint, const std::vector<Tensor>& tensors) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::uint64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < verify_thread_count; ++i) {
    threads.emplace_back([&] {
      for (std::size_t index = next++; index < tensors.size(); index = next++) {
        if (!equals_file(loader, checkpoint, tensors[index])) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong;
}

struct Measurement {
  std::string what;
  double seconds = 0;
  std::uint64_t wrong_count = 0;
  std::size_t tensor_count = 0;
  Report report;
};

Measurement measure(Loader& loader, const Checkpoint& checkpoint, const Device& device, std::string what) {
  std::vector<Tensor> tensors;
  tensors.reserve(checkpoint.tensor_count());
  const Clock::time_point start = Clock::now();
  const std::unique_ptr<Load> load = loader.start(checkpoint, {.device = device});
  while (std::optional<Tensor> tensor = load->next()) tensors.push_back(std::move(*tensor));
  const double seconds = seconds_between(start, Clock::now());
  return {std::move(what), seconds, count_wrong(loader, checkpoint, tensors), tensors.size(), load->report()};
}

void print(const Measurement& measurement, double limit) {
  const double rate = static_cast<double>(measurement.report.loaded_bytes) / measurement.seconds;
  fmt::print(
      "{{\"what\":\"{}\",\"seconds\":{:.4f},\"gbps\":{:.2f},\"score\":{:.3f},\"tensors\":{},\"wrong_"
      "tensors\":{},\"report\":{}}}\n",
      measurement.what, measurement.seconds, rate / 1e9, limit > 0 ? rate / limit : 0.0,
      measurement.tensor_count, measurement.wrong_count, report_to_json(measurement.report));
  std::fflush(stdout);
}

int run(int argument_count, char** arguments) {
  if (argument_count < 3) {
    fmt::print(stderr, "usage: {} DEVICE FOLDER_A [FOLDER_B] [REPEATS]\n", arguments[0]);
    return 2;
  }
  const Device device = parse_device(arguments[1]);
  std::vector<Checkpoint> checkpoints = {discover(arguments[2])};
  if (argument_count > 3) checkpoints.push_back(discover(arguments[3]));
  const int repeats = argument_count > 4 ? std::stoi(arguments[4]) : 3;

  std::shared_ptr<engine::Gpu> gpu;  // keeps the context alive
  double limit = 0;
  if (device.kind == DeviceKind::cuda) {
    gpu = engine::open_cuda_gpu(engine::CudaDriver::open("libcuda.so.1"), device);
    limit = measure_pinned_limit(*gpu);
    fmt::print("{{\"what\":\"pinned_limit\",\"gbps\":{:.2f}}}\n", limit / 1e9);
  }
  std::uint64_t wrong_count = 0;
  for (int trial = 0; trial < repeats; ++trial) {
    Loader loader(options_from_environment());
    for (std::size_t i = 0; i <= checkpoints.size(); ++i) {
      // Again, in case something was evicted; and the driver gets time to clear what the last load freed,
      // which takes 4 % of the speed of a load that starts at once.
      read_all(checkpoints[i % checkpoints.size()]);
      const Measurement measurement =
          measure(loader, checkpoints[i % checkpoints.size()], device, i == 0 ? "first" : "later");
      print(measurement, limit);
      wrong_count += measurement.wrong_count;
    }
  }
  if (gpu != nullptr)
    fmt::print("{{\"what\":\"pinned_limit\",\"gbps\":{:.2f}}}\n", measure_pinned_limit(*gpu) / 1e9);
  fmt::print("{}\n", wrong_count == 0 ? "every byte equal" : "WRONG BYTES");
  return wrong_count == 0 ? 0 : 5;
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    return run(argument_count, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "inrush_bench_load: {}\n", error.what());
    return 1;
  }
}
