// One load in progress: a thread that runs the path, and the consumer's side of it. Made by Loader::start().
#pragma once

#include <inrush/loader.hpp>

#include "base/fallbacks.hpp"
#include "base/stop_signal.hpp"
#include "loader/cufile_opening.hpp"
#include "loader/file_set.hpp"
#include "loader/interruption.hpp"
#include "loader/load_report.hpp"
#include "loader/load_state.hpp"
#include "loader/read_ahead.hpp"
#include "loader/staging_pool.hpp"
#include "transfer/piece_run.hpp"
#include "transfer/transfer_path.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace inrush::engine {

// Told, on the path's thread, how far a load is.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  // From now on nothing is done that waits for streams. Before anything is submitted, and not where the load
  // fails before.
  virtual void prepared() = 0;
  virtual void submitted(const Piece& piece) = 0;
  virtual void arrived(const Piece& piece) = 0;
  // Nothing is in flight any more. `error` null: every tensor is on the device. Before anybody else hears of
  // it.
  virtual void ended(std::exception_ptr error) noexcept = 0;
};

// What Loader::start() has prepared.
struct LoadParts {
  Checkpoint checkpoint;
  LoadRequest request;
  Plan plan;
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<const Store> store;
  std::shared_ptr<StagingPool> pool;
  IoUring io_uring = IoUring::automatic;
  std::shared_ptr<CufileOpening> cufile = {};  // null where the plan does not go by cuFile
  LogFunction log;
  LoadObserver* observer = nullptr;  // outlives the load; may be null
  // Streams of the caller's wait, once the observer heard prepared(), for values that the CPU sets when bytes
  // have arrived: nothing may be done then that waits for them.
  bool streams_wait_for_values = false;
  std::unique_ptr<const ReadAhead> ahead = {};  // ended; null where the device was open
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
  [[nodiscard]] std::vector<Tensor> take(const TakeLimits& limits) override;
  [[nodiscard]] Tensor get(std::string_view name) override;
  [[nodiscard]] bool done() const override;
  void cancel() noexcept override;
  void close() noexcept override;
  [[nodiscard]] Progress progress() const override;
  [[nodiscard]] Report report() const override;
  [[nodiscard]] const Plan& plan() const noexcept override { return parts_.plan; }

  // Throws invalid_request in a forked child.
  void require_own_process() const;
  // For a load whose tensors are used before they have arrived; begin() has returned.
  [[nodiscard]] Tensor tensor_of(std::uint32_t placement) const;
  [[nodiscard]] std::uint32_t placement_of(std::string_view name) const;
  [[nodiscard]] CopyStream& stream() noexcept { return *staging_->stream; }
  [[nodiscard]] bool has_staging() const noexcept { return staging_ != nullptr; }

 private:
  // TransferSink: on the path's thread.
  std::optional<Work> take() override;
  bool exhausted() const override;
  void wait_for_work(Clock::time_point until) override;
  std::byte* slab_of(std::uint32_t piece) const override;
  void wait_for_slab(Clock::time_point until) override;
  std::string describe(std::uint32_t piece) const override;
  void first_byte() override;
  void submitted(std::uint32_t piece) override;
  void arrived(const Arrival& arrival) override;
  void orphaned(std::uint64_t count) noexcept override;

  void run_path() noexcept;
  void prepare_for_observer();
  void register_ring();
  void set_kernel_use();
  void run_transfer();
  void run_staged(StagedParts staged);
  void tell_ended(std::exception_ptr error) noexcept;
  [[nodiscard]] Error with_progress(const Error& error) const;
  [[nodiscard]] std::vector<std::string> taken_tensors_of_changed_file() const;

  // The rest: on the consumer's thread.
  void settle();
  void log_fallbacks() const;
  void end_with(std::exception_ptr error);
  void settle_if_failed();
  void check_interruption();
  void check_interruption_when_due();
  void allocate_in_window();
  void open_targets();
  void note_allocated();
  void allocate_slab(std::uint32_t slab);
  [[nodiscard]] SlabMemory allocate_memory(const Slab& slab);
  void take_until(Clock::time_point until, const std::function<bool()>& take);
  [[nodiscard]] Tensor wait_for_tensor(std::uint32_t placement);
  [[nodiscard]] Tensor make_tensor(const LoadState::Taken& taken) const;
  void set_empty_target(Tensor& tensor) const;

  // Apart, so that a forked child can leave it: functions and owners in it are the caller's.
  std::unique_ptr<const LoadParts> kept_parts_;
  const LoadParts& parts_;
  const pid_t pid_;
  Interruption interruption_;
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
