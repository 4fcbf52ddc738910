// Time and memory of discover() on large headers: a million tensors, and the two files that cost the
// reference 16 s and 2 GB. Usage: inrush_bench_header [FOLDER FOR THE FILES]. Each file is read in a process
// of its own, so that peaks do not mix.
#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr int million = 1'000'000;
constexpr int bomb_count = 49'900'000;

void write_file(const std::string& path, const std::string& header, std::uint64_t data_bytes) {
  std::ofstream file(path, std::ios::binary);
  std::uint64_t length = header.size();
  for (int i = 0; i < 8; ++i, length >>= 8U) file.put(static_cast<char>(length & 0xFFU));
  file << header;
  file.close();
  std::filesystem::resize_file(path, 8 + header.size() + data_bytes);
}

void write_million(const std::string& path) {
  std::string header = "{";
  for (int i = 0; i < million; ++i) {
    const std::string number = std::to_string(million + i);
    header += (i == 0 ? "\"layers." : ",\"layers.") + number +
              R"(.weig":{"dtype":"F16","shape":[8],"data_offsets":[)" + std::to_string(16LL * i) + "," +
              std::to_string(16LL * i + 16) + "]}";
  }
  write_file(path, header + "}", 16ULL * million);
}

void write_bomb(const std::string& path, const std::string& before, const std::string& after) {
  std::string header = before + "1";
  for (int i = 1; i < bomb_count; ++i) header += ",1";
  write_file(path, header + after, 1);
}

struct Usage {
  std::uint64_t peak_bytes = 0;
  double cpu_seconds = 0;  // tells the work from the wait for a busy machine
};

Usage usage_now() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024,
          .cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

// Of a safetensors file: its first 8 bytes, little-endian.
std::uint64_t header_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t length = 0;
  for (unsigned i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(file.get() & 0xFF) << (8U * i);
  return length;
}

void measure(const std::string& path) {
  const Usage before = usage_now();
  const auto start = std::chrono::steady_clock::now();
  std::string outcome;
  try {
    outcome = std::to_string(inrush::discover(path).tensor_count()) + " tensors";
  } catch (const inrush::Error& error) {
    outcome = std::string(error.what()).substr(path.size());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const Usage after = usage_now();
  const auto growth_bytes = static_cast<double>(after.peak_bytes - before.peak_bytes);
  const auto size_bytes = static_cast<double>(header_bytes(path));
  std::printf("%.3f s (%.3f s of CPU)  peak grew by %.0f MB  header %.0f MB  ratio %.2f  %s\n",
              seconds.count(), after.cpu_seconds - before.cpu_seconds, growth_bytes / 1e6, size_bytes / 1e6,
              growth_bytes / size_bytes, outcome.c_str());
}

// A forked child starts with a peak of its own.
void measure_apart(const std::string& path) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    measure(path);
    std::fflush(stdout);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (argc > 1 ? std::string(argv[1]) : std::filesystem::temp_directory_path().string()) +
                       "/inrush_header_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  const std::string bomb_tail = R"(],"dtype":"U8","data_offsets":[0,1])";
  write_million(folder + "/million.safetensors");
  write_bomb(folder + "/rank.safetensors", R"({"a":{"shape":[)", bomb_tail + "}}");
  write_bomb(folder + "/field.safetensors", R"({"a":{"extra":[)", bomb_tail + R"(,"shape":[1]}})");
  for (const char* name : {"/million.safetensors", "/rank.safetensors", "/field.safetensors"})
    measure_apart(folder + name);
  std::filesystem::remove_all(folder);
}
