#include "transfer/device_write.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace inrush::engine {

namespace {

// However a write ends, no copy reads from the caller's memory afterwards.
class CopiesAwaited {
 public:
  explicit CopiesAwaited(CopyStream& stream) : stream_(stream) {}
  ~CopiesAwaited() {
    try {
      stream_.wait(stream_.record());
    } catch (const std::exception&) {  // the device is gone; what led here says so
    }
  }
  CopiesAwaited(const CopiesAwaited&) = delete;
  CopiesAwaited& operator=(const CopiesAwaited&) = delete;

 private:
  CopyStream& stream_;
};

}  // namespace

DeviceWriter::DeviceWriter(CopyStream& stream, std::shared_ptr<const DeviceRing> ring, int descriptor,
                           std::string path)
    : stream_(stream),
      ring_(std::move(ring)),
      descriptor_(descriptor),
      path_(std::move(path)),
      file_(ring_->driver(), descriptor) {}

// Two slots: one is filled from the source while the other is written.
void DeviceWriter::write(const DeviceExtent& extent) {
  const std::uint64_t slot_bytes = ring_->shape().slot_bytes;
  const std::uint32_t slot_count = std::min(2U, ring_->shape().slot_count);
  const auto fill = [&](std::uint64_t done_bytes) {
    const auto slot = static_cast<std::uint32_t>(done_bytes / slot_bytes % slot_count);
    const Copy copy{.source = extent.data + done_bytes,
                    .target = ring_->slot(slot).data(),
                    .row_bytes = std::min(slot_bytes, extent.size_bytes - done_bytes),
                    .from = CopySource::device};
    stream_.copy({&copy, 1});
    return stream_.record();
  };
  if (extent.size_bytes == 0) return;
  const CopiesAwaited awaited(stream_);
  std::uint64_t ticket = fill(0);
  for (std::uint64_t done_bytes = 0; done_bytes < extent.size_bytes; done_bytes += slot_bytes) {
    stream_.wait(ticket);  // cuFile knows no streams
    const bool has_more = done_bytes + slot_bytes < extent.size_bytes;
    if (has_more && slot_count > 1) ticket = fill(done_bytes + slot_bytes);
    write_slot(static_cast<std::uint32_t>(done_bytes / slot_bytes % slot_count),
               extent.file_offset + done_bytes, std::min(slot_bytes, extent.size_bytes - done_bytes));
    if (has_more && slot_count == 1) ticket = fill(done_bytes + slot_bytes);
  }
}

void DeviceWriter::write_slot(std::uint32_t slot, std::uint64_t file_offset, std::uint64_t size_bytes) {
  // Whole blocks first: only what is left at the end needs the library's read-modify-write.
  constexpr std::uint64_t block_bytes = 4096;
  const std::uint64_t slot_start = slot * ring_->shape().slot_bytes;
  for (std::uint64_t done_bytes = 0; done_bytes < size_bytes;) {
    const std::uint64_t left_bytes = size_bytes - done_bytes;
    const std::uint64_t whole_bytes = left_bytes / block_bytes * block_bytes;
    const std::uint64_t asked_bytes = whole_bytes > 0 ? whole_bytes : left_bytes;
    const CufileTransfer moved =
        file_.write(file_offset + done_bytes, {ring_->bytes().data(), slot_start + done_bytes, asked_bytes});
    if (moved.error == EINTR || moved.error == EAGAIN) continue;
    // A short one goes on from a whole block, which O_DIRECT wants.
    const std::uint64_t kept_bytes =
        moved.moved_bytes == asked_bytes ? asked_bytes : round_down(moved.moved_bytes, block_bytes);
    if (kept_bytes == 0) throw failed(moved, {file_offset + done_bytes, left_bytes});
    done_bytes += kept_bytes;
  }
}

Error DeviceWriter::failed(const CufileTransfer& moved, ByteRange range) const {
  const std::string reason = moved.error != 0
                                 ? cufile_error_text(moved.error)
                                 : fmt::format("{} bytes were written, less than a block", moved.moved_bytes);
  return {ErrorCode::storage_failed,
          fmt::format("{} {}: cuFileWrite: {}; check the space on the disk and the mount", printable(path_),
                      range_text(range.offset, range.size_bytes), reason),
          moved.error > cufile_code_base ? 0 : moved.error};
}

void DeviceWriter::sync() {
  if (::fsync(descriptor_) == 0) return;
  const int error = errno;
  throw Error(ErrorCode::storage_failed, fmt::format("{}: fsync: {}", printable(path_), errno_text(error)),
              error);
}

}  // namespace inrush::engine
