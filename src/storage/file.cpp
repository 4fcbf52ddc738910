#include "storage/file.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <cerrno>

namespace inrush::engine {

namespace {

// EINTR and EAGAIN without a byte of progress, in a row, before the storage is called broken: else a header
// that never comes holds the caller for ever.
constexpr std::uint32_t stalled_attempts_max = 10'000;

}  // namespace

void read_fully(const File& file, std::uint64_t offset, std::span<std::byte> target) {
  std::uint64_t moved_bytes = 0;
  std::uint32_t stalled_attempts = 0;
  const auto place = [&] { return printable(file.path()) + " " + range_text(offset, target.size()); };
  while (moved_bytes < target.size()) {
    const ReadOutcome outcome =
        file.read(ReadMode::buffered, offset + moved_bytes, target.subspan(moved_bytes));
    const bool may_pass = outcome.error == EINTR || outcome.error == EAGAIN;
    if (may_pass && ++stalled_attempts < stalled_attempts_max) continue;
    stalled_attempts = 0;
    if (outcome.error != 0) {
      throw Error(
          ErrorCode::storage_failed,
          fmt::format("{}: read: {}; check the disk or the mount", place(), errno_text(outcome.error)),
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
