#include "fakes/libcuda/fake_world.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace inrush::engine {

using fakes::Lock;
using fakes::Place;
using fakes::QueuedCopy;
using fakes::QueuedRecord;
using fakes::QueuedWait;
using fakes::world;

CuStreamObject::CuStreamObject(CuContext owner, unsigned creation_flags)
    : context(owner), flags(creation_flags), random_(world().seed++), worker_([this] { work(); }) {}

CuStreamObject::~CuStreamObject() {
  if (worker_.joinable()) worker_.detach();  // only a stream that leaked to the end of the process
}

void CuStreamObject::push(fakes::Queued item) {
  queue_.push_back(std::move(item));
  world().changed.notify_all();
}

void CuStreamObject::drain(Lock& lock) {
  const auto event = std::make_shared<CuEventObject>();
  event->recorded = 1;
  push(QueuedRecord{{event, 1}});
  world().changed.wait(lock, [&] { return event->completed == 1; });
}

void CuStreamObject::close(Lock& lock) {
  drain(lock);
  closing_ = true;
  world().changed.notify_all();
  lock.unlock();
  worker_.join();
  lock.lock();
}

namespace {

// Pages that are pinned stay when their file is cut; here they go, and what lay in them cannot be read. The
// kernel says so where a touch would end the process.
void read_memory(std::byte* target, const std::byte* source, std::uint64_t size_bytes) {
  const iovec local = {target, size_bytes};
  const iovec remote = {const_cast<std::byte*>(source), size_bytes};
  const ssize_t count = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
  if (count < 0 && errno != EFAULT) std::memcpy(target, source, size_bytes);  // not allowed here
}

}  // namespace

template <typename Match>
bool CuStreamObject::any_copy(Match&& match) const {
  const auto matches = [&](const QueuedCopy& copy) {
    return copy.runs == nullptr ? match(copy) : std::ranges::any_of(fakes::copies_of(copy), match);
  };
  if (std::ranges::any_of(late_, matches)) return true;
  return std::ranges::any_of(queue_, [&](const fakes::Queued& item) {
    const auto* copy = std::get_if<QueuedCopy>(&item);
    return copy != nullptr && matches(*copy);
  });
}

bool CuStreamObject::reads(const std::byte* start, std::uint64_t bytes) const {
  return any_copy([&](const QueuedCopy& copy) {
    return copy.source != nullptr && copy.source < start + bytes && start < copy.source + copy.source_span();
  });
}

bool CuStreamObject::writes(CuAddress start, std::uint64_t bytes) const {
  return any_copy([&](const QueuedCopy& copy) {
    return copy.target < start + bytes && start < copy.target + copy.target_span();
  });
}

bool CuStreamObject::waits_in(const std::byte* start, std::uint64_t bytes) const {
  return std::ranges::any_of(queue_, [&](const fakes::Queued& item) {
    const auto* wait = std::get_if<fakes::QueuedValueWait>(&item);
    const auto* word = wait == nullptr ? nullptr : reinterpret_cast<const std::byte*>(wait->word);
    return word != nullptr && start <= word && word < start + bytes;
  });
}

bool CuStreamObject::can_run() const {
  if (held || queue_.empty()) return false;
  if (const auto* value = std::get_if<fakes::QueuedValueWait>(&queue_.front()))
    return __atomic_load_n(value->word, __ATOMIC_ACQUIRE) >= value->value;
  const auto* wait = std::get_if<QueuedWait>(&queue_.front());
  return wait == nullptr || wait->event->completed >= wait->generation;
}

void CuStreamObject::work() {
  Lock lock(world().mutex);
  while (true) {
    // The CPU writes a word without a word to anybody.
    while (!closing_ && !can_run()) world().changed.wait_for(lock, std::chrono::milliseconds(1));
    if (closing_) return;
    run_front(lock);
    world().changed.notify_all();
  }
}

void CuStreamObject::run_front(Lock& lock) {
  const auto item = std::move(queue_.front());
  queue_.pop_front();
  if (const auto* copy = std::get_if<QueuedCopy>(&item)) late_.push_back(*copy);
  const auto* record = std::get_if<QueuedRecord>(&item);
  if (record == nullptr) return;
  busy_ = true;
  run_late(lock);
  busy_ = false;
  if (record->event->completed < record->generation) record->event->completed = record->generation;
}

void CuStreamObject::run_late(Lock& lock) {
  struct Run {
    QueuedCopy copy;
    Place source;
    Place target;
  };
  std::vector<Run> runs;
  std::vector<QueuedCopy> copies;
  for (const QueuedCopy& copy : late_) {
    if (copy.runs == nullptr) copies.push_back(copy);
    if (copy.runs == nullptr) continue;
    for (const QueuedCopy& run : fakes::copies_of(copy)) copies.push_back(run);
  }
  for (const QueuedCopy& copy : copies) {
    if (copy.fate != CuResult::success) context->failed = copy.fate;
    if (context->failed != CuResult::success) break;
    Place target = world().find_place(copy.target, copy.target_span(), context->device);
    Place source;
    if (copy.source == nullptr && !copy.fill)
      source = world().find_place(copy.source_device, copy.source_span(), context->device);
    if (target.start == nullptr || (copy.source == nullptr && !copy.fill && source.start == nullptr)) {
      context->failed =
          world().misuse("copy", "its memory was freed before the copy ran", CuResult::launch_failed);
      break;
    }
    runs.push_back({copy, std::move(source), std::move(target)});
  }
  const auto delay = std::chrono::microseconds(random_() % (std::uint64_t{world().delay_max} + 1));
  lock.unlock();
  if (delay.count() > 0 && !runs.empty()) std::this_thread::sleep_for(delay);
  for (const auto& [copy, source, target] : runs) {
    if (copy.fill) {
      std::memset(target.start, std::to_integer<int>(*copy.fill), copy.row_bytes);
      continue;
    }
    const std::byte* const from = copy.source != nullptr ? copy.source : source.start;
    for (std::uint64_t row = 0; row < copy.row_count; ++row)
      read_memory(target.start + row * copy.target_pitch, from + row * copy.source_pitch, copy.row_bytes);
  }
  lock.lock();
  late_.clear();
}

}  // namespace inrush::engine

namespace inrush::fakes {

// The kernel's source may be pinned memory or the device's own. A run that is neither shows as a copy whose
// memory is gone.
std::vector<QueuedCopy> copies_of(const QueuedCopy& launch) {
  std::vector<QueuedCopy> copies;
  for (const engine::CopyRun& run : std::span(launch.runs, launch.run_count)) {
    const auto* const host = reinterpret_cast<const std::byte*>(run.source);
    const bool is_host = world().is_registered(host, run.bytes);
    copies.push_back({.source = is_host ? host : nullptr,
                      .source_device = is_host ? 0 : run.source,
                      .target = run.target,
                      .row_bytes = run.bytes,
                      .fate = launch.fate});
  }
  return copies;
}

}  // namespace inrush::fakes
