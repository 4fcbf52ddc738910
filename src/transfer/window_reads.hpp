// The page cache, read by the device where it lies: a window over the file is registered with the driver, and
// copied from. With one or two CPUs that is two to three times as fast as copying into a ring
// first (H200: 20 GB/s against 6 to 12), since no byte passes through a CPU; with four, copies win.
#pragma once

#include "gpu/gpu.hpp"
#include "storage/map_pages.hpp"
#include "transfer/own_slots.hpp"

#include <cstdint>
#include <map>
#include <memory>

namespace inrush::engine {

class WindowReads final : public OwnSlotReads {
 public:
  // Nothing is mapped or registered before the first read; all of it is let go of with the last owner. Throws
  // out_of_memory. Registering finds pages by itself, but holds a lock of the driver meanwhile: with one
  // reader that saves a walk over them (H200, 1 CPU: 16.4 to 18.7 GB/s beside 15.6 to 17.7), two readers lose
  // by it (0.23 to 0.30 of the pinned limit beside 0.30 to 0.38).
  WindowReads(std::shared_ptr<Gpu> gpu, RingShape shape, Populate populate);
  [[nodiscard]] RingShape shape() const noexcept override { return shape_; }
  [[nodiscard]] std::span<std::byte> slot(std::uint32_t index) const noexcept override;
  [[nodiscard]] std::shared_ptr<void> owner() const override;
  [[nodiscard]] std::shared_ptr<const File> open(std::uint32_t index, const std::shared_ptr<const File>& file,
                                                 ByteRange range) override;
  [[nodiscard]] ReadMode mode() const noexcept override { return ReadMode::mapped; }
  [[nodiscard]] CopySource source() const noexcept override { return CopySource::host; }
  [[nodiscard]] std::string error_text(int error) const override;
  // The most that was registered at one time.
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept;

  class Windows;  // shared with the files

 private:
  const RingShape shape_;
  const std::shared_ptr<Windows> windows_;
  std::map<std::uint32_t, std::weak_ptr<const File>> files_;
};

}  // namespace inrush::engine
