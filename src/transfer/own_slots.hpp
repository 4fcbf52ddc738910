// Reads that fill slots of their own instead of those of the host ring. Two kinds: cuFile's, into device
// memory (GdsReads), and windows over the page cache (WindowReads). The path's thread alone, apart from the
// files.
#pragma once

#include "gpu/gpu.hpp"
#include "storage/file.hpp"
#include "transfer/ring.hpp"
#include "transfer/transfer_path.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace inrush::engine {

class OwnSlotReads {
 public:
  virtual ~OwnSlotReads() = default;
  [[nodiscard]] virtual RingShape shape() const noexcept = 0;
  [[nodiscard]] virtual std::span<std::byte> slot(std::uint32_t index) const noexcept = 0;
  // Keeps the slots' memory alive.
  [[nodiscard]] virtual std::shared_ptr<void> owner() const = 0;
  // The file as it is read into these slots, by mode(), in whole blocks of 4096. `index` stands for the file
  // in this load, and `range` is the first that is read of it. Throws environment_unfit where the file must
  // go another way.
  [[nodiscard]] virtual std::shared_ptr<const File> open(std::uint32_t index,
                                                         const std::shared_ptr<const File>& file,
                                                         ByteRange range) = 0;
  [[nodiscard]] virtual ReadMode mode() const noexcept = 0;
  [[nodiscard]] virtual CopySource source() const noexcept = 0;
  // What an error of such a read means.
  [[nodiscard]] virtual std::string error_text(int error) const = 0;
};

// Which pieces fill them, where their file allows it.
enum class OwnSlotRanges : std::uint8_t {
  cold,      // what the page cache has comes from there by copies, which nothing beats
  all,       // the path was forced
  resident,  // what the page cache has
};

struct OwnSlots {
  // Asked before each piece until it gives something: nothing while cuFile is being opened, and for good
  // where that failed (the fallback is recorded then).
  std::function<OwnSlotReads*()> reads;
  OwnSlotRanges ranges = OwnSlotRanges::cold;
  std::string_view name = "GDS";  // in fallbacks; a literal
};

}  // namespace inrush::engine
