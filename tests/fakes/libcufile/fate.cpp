// What tests asked to befall a read.
#include "fakes/libcufile/fake_library.hpp"

#include <algorithm>

namespace inrush::fakes::cufile {

namespace {

// Never 0, and in seven of eight cases whole blocks.
std::uint64_t shortened(Steering& steering, std::uint64_t bytes) {
  const std::uint64_t blocks = (bytes - 1) / block_bytes;
  if (blocks > 0 && steering.random() % 8 != 0) return (1 + steering.random() % blocks) * block_bytes;
  return 1 + steering.random() % (bytes - 1);
}

void apply(const Fault& fault, Fate& fate) {
  if (fault.effect == Effect::errno_value || fault.effect == Effect::negative_code) {
    fate.failure = fault.effect;
    fate.error = static_cast<int>(fault.value);
  }
  if (fault.effect == Effect::shorten) fate.bytes = std::min(fate.bytes, fault.value);
  if (fault.effect == Effect::zero) fate.bytes = 0;
  fate.is_overlong = fate.is_overlong || fault.effect == Effect::overlong;
  fate.is_corrupt = fate.is_corrupt || fault.effect == Effect::corrupt;
}

}  // namespace

Fate fate_of(Library& all, std::string_view entry, std::uint64_t bytes) {
  Fate fate;
  fate.bytes = bytes;
  for (Fault& fault : all.steering.faults) {
    if (fault.entry != entry || fault.effect == Effect::status) continue;
    ++fault.seen;
    if (fault.seen < fault.first || fault.seen > fault.last) continue;
    ++all.seen.fault_hits;
    apply(fault, fate);
  }
  if (entry != "cuFileRead") return fate;
  Steering& steering = all.steering;
  if (bytes > 1 && steering.random() % 1000 < steering.short_per_mille) {
    ++all.seen.fault_hits;
    fate.bytes = std::min(fate.bytes, shortened(steering, bytes));
  }
  fate.delay = std::chrono::microseconds(steering.read_microseconds +
                                         steering.random() % (std::uint64_t{steering.delay_max} + 1));
  return fate;
}

}  // namespace inrush::fakes::cufile
