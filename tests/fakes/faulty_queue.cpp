#include "fakes/faulty_queue.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace inrush::fakes {

namespace {

// What a read did not move must not look right by chance.
constexpr int poison = 0xA5;

std::uint64_t alignment_of(const engine::ReadRequest& request) {
  return request.mode == engine::ReadMode::direct ? std::max(1U, request.file->direct_alignment_bytes()) : 1;
}

}  // namespace

std::uint64_t FaultCounts::total() const {
  return short_reads + unaligned_shorts + eintr + eagain + direct_einval + eio + early_ends + late + slow +
         never + reordered;
}

std::ostream& operator<<(std::ostream& out, const FaultCounts& counts) {
  return out << "short " << counts.short_reads << ", unaligned " << counts.unaligned_shorts << ", EINTR "
             << counts.eintr << ", EAGAIN " << counts.eagain << ", EINVAL " << counts.direct_einval
             << ", EIO " << counts.eio << ", early end " << counts.early_ends << ", late " << counts.late
             << ", slow " << counts.slow << ", never " << counts.never << ", reordered " << counts.reordered;
}

FaultyQueue::FaultyQueue(std::unique_ptr<engine::ReadQueue> inner, Faults faults)
    : inner_(std::move(inner)), faults_(std::move(faults)), random_(faults_.seed) {}

bool FaultyQueue::happens(double chance) {
  return chance > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < chance;
}

std::uint64_t FaultyQueue::below(std::uint64_t limit) {
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random_);
}

void FaultyQueue::submit(engine::ReadRequest request) {
  if (const std::optional<engine::Completion> failed = fail_at_once(request)) {
    ready_.push_back(*failed);
    return;
  }
  InFlight read{request.tag, request.target, std::nullopt};
  shorten(request, read);
  request.tag = next_key_++;
  in_flight_.emplace(request.tag, read);
  inner_->submit(std::move(request));
}

std::optional<engine::Completion> FaultyQueue::fail_at_once(const engine::ReadRequest& request) {
  const auto fail = [&](std::uint64_t& count, int error) {
    ++count;
    return engine::Completion{request.tag, 0, error};
  };
  const auto eio = faults_.eio_at.find(request.file->path());
  if (eio != faults_.eio_at.end() && request.offset <= eio->second &&
      eio->second < engine::round_down(request.offset, alignment_of(request)) + alignment_of(request)) {
    return fail(counts_.eio, EIO);
  }
  const auto end = faults_.end_at.find(request.file->path());
  if (end != faults_.end_at.end() && request.offset >= end->second) return fail(counts_.early_ends, 0);
  if (happens(faults_.eintr_chance)) return fail(counts_.eintr, EINTR);
  if (happens(faults_.eagain_chance)) return fail(counts_.eagain, EAGAIN);
  const bool is_direct = request.mode == engine::ReadMode::direct;
  if (is_direct && happens(faults_.direct_einval_chance)) return fail(counts_.direct_einval, EINVAL);
  return std::nullopt;
}

void FaultyQueue::shorten(engine::ReadRequest& request, InFlight& read) {
  const std::uint64_t alignment = alignment_of(request);
  const std::uint64_t offset = request.offset;
  if (const auto eio = faults_.eio_at.find(request.file->path()); eio != faults_.eio_at.end()) {
    const std::uint64_t before = engine::round_down(eio->second, alignment);
    if (before > offset && before < offset + request.target.size())
      request.target = request.target.first(before - offset);
  }
  if (const auto end = faults_.end_at.find(request.file->path()); end != faults_.end_at.end()) {
    if (end->second < offset + request.target.size()) {
      ++counts_.early_ends;
      limit_to(end->second - offset, request, read);
      return;
    }
  }
  if (request.target.size() > alignment && happens(faults_.short_chance)) {
    ++counts_.short_reads;
    const std::uint64_t units = (request.target.size() - 1) / alignment;
    request.target = request.target.first((1 + below(units)) * alignment);
  } else if (alignment > 1 && happens(faults_.unaligned_short_chance)) {
    ++counts_.unaligned_shorts;
    limit_to(1 + below(request.target.size() - 1), request, read);
  }
}

// The kernel is asked for whole units; what lies past the limit is poisoned when it arrives.
void FaultyQueue::limit_to(std::uint64_t moved_bytes_max, engine::ReadRequest& request,
                           InFlight& read) const {
  const std::uint64_t asked = engine::round_up(moved_bytes_max, alignment_of(request));
  request.target = request.target.first(std::min<std::uint64_t>(asked, request.target.size()));
  read.moved_bytes_max = moved_bytes_max;
}

engine::Completion FaultyQueue::finish(const engine::Completion& inner) {
  const auto found = in_flight_.find(inner.tag);
  const InFlight read = found->second;
  in_flight_.erase(found);
  std::uint64_t moved_bytes = inner.moved_bytes;
  if (read.moved_bytes_max && *read.moved_bytes_max < moved_bytes) {
    std::memset(read.target.data() + *read.moved_bytes_max, poison, moved_bytes - *read.moved_bytes_max);
    moved_bytes = *read.moved_bytes_max;
  }
  return {read.tag, moved_bytes, inner.error};
}

void FaultyQueue::collect(engine::Clock::time_point until) {
  std::array<engine::Completion, 64> arrived = {};
  const std::size_t count = inner_->wait(arrived, until);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t number = arrived[i].tag + 1;
    keep_back(finish(arrived[i]), number);
  }
}

void FaultyQueue::keep_back(const engine::Completion& completion, std::uint64_t number) {
  if (faults_.never_from != 0 && number >= faults_.never_from) {
    ++counts_.never;
    ++lost_count_;
  } else if (faults_.slow_every != 0 && number % faults_.slow_every == 0) {
    ++counts_.slow;
    slow_.push_back({completion, engine::Clock::now() + faults_.slow_time});
  } else if (happens(faults_.late_chance)) {
    ++counts_.late;
    late_.push_back(completion);
  } else {
    ready_.push_back(completion);
  }
}

void FaultyQueue::take_due() {
  ready_.insert(ready_.end(), late_.begin(), late_.end());
  late_.clear();
  const engine::Clock::time_point now = engine::Clock::now();
  for (const Slow& slow : slow_) {
    if (slow.due <= now) ready_.push_back(slow.completion);
  }
  std::erase_if(slow_, [&](const Slow& slow) { return slow.due <= now; });
}

engine::Clock::time_point FaultyQueue::first_due() const {
  engine::Clock::time_point first = engine::Clock::time_point::max();
  for (const Slow& slow : slow_) first = std::min(first, slow.due);
  return first;
}

std::size_t FaultyQueue::wait(std::span<engine::Completion> completions, engine::Clock::time_point until) {
  take_due();
  if (!ready_.empty()) collect(engine::Clock::now());  // what is there already, to be mixed with the rest
  while (ready_.empty() && in_flight_count() > 0) {
    const engine::Clock::time_point limit = std::min(until, first_due());
    if (inner_->in_flight_count() > 0) {
      collect(limit);
    } else if (limit < engine::Clock::time_point::max()) {
      std::this_thread::sleep_until(limit);
    } else {
      throw std::logic_error("a wait without limit for reads that never come");
    }
    take_due();  // also what was held back just now: no queue returns nothing although something is there
    if (engine::Clock::now() >= until) break;
  }
  if (faults_.reorder && ready_.size() > 1) {
    ++counts_.reordered;
    std::shuffle(ready_.begin(), ready_.end(), random_);
  }
  const std::size_t count = std::min(completions.size(), ready_.size());
  const auto taken_end = ready_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(ready_.begin(), taken_end, completions.begin());
  ready_.erase(ready_.begin(), taken_end);
  return count;
}

std::size_t FaultyQueue::in_flight_count() const noexcept {
  return in_flight_.size() + ready_.size() + late_.size() + slow_.size() + lost_count_;
}

}  // namespace inrush::fakes
