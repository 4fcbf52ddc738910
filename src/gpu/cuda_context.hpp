// The primary context of one device, retained once. Shared by the Gpu and by all that it gave out, so that
// memory may be dropped last and anywhere; released with its last owner. All calls from any thread.
#pragma once

#include "gpu/cuda_driver.hpp"
#include "gpu/cuda_table.hpp"
#include "gpu/waiting_streams.hpp"

#include <inrush/device.hpp>

#include <sys/types.h>

#include <memory>
#include <string_view>
#include <utility>

namespace inrush::engine {

class CudaContext {
 public:
  // `device` has its index resolved. Throws device_failed; out_of_memory where the device has no room for a
  // context.
  CudaContext(std::shared_ptr<const CudaDriver> driver, Device device);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  [[nodiscard]] const CudaTable& table() const noexcept { return driver_->table(); }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  // Throws device_failed with the device, the call and the driver's words; nothing on success.
  void check(CuResult result, std::string_view call) const;

  [[nodiscard]] WaitingStreams& waiting_streams() const noexcept { return waiting_; }
  // For destructors: frees device memory, later where a stream waits.
  void free(CuAddress address) const noexcept;
  void free_kept() const noexcept;

  // For destructors: runs `call` with the context bound. What the driver answers is dropped: "deinitialized"
  // at the end of the process is as good as success, and nobody could act on another error. A forked child
  // must not touch CUDA: nothing happens.
  template <typename Call>
  void release(Call&& call) const noexcept {
    if (!is_own_process() || table().ctx_push_current(handle_) != CuResult::success) return;
    std::forward<Call>(call)(table());
    unbind();
  }

 private:
  friend class CudaBinding;

  [[nodiscard]] bool is_own_process() const noexcept;
  void bind() const;
  void unbind() const noexcept;

  std::shared_ptr<const CudaDriver> driver_;
  Device device_;
  CuDevice ordinal_ = 0;
  CuContext handle_ = nullptr;
  pid_t process_;
  mutable WaitingStreams waiting_;
};

// Makes the context current on this thread for as long as it lives; whatever was current before (torch's,
// another device's) is current again afterwards. Throws device_failed; invalid_request in a forked child.
class CudaBinding {
 public:
  explicit CudaBinding(const CudaContext& context) : context_(context) { context.bind(); }
  ~CudaBinding() { context_.unbind(); }
  CudaBinding(const CudaBinding&) = delete;
  CudaBinding& operator=(const CudaBinding&) = delete;

 private:
  const CudaContext& context_;
};

}  // namespace inrush::engine
