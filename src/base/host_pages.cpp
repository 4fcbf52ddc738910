#include "base/host_pages.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; absent from older headers
#define MADV_POPULATE_WRITE 23
#endif

namespace inrush::engine {

namespace {

constexpr std::uint64_t huge_page_bytes = 2ULL << 20;

}  // namespace

HostPages::HostPages(std::uint64_t size_bytes) : size_bytes_(round_up(size_bytes, 4096)) {
  // Over-reserve so that the start can be moved to a huge-page boundary; the rest goes back.
  const std::uint64_t reserved = size_bytes_ + huge_page_bytes;
  void* base =
      ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    throw Error(ErrorCode::out_of_memory,
                fmt::format("mmap {} of host memory: {}", bytes_text(reserved), errno_text(error)), error);
  }
  auto* const start = static_cast<std::byte*>(base);
  const auto address = reinterpret_cast<std::uint64_t>(start);
  const std::uint64_t head = round_up(address, huge_page_bytes) - address;
  if (head > 0) ::munmap(start, head);
  const std::uint64_t tail = reserved - head - size_bytes_;
  if (tail > 0) ::munmap(start + head + size_bytes_, tail);
  data_ = start + head;
  if (::madvise(data_, size_bytes_, MADV_HUGEPAGE) != 0)
    huge_page_refusal_ = "madvise(MADV_HUGEPAGE): " + errno_text(errno);
}

HostPages::~HostPages() { ::munmap(data_, size_bytes_); }

void HostPages::populate(std::uint64_t offset, std::uint64_t size_bytes) {
  if (::madvise(data_ + offset, size_bytes, MADV_POPULATE_WRITE) == 0) return;
  const int error = errno;
  if (error == EINVAL || error == ENOSYS) return;  // kernel before 5.14: pages come with the first touch
  throw Error(ErrorCode::out_of_memory,
              fmt::format("populate {} of host memory: {}", bytes_text(size_bytes), errno_text(error)),
              error);
}

}  // namespace inrush::engine
