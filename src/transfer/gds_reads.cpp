#include "transfer/gds_reads.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace inrush::engine {

namespace {

// Reads by ReadMode::device go through cuFile; all else is what the file itself says and does.
class GdsFile final : public File {
 public:
  struct Parts {
    std::shared_ptr<const File> file;
    std::shared_ptr<const DeviceRing> ring;
    std::shared_ptr<std::atomic<std::uint64_t>> read_count;
  };

  GdsFile(Parts parts, int descriptor)
      : parts_(std::move(parts)), cufile_(parts_.ring->driver(), descriptor) {}

  [[nodiscard]] const std::string& path() const noexcept override { return parts_.file->path(); }
  [[nodiscard]] FileStatus status() const override { return parts_.file->status(); }
  [[nodiscard]] ReadOutcome read(ReadMode mode, std::uint64_t offset,
                                 std::span<std::byte> target) const noexcept override {
    if (mode != ReadMode::device) return parts_.file->read(mode, offset, target);
    std::byte* const registered = parts_.ring->bytes().data();
    const CufileTransfer transfer = cufile_.read(
        offset, {registered, static_cast<std::uint64_t>(target.data() - registered), target.size()});
    if (transfer.error == 0) parts_.read_count->fetch_add(1);  // failed ones are nobody's proof
    return {transfer.moved_bytes, transfer.error};
  }
  [[nodiscard]] int descriptor(ReadMode mode) const noexcept override {
    return mode == ReadMode::device ? -1 : parts_.file->descriptor(mode);
  }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override {
    return parts_.file->direct_alignment_bytes();
  }
  [[nodiscard]] std::string direct_refusal() const override { return parts_.file->direct_refusal(); }
  [[nodiscard]] bool is_resident(ByteRange range) const noexcept override {
    return parts_.file->is_resident(range);
  }

 private:
  const Parts parts_;        // keeps the descriptor open until
  const CufileFile cufile_;  // this is gone
};

}  // namespace

GdsReads::GdsReads(std::shared_ptr<const DeviceRing> ring)
    : ring_(std::move(ring)),
      read_count_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      counts_before_(ring_->driver()->counts()) {}

std::shared_ptr<const File> GdsReads::open(std::uint32_t index, const std::shared_ptr<const File>& file,
                                           ByteRange range) {
  std::weak_ptr<const File>& known = files_[index];
  if (std::shared_ptr<const File> open = known.lock()) return open;
  // The direct ways want O_DIRECT. Compat mode reads as pread does, so pages that are there are of use to it.
  const bool is_compat = ring_->driver()->facts().mode == CufileMode::compat;
  const bool is_buffered = is_compat && file->is_resident(range);
  const int descriptor = file->descriptor(is_buffered ? ReadMode::buffered : ReadMode::direct);
  if (descriptor < 0) {
    throw Error(ErrorCode::environment_unfit,
                fmt::format("{}: {}", printable(file->path()),
                            file->direct_alignment_bytes() == 0 ? file->direct_refusal()
                                                                : "it has no descriptor of its own"));
  }
  try {
    kept_.push_back(std::make_shared<const GdsFile>(GdsFile::Parts{file, ring_, read_count_}, descriptor));
  } catch (const Error& error) {
    throw error.within(printable(file->path()));
  }
  known = kept_.back();
  if (kept_.size() > kept_file_count) kept_.pop_front();
  return known.lock();
}

GdsProof GdsReads::proof() const {
  return judge_gds({.facts = ring_->driver()->facts(),
                    .read_count = read_count_->load(),
                    .before = counts_before_,
                    .after = ring_->driver()->counts()});
}

}  // namespace inrush::engine
