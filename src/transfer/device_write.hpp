// Device memory -> ring -> file by cuFile: what saving is built on.
#pragma once

#include "base/range.hpp"
#include "gpu/gpu.hpp"
#include "transfer/device_ring.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace inrush::engine {

// Bytes of device memory and where in the file they go.
struct DeviceExtent {
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t file_offset = 0;  // a multiple of 4096, else every write is read-modify-write in the library
};

// One file that device memory is written to. One thread at a time.
class DeviceWriter {
 public:
  // `descriptor`: a regular file, open for reading and writing, with O_DIRECT for the straight way; it stays
  // open for as long as this lives. `path` is for messages. Throws environment_unfit where cuFile refuses it.
  DeviceWriter(CopyStream& stream, std::shared_ptr<const DeviceRing> ring, int descriptor, std::string path);

  // Blocks until all of it is written, not until it is durable. Short writes go on. What is queued on other
  // streams and fills the memory must be done before. Throws storage_failed with the range and the cause,
  // device_failed.
  void write(const DeviceExtent& extent);
  // Durable once this returns: a write by cuFile alone promises nothing. Throws storage_failed.
  void sync();

 private:
  void write_slot(std::uint32_t slot, std::uint64_t file_offset, std::uint64_t size_bytes);
  [[nodiscard]] Error failed(const CufileTransfer& moved, ByteRange range) const;

  CopyStream& stream_;
  const std::shared_ptr<const DeviceRing> ring_;
  const int descriptor_;
  const std::string path_;
  const CufileFile file_;
};

}  // namespace inrush::engine
