#include "checkpoint/header_bytes.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "checkpoint/foreign_format.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace inrush::engine {

namespace {

// Small headers come with this first read; over a network a second one would double the time to open a file.
constexpr std::uint64_t first_read_bytes = 4096;

std::uint64_t decode_length(std::span<const std::byte> head) {
  std::uint64_t length = 0;
  for (std::size_t i = length_prefix_bytes; i-- > 0;)
    length = length << 8U | std::to_integer<std::uint64_t>(head[i]);
  return length;
}

struct LengthCheck {
  std::uint64_t length = 0;
  std::uint64_t length_max = 0;
  std::uint64_t file_bytes = 0;
};

// Why no header can be read; empty where it can. The file's size stands first: it is what tells a truncated
// download.
std::string refusal(const LengthCheck& check) {
  if (check.file_bytes < length_prefix_bytes) {
    return fmt::format("the file has {} bytes, a safetensors file has at least {}", check.file_bytes,
                       length_prefix_bytes);
  }
  if (check.length == 0) return "the header length in bytes [0, 8) is 0";
  if (check.length > check.length_max) {
    return fmt::format(
        "the header length in bytes [0, 8) is {}, above the cap of {} (DiscoverOptions::header_bytes_max)",
        check.length, check.length_max);
  }
  const std::uint64_t present = check.file_bytes - length_prefix_bytes;
  if (check.length > present) {
    return fmt::format("truncated inside the header: expected at least {} bytes, the file has {}",
                       length_prefix_bytes + check.length, check.file_bytes);
  }
  return {};
}

}  // namespace

HeaderBytes read_header(const File& file, const FileStatus& status, std::uint64_t header_bytes_max) {
  std::array<std::byte, first_read_bytes> first;
  const std::span head = std::span(first).first(std::min(status.size_bytes, first_read_bytes));
  if (!head.empty()) read_fully(file, 0, head);
  const std::uint64_t length = head.size() < length_prefix_bytes ? 0 : decode_length(head);
  const std::string why =
      refusal({.length = length, .length_max = header_bytes_max, .file_bytes = status.size_bytes});
  if (!why.empty()) {
    const std::string_view format = recognise_format(head.first(std::min(head.size(), recognised_bytes_max)));
    throw Error(ErrorCode::corrupt_checkpoint,
                format.empty() ? fmt::format("{}: {}; not a safetensors file, or damaged: get it again",
                                             printable(file.path()), why)
                               : fmt::format("{}: {} ({})", printable(file.path()), format, why));
  }
  HeaderBytes header{.memory = std::make_unique_for_overwrite<std::byte[]>(length_prefix_bytes + length),
                     .size_bytes = length_prefix_bytes + length};
  const std::uint64_t known_bytes = std::min<std::uint64_t>(head.size(), header.size_bytes);
  std::memcpy(header.memory.get(), head.data(), known_bytes);
  const std::span rest = std::span(header.memory.get(), header.size_bytes).subspan(known_bytes);
  if (!rest.empty()) read_fully(file, known_bytes, rest);
  return header;
}

std::array<std::uint64_t, 2> hash_header(const HeaderBytes& header) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(header.memory.get(), header.size_bytes);
  return {hash.low64, hash.high64};
}

}  // namespace inrush::engine
