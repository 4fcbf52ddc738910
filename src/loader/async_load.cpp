#include "loader/async_load.hpp"

#include <inrush/error.hpp>

#include "base/engine_thread.hpp"
#include "loader/interruption.hpp"
#include "loader/settings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace inrush::engine {

namespace {

// NaN in every floating type, so that nobody takes memory of an earlier owner for weights.
constexpr std::byte unfilled{0xFF};
// A stream that waits for a value would wait for ever if the load did.
constexpr auto default_deadline = std::chrono::minutes(10);
// The path gets this long after its deadline to end by itself.
constexpr auto watchdog_grace = std::chrono::seconds(5);
constexpr auto poll = std::chrono::milliseconds(20);
// A device fills terabytes a second. Longer takes what was queued before on a stream that owns the memory,
// and for ever where streams of others wait in every queue of the device for what comes after this load.
constexpr auto fill_patience = std::chrono::seconds(10);
constexpr auto fill_poll = std::chrono::microseconds(50);

// What streams that wait may take of the device's queues: the rest is for what they wait for.
std::uint32_t waiting_streams_max() {
  const std::uint32_t count = device_queue_count() / 2;
  if (count > 0) return count;
  // Seen to hang on an H200: the stream that waits stands before the copies that it waits for.
  throw Error(
      ErrorCode::environment_unfit,
      "CUDA_DEVICE_MAX_CONNECTIONS=1 gives all streams one queue of the device, where one that waits for a "
      "value holds up the copies that it waits for: wait by event, or allow more connections");
}

class AsyncLoadImpl final : public AsyncLoad, private LoadObserver {
 public:
  AsyncLoadImpl(LoadParts parts, StreamWait wait);
  ~AsyncLoadImpl() override;

  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept override { return tensors_; }
  void wait(std::string_view name, void* stream) override;
  void wait_all(void* stream) override;
  void finish() override;
  [[nodiscard]] bool done() const override;
  void cancel() noexcept override { load_->cancel(); }
  void close() noexcept override;
  [[nodiscard]] Progress progress() const override { return load_->progress(); }
  [[nodiscard]] Report report() const override { return load_->report(); }
  [[nodiscard]] const Plan& plan() const noexcept override { return load_->plan(); }

 private:
  // On the path's thread.
  void prepared() override;
  void submitted(const Piece& piece) override;
  void arrived(const Piece& piece) override;
  void ended(std::exception_ptr error) noexcept override;

  void fill_incomplete(CopyStream& stream) noexcept;
  [[nodiscard]] std::uint64_t queue_fills(CopyStream& stream) const;
  void release_streams() noexcept;
  void watch(Clock::time_point give_up);
  void fill_behind_path() noexcept;
  template <typename Ready>
  void wait_until(Ready&& ready);
  void order(std::uint32_t flag, void* stream);

  const pid_t pid_ = ::getpid();
  const std::shared_ptr<Gpu> gpu_;
  const std::function<bool()> interrupted_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> changed_;  // apart, so that a forked child can leave it
  std::vector<std::uint32_t> unsubmitted_;            // pieces, by placement
  std::vector<std::uint32_t> missing_;                // likewise: not on the device yet
  std::uint64_t unsubmitted_count_ = 0;               // pieces
  bool has_begun_ = false;                            // all memory is there
  bool is_prepared_ = false;
  bool ended_ = false;
  std::exception_ptr error_;
  std::unique_ptr<StreamFlags> flags_;        // one a placement and one for all; null: streams wait by event
  std::unique_ptr<CopyStream> spare_stream_;  // the watchdog's, made before any stream waits
  std::unique_ptr<LoadImpl> load_;            // goes first: its end sets all flags
  std::unique_ptr<std::thread> watchdog_;     // likewise
  std::vector<Tensor> tensors_;
};

AsyncLoadImpl::AsyncLoadImpl(LoadParts parts, StreamWait wait)
    : gpu_(parts.gpu),
      interrupted_(parts.request.interrupted),
      changed_(std::make_unique<std::condition_variable>()),
      unsubmitted_(parts.plan.placements.size()),
      unsubmitted_count_(parts.plan.pieces.size()) {
  for (const Piece& piece : parts.plan.pieces) {
    for (std::uint32_t i = 0; i < piece.placement_count; ++i) ++unsubmitted_[piece.first_placement + i];
  }
  missing_ = unsubmitted_;
  const auto placement_count = static_cast<std::uint32_t>(parts.plan.placements.size());
  if (wait == StreamWait::wait_value) {
    const std::uint32_t stream_count_max = waiting_streams_max();
    spare_stream_ = gpu_->open_stream();
    flags_ = gpu_->open_flags({placement_count + 1, stream_count_max});
  }
  const Clock::time_point give_up = later(later(parts.start, parts.request.deadline), watchdog_grace);
  for (std::uint32_t i = 0; flags_ != nullptr && i < placement_count; ++i) {
    if (missing_[i] == 0) flags_->set(i);  // without bytes
  }
  parts.observer = this;
  parts.streams_wait_for_values = flags_ != nullptr;
  load_ = std::make_unique<LoadImpl>(std::move(parts));
  load_->begin();
  {
    const std::lock_guard lock(mutex_);
    has_begun_ = true;
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  tensors_.reserve(placement_count);
  for (std::uint32_t i = 0; i < placement_count; ++i) tensors_.push_back(load_->tensor_of(i));
  if (load_->plan().pieces.empty()) ended(nullptr);  // nobody else will say so
  if (flags_ == nullptr) return;
  try {
    watchdog_ = std::make_unique<std::thread>(
        start_engine_thread("inrush-watch", [this, give_up] { watch(give_up); }));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_memory, fmt::format("start a thread: {}", error.what()),
                error.code().value());
  }
}

AsyncLoadImpl::~AsyncLoadImpl() {
  if (::getpid() == pid_) {
    AsyncLoadImpl::close();
    return;
  }
  // A forked child: the watchdog and whoever waits exist only in the parent.
  static_cast<void>(watchdog_.release());
  static_cast<void>(changed_.release());
}

void AsyncLoadImpl::close() noexcept {
  if (::getpid() != pid_) return;
  // The watchdog uses what the load gives back when it closes; it ends with the path, or by the deadline.
  load_->cancel();
  if (watchdog_ != nullptr && watchdog_->joinable()) watchdog_->join();
  load_->close();
}

void AsyncLoadImpl::prepared() {
  const std::lock_guard lock(mutex_);
  is_prepared_ = true;
  changed_->notify_all();
}

void AsyncLoadImpl::submitted(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < piece.placement_count; ++i) --unsubmitted_[piece.first_placement + i];
  --unsubmitted_count_;
  changed_->notify_all();
}

void AsyncLoadImpl::arrived(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;  // the watchdog has spoken
  for (std::uint32_t i = 0; i < piece.placement_count; ++i) {
    const std::uint32_t placement = piece.first_placement + i;
    if (--missing_[placement] == 0 && flags_ != nullptr) flags_->set(placement);
  }
}

void AsyncLoadImpl::ended(std::exception_ptr error) noexcept {
  if (error != nullptr) {
    const std::lock_guard lock(mutex_);
    if (!ended_)
      missing_ = unsubmitted_;  // what was queued is there: the path waited for it, and streams may read it
    // Memory that is still being allocated cannot be filled: load_async() throws, and nobody gets a tensor.
    if (!has_begun_) {
      ended_ = true;
      error_ = std::move(error);
      return;
    }
  }
  if (error != nullptr && load_->has_staging()) fill_incomplete(load_->stream());
  const std::lock_guard lock(mutex_);
  release_streams();
  if (!ended_) error_ = std::move(error);
  ended_ = true;
  changed_->notify_all();
}

// Nothing is in flight, or never will be.
void AsyncLoadImpl::fill_incomplete(CopyStream& stream) noexcept {
  try {
    const std::uint64_t filled = queue_fills(stream);
    const Clock::time_point give_up = Clock::now() + fill_patience;
    while (flags_ != nullptr && stream.reached() < filled && Clock::now() < give_up)
      std::this_thread::sleep_for(fill_poll);
    {
      const std::lock_guard lock(mutex_);
      release_streams();  // late: they stand in its way
    }
    stream.wait(filled);
  } catch (const std::exception&) {  // the device is gone, and with it who could read
  }
}

std::uint64_t AsyncLoadImpl::queue_fills(CopyStream& stream) const {
  const Plan& plan = load_->plan();
  for (std::uint32_t i = 0; i < plan.placements.size(); ++i) {
    if (missing_[i] == 0) continue;
    const Tensor tensor = load_->tensor_of(i);
    if (tensor.data != nullptr) stream.fill(tensor.data, tensor.size_bytes, unfilled);
  }
  return stream.record();
}

void AsyncLoadImpl::release_streams() noexcept {
  if (flags_ == nullptr) return;
  for (std::uint32_t i = 0; i <= missing_.size(); ++i) flags_->set(i);
}

// The path ends by its deadline. Where it does not (a mount that died inside an open), streams must go on all
// the same.
void AsyncLoadImpl::watch(Clock::time_point give_up) {
  {
    std::unique_lock lock(mutex_);
    if (changed_->wait_until(lock, give_up, [this] { return ended_; })) return;
    error_ = std::make_exception_ptr(
        Error(ErrorCode::timed_out, "the load did not end by its deadline; the mount may be dead"));
    ended_ = true;  // whatever the path says from now on, and missing_ stays as it is
    changed_->notify_all();
  }
  load_->cancel();
  std::promise<void> filled;
  const std::future<void> is_filled = filled.get_future();
  std::thread filler;
  try {
    filler = start_engine_thread("inrush-fill", [this, &filled] {
      fill_behind_path();
      filled.set_value();
    });
    is_filled.wait_for(fill_patience);
  } catch (const std::system_error&) {  // no thread to be had: a call of the driver's may not come back here
  }
  {
    const std::lock_guard lock(mutex_);
    release_streams();
  }
  if (filler.joinable()) filler.join();
}

// Behind the path's stream, and so behind those that own the memory.
void AsyncLoadImpl::fill_behind_path() noexcept {
  try {
    load_->stream().order_before(spare_stream_->handle());
  } catch (const std::exception&) {  // the device is gone, and with it who could read
    return;
  }
  fill_incomplete(*spare_stream_);
}

template <typename Ready>
void AsyncLoadImpl::wait_until(Ready&& ready) {
  Interruption interruption(interrupted_);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const bool is_over = changed_->wait_for(lock, poll, [&] { return ended_ || ready(); });
      if (error_ != nullptr) std::rethrow_exception(error_);
      if (is_over) return;
    }
    interruption.check();
  }
}

void AsyncLoadImpl::order(std::uint32_t flag, void* stream) {
  if (flags_ == nullptr) {
    if (load_->has_staging()) load_->stream().order_before(stream);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  flags_->wait(flag, stream);
}

void AsyncLoadImpl::wait(std::string_view name, void* stream) {
  load_->require_own_process();
  const std::uint32_t placement = load_->placement_of(name);
  wait_until([&] { return flags_ != nullptr ? is_prepared_ : unsubmitted_[placement] == 0; });
  order(placement, stream);
}

void AsyncLoadImpl::wait_all(void* stream) {
  load_->require_own_process();
  wait_until([&] { return flags_ != nullptr ? is_prepared_ : unsubmitted_count_ == 0; });
  order(static_cast<std::uint32_t>(missing_.size()), stream);
}

void AsyncLoadImpl::finish() {
  load_->require_own_process();
  wait_until([] { return false; });
  load_->close();
}

bool AsyncLoadImpl::done() const {
  load_->require_own_process();
  const std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace

LoadRequest async_request(const LoadRequest& request, StreamWait wait) {
  if (request.window_bytes_max > 0) {
    throw Error(ErrorCode::invalid_request,
                "load_async has no window: the memory of all tensors is there at once; use start()");
  }
  LoadRequest bound = request;
  if (wait == StreamWait::wait_value && bound.deadline.count() == 0) bound.deadline = default_deadline;
  return bound;
}

std::unique_ptr<AsyncLoad> start_async_load(LoadParts parts, StreamWait wait) {
  return std::make_unique<AsyncLoadImpl>(std::move(parts), wait);
}

}  // namespace inrush::engine
