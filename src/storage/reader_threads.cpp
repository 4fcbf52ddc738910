#include "storage/reader_threads.hpp"

#include <inrush/error.hpp>

#include "base/engine_thread.hpp"
#include "storage/residency.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

namespace inrush::engine {

struct ReaderThreads::Shared {
  std::shared_ptr<CompletionList> completions;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<ReadRequest> waiting;
  std::vector<bool> reading;  // by thread: inside File::read(), for who knows how long
  bool stopping = false;

  // The next request, once there is one; nothing when the pool ends.
  std::optional<ReadRequest> take(std::size_t thread) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stopping || !waiting.empty(); });
    if (stopping) return std::nullopt;
    std::optional<ReadRequest> request = std::move(waiting.front());
    waiting.pop_front();
    reading[thread] = true;
    return request;
  }

  void run(std::size_t thread) {
    while (std::optional<ReadRequest> request = take(thread)) {
      const ReadOutcome outcome = request->file->read(request->mode, request->offset, request->target);
      const std::uint64_t tag = request->tag;
      // File and target go before the completion is seen, and the thread counts as idle before that too: who
      // has every completion finds no reference left and can join every thread.
      request.reset();
      {
        const std::lock_guard lock(mutex);
        reading[thread] = false;
      }
      completions->add({tag, outcome.error == 0 ? outcome.moved_bytes : 0, outcome.error});
    }
  }
};

ReaderThreads::ReaderThreads(std::uint32_t reader_count, QueueLinks links)
    : shared_(std::make_shared<Shared>()) {
  shared_->completions = std::move(links.completions);
  shared_->reading.resize(reader_count);
  threads_.reserve(reader_count);
  for (std::uint32_t thread = 0; thread < reader_count; ++thread) {
    try {
      threads_.push_back(
          start_engine_thread("inrush-read", [shared = shared_, thread] { shared->run(thread); }));
    } catch (const std::system_error& error) {
      const std::string reason = fmt::format("{} of {} started: {}", thread, reader_count, error.what());
      if (thread == 0)
        throw Error(ErrorCode::out_of_memory, "reader threads: " + reason, error.code().value());
      links.fallbacks->record("reader threads", reason);
      return;
    }
  }
}

ReaderThreads::~ReaderThreads() {
  std::deque<ReadRequest>
      dropped;  // ends outside the lock: the last owner of a target may do anything in its destructor
  std::vector<bool> reading;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    dropped.swap(shared_->waiting);
    reading = shared_->reading;
    shared_->changed.notify_all();
  }
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    if (reading[thread]) {
      threads_[thread].detach();
    } else {
      threads_[thread].join();
    }
  }
}

void ReaderThreads::submit(ReadRequest request) noexcept {
  add(std::move(request), [this](ReadRequest next) { shared_->waiting.push_back(std::move(next)); });
}

void ReaderThreads::put_back(ReadRequest request) noexcept {
  add(std::move(request), [this](ReadRequest next) { shared_->waiting.push_front(std::move(next)); });
}

template <typename Push>
void ReaderThreads::add(ReadRequest request, Push&& push) noexcept {
  const std::uint64_t tag = request.tag;
  try {
    const std::lock_guard lock(shared_->mutex);
    push(std::move(request));
    shared_->changed.notify_one();
  } catch (const std::bad_alloc&) {
    shared_->completions->add({tag, 0, ENOMEM});
  }
}

bool ReaderThreads::read_one_resident() noexcept {
  std::optional<ReadRequest> request;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->waiting.empty()) return false;
    const ReadRequest& next = shared_->waiting.front();
    if (next.mode != ReadMode::buffered || next.file->descriptor(ReadMode::buffered) < 0) return false;
    request = std::move(shared_->waiting.front());
    shared_->waiting.pop_front();
  }
  const std::uint64_t tag = request->tag;
  const std::uint64_t moved_bytes =
      read_resident(request->file->descriptor(ReadMode::buffered), request->offset, request->target);
  if (moved_bytes == 0) {
    put_back(std::move(*request));
    return false;
  }
  request.reset();
  shared_->completions->add({tag, moved_bytes, 0});
  return true;
}

}  // namespace inrush::engine
