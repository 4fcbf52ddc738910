// Much address space with 64 MiB of memory behind it, again and again: that much real memory takes seconds to
// fault in.
#pragma once

#include "base/unique_fd.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace inrush::fakes {

class AliasedMemory {
 public:
  // `size_bytes`: a multiple of 64 MiB.
  explicit AliasedMemory(std::uint64_t size_bytes)
      : size_bytes_(size_bytes),
        base_(::mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    const engine::UniqueFd memory(::memfd_create("aliased", MFD_CLOEXEC));
    if (base_ == MAP_FAILED || ::ftruncate(memory.get(), alias_bytes) != 0)
      throw std::runtime_error("aliased memory");
    for (std::uint64_t offset = 0; offset < size_bytes; offset += alias_bytes) {
      ::mmap(static_cast<std::byte*>(base_) + offset, alias_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, memory.get(), 0);
    }
  }
  ~AliasedMemory() { ::munmap(base_, size_bytes_); }
  AliasedMemory(const AliasedMemory&) = delete;
  AliasedMemory& operator=(const AliasedMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(base_), size_bytes_}; }

 private:
  static constexpr std::uint64_t alias_bytes = 64ULL << 20;
  const std::uint64_t size_bytes_;
  void* const base_;
};

}  // namespace inrush::fakes
