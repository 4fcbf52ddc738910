#include "storage/map_pages.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "storage/residency.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#ifndef MADV_POPULATE_READ  // Linux 5.14; absent from older headers
#define MADV_POPULATE_READ 22
#endif

namespace inrush::engine {

AddressSpace::AddressSpace(std::uint64_t size_bytes) : size_bytes_(size_bytes) {
  void* const start =
      ::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory,
                fmt::format("reserve {} of address space: {}", bytes_text(size_bytes), errno_text(errno)),
                errno);
  data_ = static_cast<std::byte*>(start);
}

AddressSpace::~AddressSpace() { ::munmap(data_, size_bytes_); }

MappedPages map_pages(int fd, std::uint64_t offset, std::span<std::byte> window, Populate populate) noexcept {
  void* const mapping =
      ::mmap(window.data(), window.size(), PROT_READ, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
  if (mapping == MAP_FAILED) return {0, errno};
  const bool is_needed = populate == Populate::always || !is_range_resident(fd, {offset, window.size()});
  // EFAULT: pages past the end of a file that was cut; EINVAL: before Linux 5.14.
  while (is_needed && ::madvise(mapping, window.size(), MADV_POPULATE_READ) != 0) {
    if (errno != EINTR && errno != EAGAIN) return {0, errno};
  }
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return {0, errno};
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  return {std::min<std::uint64_t>(window.size(), file_bytes - std::min(file_bytes, offset)), 0};
}

}  // namespace inrush::engine
