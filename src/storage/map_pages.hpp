// Pages of a file in the address space, for a device to read: the CPU never touches them, since a file that
// is cut meanwhile would end the process with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inrush::engine {

// Address space without memory. Thread-safe for different windows.
class AddressSpace {
 public:
  // Throws out_of_memory.
  explicit AddressSpace(std::uint64_t size_bytes);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

struct MappedPages {
  std::uint64_t size_bytes = 0;  // less than asked for where the file ends before
  int error = 0;                 // errno
};

enum class Populate : std::uint8_t {
  always,
  // Only where pages are missing: what pins the others finds them itself.
  missing,
};

// Maps the file from `offset` (a multiple of the page size) on over `window`, a part of an AddressSpace, and
// brings pages into memory. Blocks on storage where they are not there yet.
[[nodiscard]] MappedPages map_pages(int fd, std::uint64_t offset, std::span<std::byte> window,
                                    Populate populate) noexcept;

}  // namespace inrush::engine
