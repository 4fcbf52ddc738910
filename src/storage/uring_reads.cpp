#include "storage/uring_reads.hpp"

#include "base/engine_thread.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "storage/uring_ring.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <future>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace inrush::engine {

namespace {

// A length is a 32-bit field, and 4 GiB "succeeds" with nothing moved (iree-org/iree#24816).
constexpr std::uint64_t read_bytes_max = 1ULL << 30;
constexpr std::uint32_t wake_index = UINT32_MAX;  // user_data of the poll that wakes the ring's thread
// Out of kernel memory, say. Each failure in a row is a system call apart, so this is milliseconds.
constexpr int submit_failure_max = 1000;

bool is_passing(int error) { return error == EAGAIN || error == EBUSY || error == ENOMEM; }

}  // namespace

class UringReads::Ring {
 public:
  Ring(std::uint32_t depth, QueueLinks links, Decline decline)
      : links_(std::move(links)), decline_(std::move(decline)), slots_(std::max(depth, 1U)) {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) free_.push_back(slot);
  }

  // The caller's side, under the lock.
  void push(ReadRequest request);
  void push(StagingMemory staging);
  [[nodiscard]] bool stop();  // true: reads are in flight, and the thread will end with the last of them

  // The thread: reports why there is no ring, or serves reads until stop().
  void run(std::promise<std::string> started);

 private:
  struct Slot {
    std::optional<ReadRequest> request;
    bool fixed = false;
    bool repeated = false;  // failed with a fixed buffer and went again without
  };

  [[nodiscard]] std::string set_up();
  [[nodiscard]] bool take_work();  // false: the end
  void register_taken(std::vector<StagingMemory>& taken);
  void prepare(std::uint32_t slot);
  void prepare_wake();
  void submit_and_wait();
  void reap();
  void finish(std::uint32_t slot, int result);
  [[nodiscard]] ReadRequest release(std::uint32_t slot);
  void give_up(int error);
  void wake() noexcept;

  const QueueLinks links_;
  const Decline decline_;
  UniqueFd wake_fd_;

  std::mutex mutex_;  // guards the next four
  std::deque<ReadRequest> waiting_;
  std::vector<StagingMemory> staging_;
  std::vector<std::uint32_t> free_;  // slots without a read; all of them: nothing is in flight
  enum class State : std::uint8_t { serving, broken, stopping } state_ = State::serving;

  // The thread's own.
  UringRing ring_;
  std::vector<Slot> slots_;
  std::deque<std::uint32_t> prepared_;  // in the order of the submission queue, not yet taken by the kernel
  int submit_failure_count_ = 0;
  bool broken_ = false;  // the kernel takes no more; what it took before is still waited for
};

void UringReads::Ring::wake() noexcept {
  const std::uint64_t one = 1;
  // Fails only where the counter is full, and then the thread is awake.
  [[maybe_unused]] const auto written = ::write(wake_fd_.get(), &one, sizeof one);
}

void UringReads::Ring::push(ReadRequest request) {
  try {
    const std::lock_guard lock(mutex_);
    if (state_ == State::serving) {
      waiting_.push_back(std::move(request));
      wake();
      return;
    }
  } catch (
      const std::bad_alloc&) {  // it is expected already: without a completion the waiter would wait for ever
    return links_.completions->add({request.tag, 0, ENOMEM});
  }
  decline_(std::move(request));
}

void UringReads::Ring::push(StagingMemory staging) {
  const std::lock_guard lock(mutex_);
  staging_.push_back(std::move(staging));
  wake();
}

bool UringReads::Ring::stop() {
  std::deque<ReadRequest> dropped;  // ends after the lock
  const std::lock_guard lock(mutex_);
  state_ = State::stopping;
  dropped.swap(waiting_);
  wake();
  return free_.size() < slots_.size();
}

std::string UringReads::Ring::set_up() {
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.is_open()) return "eventfd: " + errno_text(errno);
  std::string refusal = ring_.set_up(static_cast<std::uint32_t>(slots_.size()) + 1);
  if (refusal.empty()) prepare_wake();
  return refusal;
}

void UringReads::Ring::run(std::promise<std::string> started) {
  std::string refusal = set_up();
  const bool refused = !refusal.empty();
  started.set_value(std::move(refusal));
  if (refused) return;
  while (take_work()) {
    submit_and_wait();
    reap();
  }
}

bool UringReads::Ring::take_work() {
  std::vector<StagingMemory> taken_staging;
  std::vector<std::uint32_t> taken;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::serving && free_.size() == slots_.size()) return false;
    taken_staging.swap(staging_);
    while (!waiting_.empty() && !free_.empty()) {
      const std::uint32_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = {std::move(waiting_.front()), false, false};
      waiting_.pop_front();
      taken.push_back(slot);
    }
  }
  register_taken(taken_staging);
  for (const std::uint32_t slot : taken) prepare(slot);
  return true;
}

void UringReads::Ring::register_taken(std::vector<StagingMemory>& taken) {
  for (const StagingMemory& staging : taken) {
    const std::string refusal = ring_.register_buffer(staging.bytes, staging.owner);
    if (!refusal.empty()) links_.fallbacks->record("fixed buffers", refusal);
  }
}

void UringReads::Ring::prepare(std::uint32_t slot) {
  Slot& read = slots_[slot];
  const ReadRequest& request = *read.request;
  // Never null: the ring has one entry for each slot and one for the wake-up.
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  const int fd = request.file->descriptor(ReadMode::direct);
  const auto length = static_cast<unsigned>(std::min<std::uint64_t>(request.target.size(), read_bytes_max));
  const std::optional<int> buffer = read.repeated ? std::nullopt : ring_.fixed_buffer(request.target);
  read.fixed = buffer.has_value();
  if (buffer) {
    io_uring_prep_read_fixed(entry, fd, request.target.data(), length, request.offset, *buffer);
  } else {
    io_uring_prep_read(entry, fd, request.target.data(), length, request.offset);
  }
  io_uring_sqe_set_data64(entry, slot);
  prepared_.push_back(slot);
}

void UringReads::Ring::prepare_wake() {
  io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
  io_uring_prep_poll_add(entry, wake_fd_.get(), POLLIN);
  io_uring_sqe_set_data64(entry, wake_index);
  prepared_.push_back(wake_index);
}

void UringReads::Ring::submit_and_wait() {
  if (broken_) {
    // Reads that the kernel took before: their memory may still be written, so they are waited for. Where the
    // kernel refuses even that, the thread sleeps until somebody wakes it and tries again; the queue's
    // deadline tells the caller.
    io_uring_cqe* completion = nullptr;
    const int waited = io_uring_wait_cqe(ring_.get(), &completion);
    if (waited == 0 || waited == -EINTR) return;
    pollfd woken{wake_fd_.get(), POLLIN, 0};
    ::poll(&woken, 1, -1);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto drained = ::read(wake_fd_.get(), &count, sizeof count);
    return;
  }
  const int submitted = io_uring_submit_and_wait(ring_.get(), 1);
  if (submitted >= 0) {
    prepared_.erase(prepared_.begin(), prepared_.begin() + submitted);
    submit_failure_count_ = 0;
  } else if (submitted != -EINTR) {
    if (!is_passing(-submitted) || ++submit_failure_count_ > submit_failure_max) give_up(-submitted);
  }
}

void UringReads::Ring::reap() {
  io_uring_cqe* completion = nullptr;
  while (io_uring_peek_cqe(ring_.get(), &completion) == 0) {
    const auto index = static_cast<std::uint32_t>(io_uring_cqe_get_data64(completion));
    const int result = completion->res;
    io_uring_cqe_seen(ring_.get(), completion);
    if (index != wake_index) {
      finish(index, result);
      continue;
    }
    std::uint64_t count = 0;
    [[maybe_unused]] const auto drained = ::read(wake_fd_.get(), &count, sizeof count);
    if (!broken_) prepare_wake();
  }
}

void UringReads::Ring::finish(std::uint32_t slot, int result) {
  Slot& read = slots_[slot];
  if (read.fixed && !broken_ && (result == -EFAULT || result == -EINVAL || result == -EOPNOTSUPP)) {
    // Some kernels fail here for the buffer's sake (axboe/liburing#994); without it the read says what is
    // really wrong.
    read.repeated = true;
    prepare(slot);
    return;
  }
  if (read.repeated && result >= 0) {
    links_.fallbacks->record("fixed buffers", "a read failed with a fixed buffer and passed without");
    ring_.stop_using_fixed_buffers();
  }
  const std::uint64_t tag = release(slot).tag;
  const bool failed = result < 0;
  links_.completions->add({tag, failed ? 0 : static_cast<std::uint64_t>(result), failed ? -result : 0});
}

// The slot counts as free before the completion is seen: who has every completion can join this thread.
ReadRequest UringReads::Ring::release(std::uint32_t slot) {
  ReadRequest request = std::move(*slots_[slot].request);
  slots_[slot].request.reset();
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
  return request;
}

void UringReads::Ring::give_up(int error) {
  links_.fallbacks->record("io_uring", "io_uring_enter during a load: " + errno_text(error));
  broken_ = true;
  std::deque<ReadRequest> declined;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::serving) state_ = State::broken;
    declined.swap(waiting_);
  }
  for (const std::uint32_t slot : prepared_) {
    if (slot != wake_index) declined.push_back(release(slot));
  }
  prepared_.clear();
  for (ReadRequest& request : declined) decline_(std::move(request));
}

std::unique_ptr<UringReads> UringReads::start(std::uint32_t depth, const QueueLinks& links, Decline decline) {
  std::promise<std::string> started;
  std::future<std::string> refusal = started.get_future();
  auto ring = std::make_shared<Ring>(depth, links, std::move(decline));
  std::thread thread;
  try {
    // std::function asks for a copyable body, a promise is not.
    auto promise = std::make_shared<std::promise<std::string>>(std::move(started));
    thread = start_engine_thread("inrush-ring", [ring, promise] { ring->run(std::move(*promise)); });
  } catch (const std::system_error& error) {
    links.fallbacks->record("io_uring", fmt::format("thread of the ring: {}", error.what()));
    return nullptr;
  }
  const std::string reason = refusal.get();
  if (reason.empty()) return std::unique_ptr<UringReads>(new UringReads(std::move(ring), std::move(thread)));
  thread.join();
  links.fallbacks->record("io_uring", reason);
  return nullptr;
}

UringReads::UringReads(std::shared_ptr<Ring> ring, std::thread thread)
    : ring_(std::move(ring)), thread_(std::move(thread)) {}

UringReads::~UringReads() {
  if (ring_->stop()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void UringReads::submit(ReadRequest request) { ring_->push(std::move(request)); }

void UringReads::register_staging(StagingMemory staging) { ring_->push(std::move(staging)); }

}  // namespace inrush::engine
