// The cuFile side of one load: files as cuFile reads them into the device ring, and what the library's
// counters say of the way that those reads took. One thread at a time, apart from the files.
#pragma once

#include "storage/file.hpp"
#include "transfer/device_ring.hpp"
#include "transfer/gds_proof.hpp"
#include "transfer/own_slots.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

namespace inrush::engine {

class GdsReads final : public OwnSlotReads {
 public:
  explicit GdsReads(std::shared_ptr<const DeviceRing> ring);

  [[nodiscard]] RingShape shape() const noexcept override { return ring_->shape(); }
  [[nodiscard]] std::span<std::byte> slot(std::uint32_t index) const noexcept override {
    return ring_->slot(index);
  }
  [[nodiscard]] std::shared_ptr<void> owner() const override {
    return std::const_pointer_cast<DeviceRing>(ring_);
  }
  [[nodiscard]] std::shared_ptr<const File> open(std::uint32_t index, const std::shared_ptr<const File>& file,
                                                 ByteRange range) override;
  [[nodiscard]] ReadMode mode() const noexcept override { return ReadMode::device; }
  [[nodiscard]] CopySource source() const noexcept override { return CopySource::device; }
  [[nodiscard]] std::string error_text(int error) const override { return cufile_error_text(error); }
  // What is known of the reads so far. Any thread.
  [[nodiscard]] GdsProof proof() const;

 private:
  // Registrations that are kept while nothing is read of their file: consecutive pieces are of one file.
  static constexpr std::size_t kept_file_count = 8;

  const std::shared_ptr<const DeviceRing> ring_;
  const std::shared_ptr<std::atomic<std::uint64_t>> read_count_;
  const std::optional<CufileCounts> counts_before_;
  // By file, for as long as a read holds it: a descriptor is registered once at a time.
  std::map<std::uint32_t, std::weak_ptr<const File>> files_;
  std::deque<std::shared_ptr<const File>> kept_;
};

}  // namespace inrush::engine
