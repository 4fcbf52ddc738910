// cuFileRead and cuFileWrite: many at once, each through a bounce buffer of its own.
#include "fakes/libcufile/fake_library.hpp"
#include "fakes/libcufile/target_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace inrush::fakes::cufile {

namespace {

constexpr std::uint64_t bounce_bytes_max = 1 << 20;
constexpr std::uint64_t corrupt_stride = 64;

struct Request {
  std::string_view entry;
  engine::CufileHandle handle = nullptr;
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  off_t file_offset = 0;
  off_t memory_offset = 0;

  [[nodiscard]] bool is_read() const { return entry == "cuFileRead"; }
  [[nodiscard]] MemoryRange memory() const { return {base + memory_offset, bytes}; }
  [[nodiscard]] bool is_aligned() const {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const auto all =
        address | bytes | static_cast<std::uint64_t>(file_offset) | static_cast<std::uint64_t>(memory_offset);
    return all % block_bytes == 0;
  }
};

struct Outcome {
  std::uint64_t moved_bytes = 0;
  int error = 0;
};

class Bounce {
 public:
  explicit Bounce(std::uint64_t bytes)
      : bytes_(bytes),
        start_(static_cast<std::byte*>(std::aligned_alloc(block_bytes, std::max(bytes, block_bytes)))) {
    if (start_ == nullptr) throw std::bad_alloc();
  }
  ~Bounce() { std::free(start_); }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  [[nodiscard]] std::byte* start() const { return start_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const std::uint64_t bytes_;
  std::byte* const start_;
};

std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + block_bytes - 1) / block_bytes * block_bytes;
}

// A read or write under way: what it uses is marked as used.
class Running {
 public:
  // With the mutex held.
  Running(Library& all, std::shared_ptr<RegisteredFile> file, std::shared_ptr<RegisteredMemory> memory)
      : all_(all), file_(std::move(file)), memory_(std::move(memory)) {
    ++all_.running;
    ++file_->running;
    if (memory_ != nullptr) ++memory_->running;
  }
  ~Running() {
    const Lock lock(all_.mutex);
    --all_.running;
    --file_->running;
    if (memory_ != nullptr) --memory_->running;
    all_.changed.notify_all();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  [[nodiscard]] const RegisteredFile& file() const { return *file_; }

 private:
  Library& all_;
  const std::shared_ptr<RegisteredFile> file_;
  const std::shared_ptr<RegisteredMemory> memory_;
};

// Whole blocks at whole offsets: O_DIRECT takes any request so.
Outcome read_file(int descriptor, const Request& request, const Fate& fate, Reach reach) {
  const auto first = static_cast<std::uint64_t>(request.file_offset);
  const Bounce bounce(std::min(bounce_bytes_max, rounded_up(first % block_bytes + fate.bytes)));
  Outcome outcome;
  while (outcome.moved_bytes < fate.bytes) {
    const std::uint64_t offset = first + outcome.moved_bytes;
    const std::uint64_t lead = offset % block_bytes;
    const std::uint64_t left = fate.bytes - outcome.moved_bytes;
    const std::uint64_t window = std::min(bounce.bytes(), rounded_up(lead + left));
    const ssize_t count = ::pread(descriptor, bounce.start(), window, static_cast<off_t>(offset - lead));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {outcome.moved_bytes, errno};
    const auto got = static_cast<std::uint64_t>(count);
    if (got <= lead) break;  // the end of the file
    const std::uint64_t part = std::min(got - lead, left);
    std::byte* const source = bounce.start() + lead;
    for (std::uint64_t at = 0; fate.is_corrupt && at < part; at += corrupt_stride)
      source[at] ^= std::byte{0xFF};
    if (!store({request.memory().start + outcome.moved_bytes, part}, source, reach))
      return {outcome.moved_bytes, code::pointer_invalid};
    outcome.moved_bytes += part;
  }
  return outcome;
}

// By a buffered description of the file where blocks would have to be whole.
Outcome write_file(const RegisteredFile& file, const Request& request, const Fate& fate, Reach reach) {
  const bool is_reopened = file.is_direct && !request.is_aligned();
  const std::string link = "/proc/self/fd/" + std::to_string(file.descriptor);
  const int descriptor = is_reopened ? ::open(link.c_str(), O_WRONLY | O_CLOEXEC) : file.descriptor;
  if (descriptor < 0) return {0, errno};
  const Bounce bounce(std::min(bounce_bytes_max, rounded_up(fate.bytes)));
  Outcome outcome;
  while (outcome.moved_bytes < fate.bytes && outcome.error == 0) {
    const std::uint64_t part = std::min(bounce.bytes(), fate.bytes - outcome.moved_bytes);
    if (!fetch(bounce.start(), {request.memory().start + outcome.moved_bytes, part}, reach)) {
      outcome.error = code::pointer_invalid;
      break;
    }
    const ssize_t count = ::pwrite(descriptor, bounce.start(), part,
                                   request.file_offset + static_cast<off_t>(outcome.moved_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) outcome.error = errno;
    outcome.moved_bytes += count > 0 ? static_cast<std::uint64_t>(count) : 0;
  }
  if (is_reopened) ::close(descriptor);
  return outcome;
}

// The same numbers for reads and writes, one after the other in the real layout.
struct Columns {
  std::uint64_t& all;
  std::uint64_t& p2p;
  std::uint64_t& nvfs;
  std::uint64_t& posix;
  std::uint64_t& unaligned;
  std::uint64_t& bytes;
  std::uint64_t& failed;
};

Columns columns_of(engine::CufileGpuCounters& gpu, bool is_read) {
  if (is_read)
    return {gpu.reads,           gpu.p2p_reads,  gpu.nvfs_reads,  gpu.posix_reads,
            gpu.unaligned_reads, gpu.read_bytes, gpu.failed_reads};
  return {gpu.writes,           gpu.p2p_writes,  gpu.nvfs_writes,  gpu.posix_writes,
          gpu.unaligned_writes, gpu.write_bytes, gpu.failed_writes};
}

void count(const Request& request, const RegisteredFile& file, const Outcome& outcome) {
  Library& all = library();
  const Lock lock(all.mutex);
  const CufilePersonality personality = all.steering.personality;
  if (!all.driver.is_counting || all.driver.stats_level < 3 || personality == CufilePersonality::mute) return;
  Columns columns = columns_of(all.driver.counters, request.is_read());
  if (outcome.error != 0) {
    ++columns.failed;
    return;
  }
  ++columns.all;
  columns.bytes += outcome.moved_bytes;
  if (!request.is_aligned()) ++columns.unaligned;
  const bool is_direct = personality == CufilePersonality::liar || (file.is_direct && all.can_go_direct());
  ++(!is_direct ? columns.posix : personality == CufilePersonality::nvfs ? columns.nvfs : columns.p2p);
}

// 0, or what the request itself is answered with. With the mutex held.
int check(Library& all, const Request& request, Reach reach) {
  if (const int answer = all.require_open()) return answer;
  if (!all.driver.files.contains(request.handle))
    return all.misuse(request.entry, "with an unknown handle", code::handle_not_registered);
  if (request.file_offset < 0 || request.memory_offset < 0) return code::invalid_value;
  const auto known = all.driver.buffers.find(request.base);
  if (known != all.driver.buffers.end()) {
    const auto offset = static_cast<std::uint64_t>(request.memory_offset);
    if (offset > known->second->bytes || request.bytes > known->second->bytes - offset)
      return code::mapping_range;
  }
  if (reach == Reach::beyond) return all.misuse(request.entry, "beyond its memory", code::pointer_range);
  if (reach == Reach::none) return all.misuse(request.entry, "of no memory", code::pointer_invalid);
  return 0;
}

struct Answer {
  ssize_t result = -1;
  int error = 0;
};

Answer perform(const Request& request) {
  Library& all = library();
  if (const int error = enter(request.entry)) return {-1, error};
  const Reach reach = reach_of(request.memory());
  Lock lock(all.mutex);
  const Fate fate = fate_of(all, request.entry, request.bytes);
  if (const int error = check(all, request, reach)) return {-1, error};
  const auto memory = all.driver.buffers.find(request.base);
  const Running running(all, all.driver.files.at(request.handle),
                        memory != all.driver.buffers.end() ? memory->second : nullptr);
  all.changed.wait(lock, [&] { return !all.steering.holds_reads || !request.is_read(); });
  lock.unlock();
  if (fate.delay.count() > 0) std::this_thread::sleep_for(fate.delay);
  if (request.bytes == 0) return {0, 0};
  Outcome outcome = {0, fate.error};
  if (fate.error == 0) {
    outcome = request.is_read() ? read_file(running.file().descriptor, request, fate, reach)
                                : write_file(running.file(), request, fate, reach);
  }
  count(request, running.file(), outcome);
  if (outcome.error != 0) {
    const bool is_negative = fate.failure == Effect::negative_code;
    return {is_negative ? -outcome.error : -1, is_negative ? 0 : outcome.error};
  }
  return {static_cast<ssize_t>(fate.is_overlong ? request.bytes + block_bytes : outcome.moved_bytes), 0};
}

// errno last, when nothing of ours can change it any more.
ssize_t transfer(const Request& request) {
  const Answer answer = perform(request);
  if (answer.error != 0) errno = answer.error;
  return answer.result;
}

}  // namespace

FAKE_CUFILE_EXPORT ssize_t cuFileRead(engine::CufileHandle handle, void* memory, std::size_t bytes,
                                      off_t file_offset, off_t memory_offset) {
  return transfer({"cuFileRead", handle, static_cast<std::byte*>(memory), bytes, file_offset, memory_offset});
}

FAKE_CUFILE_EXPORT ssize_t cuFileWrite(engine::CufileHandle handle, const void* memory, std::size_t bytes,
                                       off_t file_offset, off_t memory_offset) {
  auto* const start = static_cast<std::byte*>(const_cast<void*>(memory));
  return transfer({"cuFileWrite", handle, start, bytes, file_offset, memory_offset});
}

}  // namespace inrush::fakes::cufile
