// Anonymous page-aligned host memory, on transparent huge pages where the kernel grants them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace inrush::engine {

class HostPages {
 public:
  // Reserves address space; pages come with the first touch or with populate(). Throws out_of_memory.
  explicit HostPages(std::uint64_t size_bytes);
  ~HostPages();
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
  // Why there are no huge pages; empty where MADV_HUGEPAGE was accepted.
  [[nodiscard]] const std::string& huge_page_refusal() const noexcept { return huge_page_refusal_; }
  // Faults [offset, offset + size_bytes) in. May run on several threads for different ranges. Throws
  // out_of_memory.
  void populate(std::uint64_t offset, std::uint64_t size_bytes);

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::string huge_page_refusal_;
};

}  // namespace inrush::engine
