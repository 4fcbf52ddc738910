#include "storage/local_file.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "storage/residency.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace inrush::engine {

namespace {

// pread stops at 2147479552 bytes on its own; 1 GiB is a multiple of every alignment.
constexpr std::uint64_t read_bytes_max = 1ULL << 30;

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// 0: the file system offers no direct reads of this file.
std::uint32_t direct_alignment(int fd) {
  struct statx status = {};
  const bool told =
      ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0;
  if (told) return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
  // Before Linux 6.1, and on file systems that do not say: a page is enough for all.
  return static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE));
}

bool is_same_file(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  if (::fstat(a, &first) != 0 || ::fstat(b, &second) != 0) return false;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

ReadOutcome read_at(int fd, std::uint64_t offset, std::span<std::byte> target) {
  const std::uint64_t size_bytes = std::min<std::uint64_t>(target.size(), read_bytes_max);
  const ssize_t moved = ::pread(fd, target.data(), size_bytes, static_cast<off_t>(offset));
  if (moved < 0) return {0, errno};
  return {static_cast<std::uint64_t>(moved), 0};
}

}  // namespace

LocalFile::LocalFile(std::string path, UniqueFd fd, std::shared_ptr<Populator> populator)
    : path_(std::move(path)), fd_(std::move(fd)), populator_(std::move(populator)) {}

FileStatus LocalFile::status() const {
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) {
    const int error = errno;
    throw Error(ErrorCode::storage_failed, fmt::format("{}: fstat: {}", printable(path_), errno_text(error)),
                error);
  }
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

ReadOutcome LocalFile::read(ReadMode mode, std::uint64_t offset, std::span<std::byte> target) const noexcept {
  if (mode == ReadMode::direct) {
    const int fd = direct().fd.get();
    return fd < 0 ? ReadOutcome{0, EINVAL} : read_at(fd, offset, target);
  }
  // What cannot be populated the read fetches, or fails on.
  if (mode == ReadMode::populate) static_cast<void>(populate({offset, target.size()}));
  return read_at(fd_.get(), offset, target);
}

int LocalFile::descriptor(ReadMode mode) const noexcept {
  return mode == ReadMode::direct ? direct().fd.get() : fd_.get();
}

std::uint32_t LocalFile::direct_alignment_bytes() const noexcept { return direct().alignment_bytes; }

std::string LocalFile::direct_refusal() const {
  const Direct& opened = direct();
  if (opened.alignment_bytes != 0) return {};
  const std::string cause = opened.error == 0 ? std::string() : ": " + errno_text(opened.error);
  return fmt::format("{}: {}{}", printable(path_), opened.refused_step, cause);
}

bool LocalFile::is_resident(ByteRange range) const noexcept { return is_range_resident(fd_.get(), range); }

bool LocalFile::populate(ByteRange range) const noexcept { return populator_->populate(fd_.get(), range); }

const LocalFile::Direct& LocalFile::direct() const noexcept {
  std::call_once(direct_once_, [this] { direct_ = open_direct(); });
  return direct_;
}

LocalFile::Direct LocalFile::open_direct() const noexcept {
  const std::uint32_t alignment_bytes = direct_alignment(fd_.get());
  if (alignment_bytes == 0) return {{}, 0, "the file system offers no direct reads of this file (statx)", 0};
  // By descriptor and not by name: the name may lead to another file by now.
  std::array<char, 32> name = {};
  fmt::format_to_n(name.data(), name.size() - 1, "/proc/self/fd/{}", fd_.get());
  UniqueFd fd(::open(name.data(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!fd.is_open()) return {{}, 0, "open with O_DIRECT through /proc/self/fd", errno};
  if (!is_same_file(fd_.get(), fd.get())) return {{}, 0, "/proc/self/fd leads to another file", 0};
  return {std::move(fd), alignment_bytes, {}, 0};
}

}  // namespace inrush::engine
