#include "storage/local_queue.hpp"

#include <utility>

namespace inrush::engine {

LocalQueue::LocalQueue(LocalQueueOptions options)
    : links_{std::make_shared<CompletionList>(),
             options.fallbacks != nullptr ? options.fallbacks : std::make_shared<Fallbacks>()},
      waiter_reads_(options.waiter_reads),
      readers_(std::make_shared<ReaderThreads>(options.reader_count, links_)) {
  if (options.io_uring == IoUring::off) return;
  // Weak: a ring that is left behind with a read in flight must not keep the reader threads alive.
  auto decline = [readers = std::weak_ptr(readers_)](ReadRequest request) {
    if (const auto alive = readers.lock()) alive->submit(std::move(request));
  };
  uring_ = UringReads::start(options.ring_depth, links_, std::move(decline));
  register_staging(std::move(options.staging));
}

LocalQueue::~LocalQueue() = default;

void LocalQueue::submit(ReadRequest request) {
  const bool is_for_device = request.mode == ReadMode::device;
  if (is_for_device && device_readers_ == nullptr)
    device_readers_ = std::make_unique<ReaderThreads>(device_reader_count, links_);
  links_.completions->expect();
  if (is_for_device) {
    device_readers_->submit(std::move(request));
  } else if (uring_ != nullptr && request.mode == ReadMode::direct &&
             request.file->descriptor(ReadMode::direct) >= 0) {
    uring_->submit(std::move(request));
  } else {
    readers_->submit(std::move(request));
  }
}

std::size_t LocalQueue::wait(std::span<Completion> completions, Clock::time_point until) {
  if (waiter_reads_ && !links_.completions->has_any()) static_cast<void>(readers_->read_one_resident());
  return links_.completions->wait(completions, until);
}

std::size_t LocalQueue::in_flight_count() const noexcept { return links_.completions->in_flight_count(); }

void LocalQueue::register_staging(StagingMemory staging) {
  if (uring_ != nullptr && !staging.bytes.empty()) uring_->register_staging(std::move(staging));
}

}  // namespace inrush::engine
