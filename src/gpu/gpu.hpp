// The few operations that staging needs of a device. CudaGpu reaches a GPU through the driver, HostGpu is the
// CPU target.
#pragma once

#include <inrush/device.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace inrush::engine {

enum class CopySource : std::uint8_t { host, device };

// Rows from host or device memory to device memory. A plain run of bytes is one row.
struct Copy {
  const std::byte* source = nullptr;
  std::uint64_t source_pitch_bytes = 0;
  void* target = nullptr;
  std::uint64_t target_pitch_bytes = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_count = 1;
  CopySource from = CopySource::host;
};

// How many small copies may go.
enum class KernelUse : std::uint8_t {
  forbidden,
  alone,   // a kernel reads host memory
  staged,  // a copy engine brings it to device memory first, some 24 MiB of it
};

// Copies in order, asynchronously. One thread at a time, except order_after(). Destroying it waits for its
// copies.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  // Starts the copies, in any order among themselves. Each source stays valid and unchanged until a ticket
  // recorded afterwards is reached. Sources in host memory were pinned by one call, or none of them is
  // pinned. Returns the number of operations that the device was given. Throws device_failed.
  virtual std::uint64_t copy(std::span<const Copy> copies) = 0;
  // By a kernel not where streams wait for what these copies bring: a kernel may stand behind such a stream
  // in one queue of the device, and loading its code waits for all streams. Blocks while that is going on.
  // `reserved_bytes` of the device's memory are to be left free: they are still to be allocated.
  virtual void use_kernel(KernelUse use, std::uint64_t reserved_bytes) = 0;
  // Why many small copies go one by one; empty where they need not, or none was asked for.
  [[nodiscard]] virtual const std::string& kernel_refusal() const noexcept = 0;
  // Why that kernel reads host memory by itself, which is slower than what a copy engine brings it; empty as
  // above.
  [[nodiscard]] virtual const std::string& stage_refusal() const noexcept = 0;
  // A ticket for all copies so far. Tickets grow by one from 1.
  [[nodiscard]] virtual std::uint64_t record() = 0;
  // The highest ticket that is reached; 0 for none. Never blocks. Throws device_failed where a copy failed.
  [[nodiscard]] virtual std::uint64_t reached() = 0;
  // Blocks until the ticket is reached. Throws device_failed.
  virtual void wait(std::uint64_t ticket) = 0;
  // Copies that start after this call wait for what is queued on the caller's stream (a CUstream) now. Any
  // thread.
  virtual void order_after(void* stream) = 0;
  // What is queued on the caller's stream from now on waits for the copies so far. Never blocks. Any thread.
  virtual void order_before(void* stream) = 0;
  // The CUstream; null on the CPU.
  [[nodiscard]] virtual void* handle() const noexcept = 0;
  // Sets every byte, after the copies so far. Throws device_failed.
  virtual void fill(void* target, std::uint64_t size_bytes, std::byte value) = 0;
};

// Words that streams wait for and the CPU sets, for good. Destroying it waits until every stream has passed
// its waits; all of them must be set by then.
class StreamFlags {
 public:
  virtual ~StreamFlags() = default;
  // Any thread.
  virtual void set(std::uint32_t index) noexcept = 0;
  // What is queued on `stream` (a CUstream) from now on starts after set(index). Never blocks. Throws
  // device_failed; invalid_request where more streams would wait at once than the shape allows.
  virtual void wait(std::uint32_t index, void* stream) = 0;
};

struct StreamFlagsShape {
  std::uint32_t count = 0;
  std::uint32_t stream_count_max = 0;  // that wait at once, for any flags of the device
};

struct DeviceMemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

struct CufileOptions;
class CufileDriver;

// All calls from any thread: each binds the device's context for its own duration.
class Gpu {
 public:
  virtual ~Gpu() = default;
  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  // Whether device addresses are plain host addresses that reads may fill in place.
  [[nodiscard]] virtual bool is_host() const noexcept = 0;
  [[nodiscard]] virtual DeviceMemoryInfo memory_info() const = 0;
  // Memory that frees itself with its last owner, on any thread, after this Gpu is gone too. Throws
  // out_of_memory, device_failed.
  [[nodiscard]] virtual std::shared_ptr<void> allocate(std::uint64_t size_bytes,
                                                       std::uint64_t alignment_bytes) = 0;
  // Pins host memory for as long as the result lives; the memory must live longer. Null where it is refused:
  // `refusal` says why.
  [[nodiscard]] virtual std::shared_ptr<void> pin(std::span<std::byte> memory, std::string& refusal) = 0;
  // The same for memory that nobody may write to, as a mapping for reading is.
  [[nodiscard]] virtual std::shared_ptr<void> pin_read_only(std::span<std::byte> memory,
                                                            std::string& refusal) = 0;
  [[nodiscard]] virtual std::unique_ptr<CopyStream> open_stream() = 0;
  // Blocks. Throws device_failed.
  virtual void copy_to_host(const void* source, std::span<std::byte> target) = 0;
  // Throws environment_unfit where streams of the device cannot wait for values in host memory.
  [[nodiscard]] virtual std::unique_ptr<StreamFlags> open_flags(const StreamFlagsShape& shape) = 0;
  // Whether streams wait for flags: what waits for the whole device (unregistering, loading code) would hold
  // up the copies that they wait for, and so never end.
  [[nodiscard]] virtual bool streams_wait() = 0;
  // cuFile for this device (gpu/cufile_driver.hpp). Blocks for up to a second. Throws environment_unfit.
  [[nodiscard]] virtual std::shared_ptr<CufileDriver> open_cufile(const CufileOptions& options) = 0;
};

// The CPU target. Copies are done when copy() returns.
[[nodiscard]] std::shared_ptr<Gpu> open_host_gpu();

}  // namespace inrush::engine
