// Spans of pinned host memory on their way to kernels that scatter them: a copy engine brings them as wholes
// into device memory, at the speed of plain copies and on a stream of its own, so that it goes on while the
// kernel before it runs (H200, 40,000 tensors: kernels that read over the bus themselves reached 0.79 of the
// pinned limit).
#pragma once

#include "gpu/cuda_table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace inrush::engine {

class CudaContext;

// Not thread-safe. What was queued must have ended before it is destroyed.
class CopyStage {
 public:
  static constexpr std::uint64_t span_bytes_max = 8ULL << 20;
  static constexpr std::size_t buffer_count = 3;
  // Before and behind a span: it lies as it does in host memory, for the engine's sake, and kernels read
  // whole blocks.
  static constexpr std::uint64_t margin_bytes = 4096;
  static constexpr std::uint64_t buffer_bytes = margin_bytes + span_bytes_max + margin_bytes;

  // Throws environment_unfit where that is much of what the device has free beside `reserved_bytes`.
  CopyStage(std::shared_ptr<const CudaContext> context, std::uint64_t reserved_bytes);
  ~CopyStage();
  CopyStage(const CopyStage&) = delete;
  CopyStage& operator=(const CopyStage&) = delete;

  // The context is bound. What is queued on `stream` between these two finds the span at the address, and
  // whole blocks of 16 bytes around it may be read. Throws device_failed.
  [[nodiscard]] CuAddress bring(const std::byte* source, std::uint64_t bytes, CuStream stream);
  void release(CuStream stream);

 private:
  struct Buffer {
    CuAddress address = 0;
    CuEvent used = nullptr;  // recorded behind its last kernel
    bool is_used = false;
  };

  void prepare(std::uint64_t reserved_bytes);
  void require(CuResult result, const char* call) const;
  void destroy() const noexcept;

  const std::shared_ptr<const CudaContext> context_;
  CuAddress memory_ = 0;
  CuStream stream_ = nullptr;
  CuEvent brought_ = nullptr;  // a wait keeps to the record that it found
  std::array<Buffer, buffer_count> buffers_;
  std::size_t next_ = 0;
};

}  // namespace inrush::engine
