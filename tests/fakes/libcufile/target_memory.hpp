// Memory that reads go to and writes come from: of the fake libcuda, where one is loaded and the address is
// one of its, else of the host. From any thread; takes no lock of the fake libcufile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inrush::fakes::cufile {

struct MemoryRange {
  std::byte* start = nullptr;
  std::uint64_t bytes = 0;
};

enum class Reach : std::uint8_t { device, host, beyond, none };

// `beyond`: begins in a block of the device and ends behind it. `none`: no memory, or freed.
[[nodiscard]] Reach reach_of(const MemoryRange& range);

// False where the memory went away meanwhile.
[[nodiscard]] bool store(const MemoryRange& target, const std::byte* source, Reach reach);
[[nodiscard]] bool fetch(std::byte* target, const MemoryRange& source, Reach reach);

}  // namespace inrush::fakes::cufile
