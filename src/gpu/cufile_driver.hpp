// cuFile on one device: the driver that libcufile keeps for the process, opened once and closed with its last
// owner. Reached through Gpu::open_cufile(), so nothing of cuFile is called before the CUDA driver has shown
// a device: newer libraries spin for ever in their driver open where there is none. Calls from any thread.
#pragma once

#include "gpu/cuda_context.hpp"
#include "gpu/cufile_errors.hpp"
#include "gpu/cufile_library.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace inrush::engine {

enum class CufileMode : std::uint8_t {
  direct,  // compat mode is forbidden: what cannot go straight is refused
  compat,  // reads by the host and copies, inside the library; never called GPUDirect Storage
};

struct CufileOptions {
  CufileMode mode = CufileMode::direct;
  std::string library;     // empty: looked for
  std::string log_folder;  // where the library writes its log; it takes the current folder otherwise
};

struct CufileFacts {
  CufileMode mode = CufileMode::direct;
  std::string library;     // path of the file
  std::string version;     // "1.15"
  bool is_strict = false;  // the open driver says that compat mode is forbidden
  bool was_open = false;   // by the host program, before us: then its settings hold and not ours
};

// What libcufile counted for the device, in this process, by whoever used it.
struct CufileCounts {
  std::uint64_t p2p_reads = 0;
  std::uint64_t nvfs_reads = 0;
  std::uint64_t posix_reads = 0;

  bool operator==(const CufileCounts&) const = default;
};

class CufileDriver : public std::enable_shared_from_this<CufileDriver> {
 public:
  // Use Gpu::open_cufile(). Blocks: 0.2 to 0.8 s were seen. Throws environment_unfit.
  CufileDriver(const CufileOptions& options, std::shared_ptr<const CudaContext> context);
  ~CufileDriver();
  CufileDriver(const CufileDriver&) = delete;
  CufileDriver& operator=(const CufileDriver&) = delete;

  [[nodiscard]] const CufileFacts& facts() const noexcept { return facts_; }
  // Nothing where the library does not count (before 1.15, or the level was refused).
  [[nodiscard]] std::optional<CufileCounts> counts() const;
  // Reads that were asked of the library through this driver.
  [[nodiscard]] std::uint64_t issued_reads() const noexcept { return issued_reads_.load(); }
  // The library reads into device memory that is registered without a bounce. The result keeps the
  // registration, and outlives neither the memory nor needs it to be freed last: drop it before the memory.
  // Throws environment_unfit.
  [[nodiscard]] std::shared_ptr<void> register_memory(std::span<std::byte> memory) const;

 private:
  friend class CufileFile;

  void set_parameters(const CufileOptions& options);
  void open_driver() const;
  void read_facts();
  void require_strictness() const;
  void start_counting();
  void close() const noexcept;

  const std::shared_ptr<const CudaContext> context_;
  const CufileLibrary library_;
  CufileFacts facts_;
  bool allows_compat_ = false;  // as the open driver says
  bool counts_reads_ = false;
  mutable std::atomic<std::uint64_t> issued_reads_ = 0;
};

// Part of a registered piece of device memory.
struct CufileSpan {
  std::byte* registered = nullptr;  // first byte of what was registered: the library wants this one
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// A file that cuFile knows. One per descriptor; calls from any thread, at once. The descriptor stays open for
// as long as this lives.
class CufileFile {
 public:
  // Throws environment_unfit with the library's code and what to do.
  CufileFile(std::shared_ptr<const CufileDriver> driver, int descriptor);
  ~CufileFile();
  CufileFile(const CufileFile&) = delete;
  CufileFile& operator=(const CufileFile&) = delete;

  // One call, not repeated after a short count. 0 bytes without an error: past the end of the file. Multiples
  // of 4096 throughout go straight; else the library bounces.
  [[nodiscard]] CufileTransfer read(std::uint64_t file_offset, const CufileSpan& target) const noexcept;
  [[nodiscard]] CufileTransfer write(std::uint64_t file_offset, const CufileSpan& source) const noexcept;

 private:
  const std::shared_ptr<const CufileDriver> driver_;
  CufileHandle handle_ = nullptr;
};

}  // namespace inrush::engine
