#include "fakes/libcuda/fake_world.hpp"

#include <algorithm>
#include <cstring>

namespace inrush::fakes {

namespace {

void add_fault(const char* entry, std::uint64_t first, std::uint64_t last, CuResult result) {
  const Lock lock(world().mutex);
  world().faults.push_back({entry != nullptr ? entry : "", first, last, 0, result});
}

void fail_copy(std::uint64_t nth, CuResult result) {
  const Lock lock(world().mutex);
  world().failing_copies[world().copies + nth] = result;
}

template <typename Change>
void change_stream(void* handle, Change&& change) {
  const Lock lock(world().mutex);
  if (const auto stream = world().find_stream(static_cast<CuStream>(handle))) change(*stream);
  world().changed.notify_all();
}

void settle() {
  Lock lock(world().mutex);
  world().changed.wait(lock, [] {
    const auto streams = world().all_streams();
    return std::all_of(streams.begin(), streams.end(),
                       [](const auto& stream) { return stream->is_settled(); });
  });
}

// Host memory to or from a range that lies in one live block of any device. False where there is none.
template <typename Move>
int move_bytes(CuAddress address, std::uint64_t bytes, Move&& move) {
  Lock lock(world().mutex);
  for (int device = 0; device < world().device_count; ++device) {
    const Place place = world().find_place(address, bytes, device);
    if (place.start == nullptr) continue;
    lock.unlock();
    move(place.start);
    return 1;
  }
  return 0;
}

int write_device(CuAddress target, const void* source, std::uint64_t bytes) {
  return move_bytes(target, bytes, [&](std::byte* start) { std::memcpy(start, source, bytes); });
}

int read_device(void* target, CuAddress source, std::uint64_t bytes) {
  return move_bytes(source, bytes, [&](const std::byte* start) { std::memcpy(target, start, bytes); });
}

template <auto Member>
void set(auto value) {
  const Lock lock(world().mutex);
  world().*Member = value;
}

template <typename Read>
auto read(Read&& what) {
  const Lock lock(world().mutex);
  return what(world());
}

}  // namespace

FAKE_CUDA_EXPORT const FakeCudaControl* fake_cuda_control() {
  static const FakeCudaControl control = {
      .reset = [] { read([](World& all) { all.reset(); }); },
      .set_seed = [](std::uint64_t seed) { set<&World::seed>(seed); },
      .set_delay_max = [](std::uint32_t microseconds) { set<&World::delay_max>(microseconds); },
      .set_device_bytes = [](std::uint64_t bytes) { set<&World::device_bytes>(bytes); },
      .set_pinned_bytes_max = [](std::uint64_t bytes) { set<&World::pinned_bytes_max>(bytes); },
      .set_driver_version = [](int version) { set<&World::driver_version>(version); },
      .set_device_count = [](int count) { set<&World::device_count>(count); },
      .pack_allocations = [] { set<&World::is_packed>(true); },
      .hide_proc_address = [] { set<&World::proc_address_hidden>(true); },
      .hold_contexts = [] { set<&World::contexts_held>(true); },
      .let_contexts_go =
          [] {
            set<&World::contexts_held>(false);
            world().changed.notify_all();
          },
      .waiting_contexts = [] { return read([](World& all) { return all.contexts_waiting; }); },
      .fail = [](const char* entry, std::uint64_t nth,
                 CuResult result) { add_fault(entry, nth, nth, result); },
      .fail_from = [](const char* entry, std::uint64_t nth,
                      CuResult result) { add_fault(entry, nth, UINT64_MAX, result); },
      .fail_copy = fail_copy,
      .hold = [](void* handle) { change_stream(handle, [](CuStreamObject& stream) { stream.held = true; }); },
      .let_go =
          [](void* handle) { change_stream(handle, [](CuStreamObject& stream) { stream.held = false; }); },
      .settle = settle,
      .live = [] { return read([](World& all) { return all.live(); }); },
      .call_count = [] { return world().calls.load(); },
      .misuse_count = [] { return read([](World& all) { return all.misuses; }); },
      .last_misuse = [] { return read([](World& all) { return all.last_misuse.c_str(); }); },
      .copy_count = [] { return read([](World& all) { return all.copies; }); },
      .current_context = [] { return read([](World& all) { return all.current(); }); },
      .entry_count =
          [](const char* entry) { return read([&](World& all) { return all.entry_calls[entry]; }); },
      .fault_count = [] { return read([](World& all) { return all.fault_hits; }); },
      .write_device = write_device,
      .read_device = read_device,
  };
  return &control;
}

}  // namespace inrush::fakes
