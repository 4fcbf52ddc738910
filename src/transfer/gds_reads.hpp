// The cuFile side of one load: files as cuFile reads them into the device ring, and what the library's
// counters say of the way that those reads took. One thread at a time, apart from the files.
#pragma once

#include "storage/file.hpp"
#include "transfer/device_ring.hpp"
#include "transfer/gds_proof.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

namespace inrush::engine {

class GdsReads {
 public:
  explicit GdsReads(std::shared_ptr<const DeviceRing> ring);

  [[nodiscard]] const std::shared_ptr<const DeviceRing>& ring() const noexcept { return ring_; }
  // The file as it is read into the ring by ReadMode::device. `index` stands for the file in this load, and
  // `range` is the first that is read of it. Throws environment_unfit where the file must go another way.
  [[nodiscard]] std::shared_ptr<const File> open(std::uint32_t index, const std::shared_ptr<const File>& file,
                                                 ByteRange range);
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
