#include "fakes/libcufile/fake_library.hpp"

#include <algorithm>
#include <utility>

namespace inrush::fakes::cufile {

namespace {

template <typename Act>
auto with(Act&& act) {
  const Lock lock(library().mutex);
  return act(library());
}

template <auto Member>
void set(auto value) {
  with([&](Library& all) { all.steering.*Member = value; });
}

void add(Fault fault) {
  with([&](Library& all) { all.steering.faults.push_back(std::move(fault)); });
}

void add_status(const char* entry, std::uint64_t first, std::uint64_t last, int code) {
  add({entry, Effect::status, first, last, static_cast<std::uint64_t>(code), 0});
}

void add_read(std::uint64_t nth, Effect effect, std::uint64_t value = 0) {
  add({"cuFileRead", effect, nth, nth, value, 0});
}

void add_failure(std::uint64_t first, std::uint64_t last, CufileFailure shape, int value) {
  const Effect effect = shape == CufileFailure::negative_code ? Effect::negative_code : Effect::errno_value;
  add({"cuFileRead", effect, first, last, static_cast<std::uint64_t>(value), 0});
}

void set_short_chance(std::uint64_t seed, std::uint32_t per_mille) {
  with([&](Library& all) {
    all.steering.random.seed(seed);
    all.steering.short_per_mille = per_mille;
  });
}

void hold(bool holds) {
  with([&](Library& all) { all.steering.holds_reads = holds; });
  library().changed.notify_all();
}

void set_uuid(const unsigned char* bytes) {
  with([&](Library& all) { std::copy_n(bytes, all.steering.uuid.size(), all.steering.uuid.begin()); });
}

std::uint64_t entry_count(const char* entry) {
  return with([&](Library& all) {
    const auto found = all.seen.entry_calls.find(entry);
    return found != all.seen.entry_calls.end() ? found->second : std::uint64_t{0};
  });
}

}  // namespace

FAKE_CUFILE_EXPORT const FakeCufileControl* fake_cufile_control() {
  static const FakeCufileControl control = {
      .reset = [] { library().reset(); },
      .set_personality = [](CufilePersonality personality) { set<&Steering::personality>(personality); },
      .set_udev_record = [](int is_there) { set<&Steering::has_udev_record>(is_there != 0); },
      .set_uuid = set_uuid,
      .write_log = [] { set<&Steering::writes_log>(true); },
      .close_descriptor_0 = [](int does) { set<&Steering::closes_descriptor_0>(does != 0); },
      .apply_words = [](const char* words) { with([&](Library& all) { apply_words(all.steering, words); }); },
      .fail = [](const char* entry, std::uint64_t nth, int code) { add_status(entry, nth, nth, code); },
      .fail_from = [](const char* entry, std::uint64_t nth,
                      int code) { add_status(entry, nth, UINT64_MAX, code); },
      .fail_read = [](std::uint64_t nth, CufileFailure shape,
                      int value) { add_failure(nth, nth, shape, value); },
      .fail_read_from = [](std::uint64_t nth, CufileFailure shape,
                           int value) { add_failure(nth, UINT64_MAX, shape, value); },
      .short_read = [](std::uint64_t nth, std::uint64_t bytes) { add_read(nth, Effect::shorten, bytes); },
      .short_write =
          [](std::uint64_t nth, std::uint64_t bytes) {
            add({"cuFileWrite", Effect::shorten, nth, nth, bytes, 0});
          },
      .set_short_chance = set_short_chance,
      .zero_read = [](std::uint64_t nth) { add_read(nth, Effect::zero); },
      .overlong_read = [](std::uint64_t nth) { add_read(nth, Effect::overlong); },
      .corrupt_read = [](std::uint64_t nth) { add_read(nth, Effect::corrupt); },
      .set_delay_max = [](std::uint32_t microseconds) { set<&Steering::delay_max>(microseconds); },
      .hold_reads = [] { hold(true); },
      .let_reads_go = [] { hold(false); },
      .live = [] { return with([](Library& all) { return all.live(); }); },
      .peak_registered_bytes =
          [] { return with([](Library& all) { return all.driver.peak_registered_bytes; }); },
      .entry_count = entry_count,
      .fault_count = [] { return with([](Library& all) { return all.seen.fault_hits; }); },
      .misuse_count = [] { return with([](Library& all) { return all.seen.misuses; }); },
      .last_misuse = [] { return with([](Library& all) { return all.seen.last_misuse.c_str(); }); },
  };
  return &control;
}

}  // namespace inrush::fakes::cufile
