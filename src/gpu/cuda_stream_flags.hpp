// Words in pinned host memory that CUDA streams wait for (cuStreamWaitValue32).
#pragma once

#include "base/host_pages.hpp"
#include "gpu/cuda_context.hpp"
#include "gpu/gpu.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace inrush::engine {

class CudaStreamFlags final : public StreamFlags {
 public:
  // Lets a stream of its own wait for a word that is set, and sees that it passes: driver and device can do
  // it. Throws environment_unfit, device_failed.
  CudaStreamFlags(std::shared_ptr<const CudaContext> context, const StreamFlagsShape& shape);
  ~CudaStreamFlags() override;

  void set(std::uint32_t index) noexcept override;
  void wait(std::uint32_t index, void* stream) override;

 private:
  [[nodiscard]] std::uint32_t* words() const noexcept;
  [[nodiscard]] CuEvent event_of(CuStream stream);
  void try_out(std::uint32_t index);

  const std::shared_ptr<const CudaContext> context_;
  const std::uint32_t stream_count_max_;
  std::unique_ptr<HostPages> pages_;
  CuAddress address_ = 0;  // of the pages, as the device sees them; 0: not pinned
  std::mutex mutex_;
  std::map<CuStream, CuEvent> passed_;  // recorded behind the last wait of each stream
};

}  // namespace inrush::engine
