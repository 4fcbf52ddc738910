#include "storage/file.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <cerrno>

namespace inrush::engine {

void read_fully(const File& file, std::uint64_t offset, std::span<std::byte> target) {
  std::uint64_t moved_bytes = 0;
  const auto place = [&] { return printable(file.path()) + " " + range_text(offset, target.size()); };
  while (moved_bytes < target.size()) {
    const ReadOutcome outcome =
        file.read(ReadMode::buffered, offset + moved_bytes, target.subspan(moved_bytes));
    if (outcome.error == EINTR) continue;
    if (outcome.error != 0) {
      throw Error(ErrorCode::storage_failed, fmt::format("{}: read: {}", place(), errno_text(outcome.error)),
                  outcome.error);
    }
    if (outcome.moved_bytes == 0) {
      throw Error(ErrorCode::corrupt_checkpoint,
                  fmt::format("{}: the file ends at byte {}; get it again", place(), offset + moved_bytes));
    }
    moved_bytes += outcome.moved_bytes;
  }
}

}  // namespace inrush::engine
