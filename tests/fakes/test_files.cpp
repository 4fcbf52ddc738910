#include "fakes/test_files.hpp"

#include "fakes/safetensors_text.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>

#ifdef __SANITIZE_ADDRESS__
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // g++ 12 ships no header for it
#endif

namespace inrush::fakes {

namespace fs = std::filesystem;

namespace {

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("write " + path);
}

std::uint64_t size_of(const TestTensor& tensor) {
  std::uint64_t bits = dtype_bits(tensor.dtype);
  for (const std::uint64_t dimension : tensor.shape) bits *= dimension;
  return bits / 8;
}

std::string random_bytes(std::uint64_t size, std::mt19937_64& random) {
  std::string bytes(size + 8, '\0');
  for (std::uint64_t i = 0; i < size; i += 8) {
    const std::uint64_t word = random();
    bytes.replace(i, 8, reinterpret_cast<const char*>(&word), 8);
  }
  bytes.resize(size);
  return bytes;
}

std::string header_entry(const TestTensor& tensor, std::uint64_t offset) {
  std::string entry =
      "\"" + tensor.name + "\":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) + "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    entry += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
  return entry + "],\"data_offsets\":[" + std::to_string(offset) + "," +
         std::to_string(offset + size_of(tensor)) + "]}";
}

}  // namespace

TestBytes write_safetensors(const std::string& path, const std::vector<TestTensor>& tensors,
                            std::uint64_t seed, std::uint32_t header_padding) {
  std::mt19937_64 random(seed);
  TestBytes contents;
  std::string header = "{";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header += (data.empty() && header.size() == 1 ? "" : ",") + header_entry(tensor, data.size());
    contents[tensor.name] = random_bytes(size_of(tensor), random);
    data += contents[tensor.name];
  }
  header += "}" + std::string(header_padding, ' ');
  write_text(path, length_prefix(header.size()) + header + data);
  return contents;
}

std::vector<TestTensor> mixed_tensors(std::uint64_t total_bytes, std::uint64_t seed) {
  static constexpr DType dtypes[] = {DType::u8,  DType::bf16,    DType::f32,
                                     DType::f64, DType::f8_e4m3, DType::i8};
  std::mt19937_64 random(seed);
  std::vector<TestTensor> tensors;
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; bytes < total_bytes; ++i) {
    TestTensor tensor{.name = "layer." + std::to_string(i), .dtype = dtypes[random() % 6], .shape = {}};
    const std::uint64_t kind = random() % 10;
    if (kind == 0) tensor.shape = {0, 7};
    if (kind > 1)
      tensor.shape = {1 + random() % 40, 1 + random() % (total_bytes / 400 + 2)};  // kind 1: a scalar
    bytes += size_of(tensor);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

ProcessCounts process_counts() {
  const auto entries = [](const char* folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  };
  return {entries("/proc/self/fd"), entries("/proc/self/task")};
}

bool has_thread(std::string_view name) {
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task")) {
    std::string found;
    std::getline(std::ifstream(task.path() / "comm"), found);
    if (found == name) return true;
  }
  return false;
}

bool returns_to(const ProcessCounts& counts) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    const ProcessCounts now = process_counts();
    if (now.descriptors <= counts.descriptors && now.threads <= counts.threads) return true;
    std::this_thread::yield();
  }
  return false;
}

std::uint64_t held_bytes() {
#ifdef __SANITIZE_ADDRESS__
  return __sanitizer_get_current_allocated_bytes();
#else
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
#endif
}

}  // namespace inrush::fakes
