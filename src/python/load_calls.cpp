#include "load_calls.hpp"

#include <inrush/error.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chrono>
#include <tuple>

namespace inrush::python {

namespace {

void* to_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

std::chrono::nanoseconds to_deadline(double seconds) {
  constexpr double seconds_max = 1e9;  // 31 years: as good as none, and no overflow
  if (!(seconds >= 0)) throw Error(ErrorCode::invalid_request, "timeout: not a number of seconds");
  const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(seconds, seconds_max)));
  return seconds > 0 ? std::max(deadline, std::chrono::nanoseconds(1)) : deadline;  // 0 is none
}

}  // namespace

LoadCalls::LoadCalls(LoadOrigin origin, const Request& request,
                     std::function<std::optional<Progress>()> progress)
    : origin_(std::move(origin)),
      progress_(std::move(progress)),
      allocate_(request.allocate),
      on_progress_(request.on_progress),
      callbacks_(origin_.interpreter) {
  if (!allocate_.is_none() || !request.targets.empty()) dropped_ = std::make_shared<DroppedObjects>();
}

LoadRequest LoadCalls::to_request(const Request& asked) {
  LoadRequest request = make_request(asked.only, asked.slices);
  request.device = parse_device(asked.device);
  request.path = parse_path_preference(asked.path);
  request.page_cache = parse_page_cache(asked.page_cache);
  request.window_bytes_max = asked.window_bytes;
  request.deadline = to_deadline(asked.timeout_s);
  if (!allocate_.is_none()) {
    request.allocate = [this](const Device&, std::uint64_t size_bytes, std::uint64_t) {
      return allocate(size_bytes);
    };
  }
  if (!asked.targets.empty()) request.targets = to_targets(asked);
  request.interrupted = [this] { return !callbacks_.run([this] { look_up(); }); };
  return request;
}

void LoadCalls::require_not_busy() const {
  if (is_busy_) throw Error(ErrorCode::invalid_request, "another thread is waiting in this Load");
}

void LoadCalls::settle() {
  is_busy_ = false;
  if (dropped_ != nullptr) dropped_->drain();
}

void LoadCalls::look_up() {
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  if (on_progress_.is_none()) return;
  if (const std::optional<Progress> now = progress_()) on_progress_(now->loaded_bytes, now->planned_bytes);
}

Allocation LoadCalls::allocate(std::uint64_t size_bytes) {
  Allocation given;
  const bool went_well = callbacks_.run([&] {
    const auto [address, owner, stream] =
        nb::cast<std::tuple<std::uintptr_t, nb::object, std::optional<std::uintptr_t>>>(
            allocate_(size_bytes));
    given = {.pointer = to_pointer(address), .owner = share_object(owner, dropped_), .stream = nullptr};
    if (stream) given.stream = to_pointer(*stream);
    given.stream_ordered = stream.has_value();
  });
  if (!went_well) throw Error(ErrorCode::cancelled, "the allocation in Python failed");
  return given;
}

Targets LoadCalls::to_targets(const Request& asked) const {
  Targets targets;
  for (const auto& [name, place] : asked.targets)
    targets.by_name[name] = {to_pointer(place.first), place.second};
  targets.owner = share_object(asked.targets_owner, dropped_);
  if (asked.targets_stream) targets.stream = to_pointer(*asked.targets_stream);
  targets.stream_ordered = asked.targets_stream.has_value();
  return targets;
}

}  // namespace inrush::python
