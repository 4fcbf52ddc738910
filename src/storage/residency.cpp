#include "storage/residency.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace inrush::engine {

namespace {

// Linux 6.5; one number on all architectures, and no name in older headers.
constexpr long cachestat_call = 451;

// First, last and pages in between: a read-ahead window or an evicted stretch is far larger than a sixteenth
// of a piece.
constexpr std::uint64_t sample_count_max = 16;

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

// The layouts of include/uapi/linux/mman.h, which older headers lack.
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t size_bytes;
};
struct Cachestat {
  std::uint64_t cached_count;
  std::uint64_t dirty_count;
  std::uint64_t writeback_count;
  std::uint64_t evicted_count;
  std::uint64_t recently_evicted_count;
};

Residency by_cachestat(int fd, ByteRange range) {
  const CachestatRange asked{range.offset, range.size_bytes};
  Cachestat told = {};
  if (::syscall(cachestat_call, fd, &asked, &told, 0U) != 0) return Residency::unknown;
  const std::uint64_t page_count =
      (round_up(range.end(), page_bytes()) - round_down(range.offset, page_bytes())) / page_bytes();
  return told.cached_count >= page_count ? Residency::resident : Residency::absent;
}

// One byte of the page at `offset`.
Residency nowait_page(int fd, std::uint64_t offset) {
  char byte = 0;
  iovec target{&byte, 1};
  const ssize_t result = ::preadv2(fd, &target, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  if (result == 1) return Residency::resident;
  return result < 0 && errno == EAGAIN ? Residency::absent : Residency::unknown;
}

// For files of others, mincore reports every page as resident (since Linux 5.2).
bool mincore_is_honest(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return false;
  return status.st_uid == ::geteuid() || ::faccessat(fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) == 0;
}

Residency mincore_page(int fd, std::uint64_t offset) {
  const std::uint64_t size_bytes = page_bytes();
  void* const page = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd,
                            static_cast<off_t>(round_down(offset, size_bytes)));
  if (page == MAP_FAILED) return Residency::unknown;
  unsigned char state = 0;
  const bool told = ::mincore(page, size_bytes, &state) == 0;
  ::munmap(page, size_bytes);
  if (!told) return Residency::unknown;
  return (state & 1) != 0 ? Residency::resident : Residency::absent;
}

// Resident where every sampled page is.
Residency by_samples(int fd, ByteRange range, Residency (*ask)(int, std::uint64_t)) {
  const std::uint64_t last_offset = range.end() - 1;
  const std::uint64_t step = round_up(range.size_bytes / sample_count_max + 1, page_bytes());
  for (std::uint64_t offset = range.offset; offset < last_offset; offset += step) {
    const Residency page = ask(fd, offset);
    if (page != Residency::resident) return page;
  }
  return ask(fd, last_offset);
}

}  // namespace

Residency residency(int fd, ByteRange range, ResidencyWay way) noexcept {
  if (range.size_bytes == 0) return Residency::resident;
  switch (way) {
    case ResidencyWay::cachestat:
      return by_cachestat(fd, range);
    case ResidencyWay::nowait:
      return by_samples(fd, range, nowait_page);
    case ResidencyWay::mincore:
      return mincore_is_honest(fd) ? by_samples(fd, range, mincore_page) : Residency::unknown;
  }
  return Residency::unknown;
}

bool is_range_resident(int fd, ByteRange range) noexcept {
  for (const ResidencyWay way : {ResidencyWay::cachestat, ResidencyWay::nowait, ResidencyWay::mincore}) {
    const Residency answer = residency(fd, range, way);
    if (answer != Residency::unknown) return answer == Residency::resident;
  }
  return false;
}

std::uint64_t read_resident(int fd, std::uint64_t offset, std::span<std::byte> target) noexcept {
  iovec part{target.data(), target.size()};
  const ssize_t moved = ::preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  // Linux 5.9 and 5.10 may say 0 before the end of the file (readv(2), BUGS).
  if (moved <= 0) return 0;
  return static_cast<std::uint64_t>(moved);
}

}  // namespace inrush::engine
