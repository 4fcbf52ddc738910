// The header of a safetensors file as it stands on disk: u64 length, then that many bytes of JSON. Read at
// discovery, and again by each load from the description that it then reads the data from. Blocks on storage;
// any thread.
#pragma once

#include "storage/file.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace inrush::engine {

inline constexpr std::uint64_t length_prefix_bytes = 8;

struct HeaderBytes {
  std::unique_ptr<std::byte[]> memory;  // length prefix and text
  std::uint64_t size_bytes = 0;         // of both: where the data starts

  [[nodiscard]] std::span<const std::byte> bytes() const { return {memory.get(), size_bytes}; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(memory.get()) + length_prefix_bytes,
            size_bytes - length_prefix_bytes};
  }
};

// `status` is the file's, taken before. The length is compared with the cap and with the file's size before
// memory is asked for. Throws corrupt_checkpoint (and says what the file is where it is something else),
// storage_failed.
[[nodiscard]] HeaderBytes read_header(const File& file, const FileStatus& status,
                                      std::uint64_t header_bytes_max);

// XXH3-128 of length prefix and text: FileIdentity::header_hash.
[[nodiscard]] std::array<std::uint64_t, 2> hash_header(const HeaderBytes& header) noexcept;

}  // namespace inrush::engine
