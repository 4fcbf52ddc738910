#include "fakes/libcuda/fake_world.hpp"

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

void CuStreamObject::push(std::variant<QueuedCopy, QueuedRecord, QueuedWait> item) {
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

template <typename Match>
bool CuStreamObject::any_copy(Match&& match) const {
  for (const QueuedCopy& copy : late_) {
    if (match(copy)) return true;
  }
  for (const auto& item : queue_) {
    if (const auto* copy = std::get_if<QueuedCopy>(&item); copy != nullptr && match(*copy)) return true;
  }
  return false;
}

bool CuStreamObject::reads(const std::byte* start, std::uint64_t bytes) const {
  return any_copy([&](const QueuedCopy& copy) {
    return copy.source < start + bytes && start < copy.source + copy.source_span();
  });
}

bool CuStreamObject::writes(CuAddress start, std::uint64_t bytes) const {
  return any_copy([&](const QueuedCopy& copy) {
    return copy.target < start + bytes && start < copy.target + copy.target_span();
  });
}

bool CuStreamObject::can_run() const {
  if (held || queue_.empty()) return false;
  const auto* wait = std::get_if<QueuedWait>(&queue_.front());
  return wait == nullptr || wait->event->completed >= wait->generation;
}

void CuStreamObject::work() {
  Lock lock(world().mutex);
  while (true) {
    world().changed.wait(lock, [this] { return closing_ || can_run(); });
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
  std::vector<std::pair<QueuedCopy, Place>> runs;
  for (const QueuedCopy& copy : late_) {
    if (copy.fate != CuResult::success) context->failed = copy.fate;
    if (context->failed != CuResult::success) break;
    Place place = world().find_place(copy.target, copy.target_span(), context->device);
    if (place.start == nullptr) {
      context->failed =
          world().misuse("copy", "the target was freed before the copy ran", CuResult::launch_failed);
      break;
    }
    runs.emplace_back(copy, std::move(place));
  }
  const auto delay = std::chrono::microseconds(random_() % (std::uint64_t{world().delay_max} + 1));
  lock.unlock();
  if (delay.count() > 0 && !runs.empty()) std::this_thread::sleep_for(delay);
  for (const auto& [copy, place] : runs) {
    for (std::uint64_t row = 0; row < copy.row_count; ++row) {
      std::memcpy(place.start + row * copy.target_pitch, copy.source + row * copy.source_pitch,
                  copy.row_bytes);
    }
  }
  lock.lock();
  late_.clear();
}

}  // namespace inrush::engine
