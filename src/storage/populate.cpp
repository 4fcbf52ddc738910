#include "storage/populate.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#ifndef MADV_POPULATE_READ  // Linux 5.14; absent from older headers
#define MADV_POPULATE_READ 22
#endif

namespace inrush::engine {

namespace {

// Windows of this size ran at the disk's speed; a larger one only keeps the others waiting longer.
constexpr std::uint64_t window_bytes_max = 16ULL << 20;

// False where the system refuses to map or to populate (ENODEV on some network mounts, EINVAL before
// Linux 5.14, EFAULT past the end of a file that was cut meanwhile). Populating returns errors; a touch by
// the CPU would end the process with SIGBUS.
bool populate_window(int fd, ByteRange window) noexcept {
  void* const mapping =
      ::mmap(nullptr, window.size_bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(window.offset));
  if (mapping == MAP_FAILED) return false;
  const bool populated = ::madvise(mapping, window.size_bytes, MADV_POPULATE_READ) == 0;
  ::munmap(mapping, window.size_bytes);
  return populated;
}

}  // namespace

bool PopulatorTurn::begin() {
  std::unique_lock lock(mutex_);
  while (running_) {
    const Clock::time_point stuck_at = running_since_ + patience_;
    if (Clock::now() >= stuck_at) return false;
    ended_.wait_until(lock, stuck_at);
  }
  running_ = true;
  running_since_ = Clock::now();
  return true;
}

void PopulatorTurn::end() {
  const std::lock_guard lock(mutex_);
  running_ = false;
  ended_.notify_one();
}

bool Populator::populate(int fd, ByteRange range) noexcept {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return false;
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Pages past the end cannot be populated, and one of them would fail the whole window.
  const std::uint64_t end = std::min(range.end(), static_cast<std::uint64_t>(status.st_size));
  std::uint64_t offset = round_down(range.offset, page_bytes);
  while (offset < end) {
    const std::uint64_t size_bytes = std::min(window_bytes_max, end - offset);
    if (!turn_.begin()) return false;
    const bool populated = populate_window(fd, {offset, size_bytes});
    turn_.end();
    if (!populated) return false;
    offset += size_bytes;
  }
  return true;
}

}  // namespace inrush::engine
