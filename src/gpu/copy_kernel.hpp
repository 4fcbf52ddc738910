// Many small copies at once: a kernel that reads pinned host memory, or memory of the device, and writes each
// run of bytes to a place of its own. A copy engine takes some microseconds for each (H200, pieces of 4 MiB
// in runs of 64 KiB: 16.6 GB/s by copies, 50.8 by the kernel; runs of 4 KiB: 1.6 and 49.3).
#pragma once

#include "base/host_pages.hpp"
#include "gpu/cuda_table.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace inrush::engine {

class CudaContext;

// As the kernel has it (copy_kernel.cu).
struct CopyRun {
  std::uint64_t source = 0;  // addresses that the device may use
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;
};

// The kernel as text of PTX, for every GPU since 2018; copy_kernel_ptx.cpp.
extern const char* const copy_kernel_ptx;
inline constexpr const char* copy_kernel_name = "inrush_copy_runs";

// Not thread-safe. What was started must have ended before it is destroyed.
class CopyKernel {
 public:
  // Translating the text takes the driver some ten milliseconds, once: it keeps what came of it. Throws
  // environment_unfit where it refuses the text or the memory for the lists.
  explicit CopyKernel(std::shared_ptr<const CudaContext> context);
  ~CopyKernel();
  CopyKernel(const CopyKernel&) = delete;
  CopyKernel& operator=(const CopyKernel&) = delete;

  // The context is bound. Returns how often the kernel was launched. Throws device_failed.
  std::uint64_t start(std::span<const CopyRun> runs, CuStream stream);

 private:
  // Read by the kernel when it runs: not written anew before its event.
  struct List {
    CopyRun* entries = nullptr;
    CuAddress address = 0;
    CuEvent event = nullptr;
    bool is_used = false;
  };
  static constexpr std::size_t list_count = 8;

  void prepare();
  void require(CuResult result, const char* call) const;
  void release() const noexcept;
  void launch(CuStream stream);

  const std::shared_ptr<const CudaContext> context_;
  HostPages pages_;
  bool is_pinned_ = false;
  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;
  std::array<List, list_count> lists_;
  std::size_t list_ = 0;       // that is being filled
  std::size_t run_count_ = 0;  // in it
};

}  // namespace inrush::engine
