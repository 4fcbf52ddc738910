#include "storage/local_queue.hpp"

#include <utility>

namespace inrush::engine {

LocalQueue::LocalQueue(LocalQueueOptions options) : completions_(std::make_shared<CompletionList>()) {
  if (options.fallbacks == nullptr) options.fallbacks = std::make_shared<Fallbacks>();
  const QueueLinks links{completions_, options.fallbacks};
  readers_ = std::make_shared<ReaderThreads>(options.reader_count, links);
  if (options.io_uring == IoUring::off) return;
  // Weak: a ring that is left behind with a read in flight must not keep the reader threads alive.
  auto decline = [readers = std::weak_ptr(readers_)](ReadRequest request) {
    if (const auto alive = readers.lock()) alive->submit(std::move(request));
  };
  uring_ = UringReads::start(options.ring_depth, links, std::move(decline));
  register_staging(std::move(options.staging));
}

LocalQueue::~LocalQueue() = default;

void LocalQueue::submit(ReadRequest request) {
  completions_->expect();
  if (uring_ != nullptr && request.mode == ReadMode::direct &&
      request.file->descriptor(ReadMode::direct) >= 0) {
    uring_->submit(std::move(request));
  } else {
    readers_->submit(std::move(request));
  }
}

std::size_t LocalQueue::wait(std::span<Completion> completions, Clock::time_point until) {
  return completions_->wait(completions, until);
}

std::size_t LocalQueue::in_flight_count() const noexcept { return completions_->in_flight_count(); }

void LocalQueue::register_staging(StagingMemory staging) {
  if (uring_ != nullptr && !staging.bytes.empty()) uring_->register_staging(std::move(staging));
}

}  // namespace inrush::engine
