// One load in progress: a thread that runs the path, and the consumer's side of it. Made by Loader::start().
#pragma once

#include <inrush/loader.hpp>

#include "base/fallbacks.hpp"
#include "base/stop_signal.hpp"
#include "loader/file_set.hpp"
#include "loader/load_report.hpp"
#include "loader/load_state.hpp"
#include "loader/staging_pool.hpp"
#include "transfer/transfer_path.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace inrush::engine {

// What Loader::start() has prepared.
struct LoadParts {
  Checkpoint checkpoint;
  LoadRequest request;
  Plan plan;
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<const Store> store;
  std::shared_ptr<StagingPool> pool;
  IoUring io_uring = IoUring::automatic;
  LogFunction log;
  Clock::time_point start;
  double plan_seconds = 0;
};

class LoadImpl final : public Load, private TransferSink {
 public:
  explicit LoadImpl(LoadParts parts);
  ~LoadImpl() override;

  // Opens the files, starts the path's thread, allocates what the window allows. Throws; the destructor then
  // undoes all.
  void begin();

  [[nodiscard]] std::optional<Tensor> next() override;
  [[nodiscard]] std::optional<Tensor> next_for(std::chrono::nanoseconds wait_max) override;
  [[nodiscard]] Tensor get(std::string_view name) override;
  [[nodiscard]] bool done() const override;
  void cancel() noexcept override;
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] Report report() const override;
  [[nodiscard]] const Plan& plan() const noexcept override { return parts_.plan; }

 private:
  // TransferSink: on the path's thread.
  std::optional<Work> take() override;
  bool exhausted() const override;
  void wait_for_work(Clock::time_point until) override;
  std::string describe(std::uint32_t piece) const override;
  void first_byte() override;
  void arrived(const Arrival& arrival) override;
  void orphaned(std::uint64_t count) noexcept override;

  void run_path() noexcept;
  void register_ring();
  [[nodiscard]] Error with_progress(const Error& error) const;
  [[nodiscard]] std::vector<std::string> taken_tensors_of_changed_file() const;

  // The rest: on the consumer's thread.
  void settle();
  void log_fallbacks() const;
  void require_own_process() const;
  void allocate_in_window();
  void allocate_slab(std::uint32_t slab);
  [[nodiscard]] SlabMemory allocate_memory(const Slab& slab);
  [[nodiscard]] std::optional<Tensor> next_until(Clock::time_point until);
  [[nodiscard]] std::uint32_t placement_of(std::string_view name) const;
  [[nodiscard]] Tensor make_tensor(const LoadState::Taken& taken) const;

  const LoadParts parts_;
  const pid_t pid_;
  StopSignal stop_;
  Fallbacks fallbacks_;
  LoadReport report_;
  FileSet files_;
  std::unique_ptr<LoadState> state_;  // apart, so that a forked child can leave it
  std::unique_ptr<Staging> staging_;
  bool staging_is_spoilt_ = false;  // set by the path's thread, read after it was joined
  std::unique_ptr<std::thread>
      path_thread_;  // likewise: a handle of the parent's may name a thread of the child
};

}  // namespace inrush::engine
