// Copies on one CUDA stream of its own. Tickets are events from a small pool that is used again and again.
#pragma once

#include "gpu/copy_kernel.hpp"
#include "gpu/copy_stage.hpp"
#include "gpu/cuda_context.hpp"
#include "gpu/gpu.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace inrush::engine {

class CudaCopyStream final : public CopyStream {
 public:
  // Throws device_failed.
  explicit CudaCopyStream(std::shared_ptr<const CudaContext> context);
  ~CudaCopyStream() override;

  std::uint64_t copy(std::span<const Copy> copies) override;
  void use_kernel(KernelUse use, std::uint64_t reserved_bytes) override;
  [[nodiscard]] const std::string& kernel_refusal() const noexcept override;
  [[nodiscard]] const std::string& stage_refusal() const noexcept override { return stage_refusal_; }
  [[nodiscard]] std::uint64_t record() override;
  [[nodiscard]] std::uint64_t reached() override;
  void wait(std::uint64_t ticket) override;
  void order_after(void* stream) override;
  void order_before(void* stream) override;
  [[nodiscard]] void* handle() const noexcept override { return stream_.get(); }
  void fill(void* target, std::uint64_t size_bytes, std::byte value) override;

 private:
  struct DestroyStream {
    const CudaContext* context;
    void operator()(CuStream stream) const noexcept;
  };
  struct DestroyEvent {
    const CudaContext* context;
    void operator()(CuEvent event) const noexcept;
  };
  using Stream = std::unique_ptr<CuStreamObject, DestroyStream>;
  using Event = std::unique_ptr<CuEventObject, DestroyEvent>;
  struct Pending {
    std::uint64_t ticket;
    Event event;
  };

  [[nodiscard]] Stream make_stream() const;
  [[nodiscard]] Event make_event() const;
  void begin_kernel();
  [[nodiscard]] std::optional<std::uint64_t> kernel_offset(std::span<const Copy> copies);
  [[nodiscard]] std::optional<std::uint64_t> device_offset_of(const Copy& copy) const;
  [[nodiscard]] std::uint64_t scatter(CopySource from, std::uint64_t device_offset);
  [[nodiscard]] std::uint64_t scatter(std::span<CopyRun> runs, CopySource from, std::uint64_t device_offset);
  void make_kernel() noexcept;
  [[nodiscard]] bool has_stage();
  void start(const Copy& copy) const;
  void start_run(const Copy& copy) const;
  [[nodiscard]] std::uint64_t bytes_in_allocation(CuAddress address) const;
  void start_rows(const Copy& copy) const;
  void retire();

  // The order matters: the context goes last.
  std::shared_ptr<const CudaContext> context_;
  Stream stream_;
  // The kernel is made on a thread, once there is something for it: translating it for the first time took
  // 0.2 s on an H200 machine, and until then copies do. Both results belong to the thread until it is done.
  std::thread kernel_thread_;
  std::atomic<bool> kernel_is_done_ = false;
  KernelUse kernel_use_ = KernelUse::staged;
  std::uint64_t reserved_bytes_ = 0;
  std::unique_ptr<CopyKernel> kernel_;
  std::string kernel_refusal_;
  std::unique_ptr<CopyStage> stage_;  // null: the kernel reads host memory itself
  std::string stage_refusal_;         // of the load that uses the stream
  std::vector<CopyRun> runs_;
  std::vector<Event> idle_events_;
  std::deque<Pending> pending_;  // oldest first
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  std::mutex order_mutex_;  // one event serves every order: a wait keeps to the record that it found
  Event order_event_;
};

}  // namespace inrush::engine
