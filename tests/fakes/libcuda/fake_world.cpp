#include "fakes/libcuda/fake_world.hpp"

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>

#include <iterator>
#include <utility>

namespace inrush::fakes {

namespace {

// Addresses are handed out once: whoever uses freed memory is found out. 1 TiB outlasts any run of the tests.
constexpr std::uint64_t address_space_bytes = 1ULL << 40;
constexpr std::uint64_t device_bytes_at_first = 8ULL << 30;

// These touch no device: they work when it is lost.
bool survives_device(std::string_view entry) {
  return entry == "cuCtxPushCurrent" || entry == "cuCtxPopCurrent" || entry == "cuDevicePrimaryCtxRelease" ||
         entry == "cuGetErrorName" || entry == "cuGetErrorString";
}

}  // namespace

World& world() {
  static World& only = *new World;  // never destroyed: threads may outlive the static objects
  return only;
}

std::vector<CuContext>& context_stack() {
  thread_local std::vector<CuContext> stack;
  return stack;
}

World::World() {
  void* addresses =
      ::mmap(nullptr, address_space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses != MAP_FAILED) next_address_ = reinterpret_cast<std::uintptr_t>(addresses);
  for (int device = 0; device < 2; ++device) contexts.at(static_cast<std::size_t>(device)).device = device;
  reset();
}

void World::reset() {
  seed = 1;
  delay_max = 100;
  device_bytes = device_bytes_at_first;
  pinned_bytes_max = UINT64_MAX;
  driver_version = 13000;
  device_count = 2;
  proc_address_hidden = false;
  is_packed = false;
  contexts_held = false;
  changed.notify_all();
  faults.clear();
  copies = 0;
  failing_copies.clear();
  misuses = 0;
  last_misuse.clear();
  for (CuContextObject& context : contexts) context.failed = CuResult::success;
}

CuResult World::enter(std::string_view entry, Needs needs) {
  const CuResult answer = require(entry, needs);
  if (answer != CuResult::success) return answer;
  const CuContext context = current();
  if (needs == Needs::context && context->failed != CuResult::success) return context->failed;
  return fault(entry);
}

CuResult World::require(std::string_view entry, Needs needs) {
  ++calls;
  ++entry_calls.try_emplace(std::string(entry), 0).first->second;
  if (needs == Needs::nothing) return CuResult::success;
  if (!initialised) return misuse(entry, "before cuInit", CuResult::not_initialized);
  if (process != ::getpid()) return misuse(entry, "in a forked child", CuResult::not_initialized);
  if (needs == Needs::context && current() == nullptr) {
    return misuse(entry, "without a current context", CuResult::invalid_context);
  }
  return CuResult::success;
}

CuResult World::fault(std::string_view entry) {
  CuResult result = CuResult::success;
  for (Fault& fault : faults) {
    if (fault.entry.empty() ? survives_device(entry) : fault.entry != entry) continue;
    ++fault.seen;
    if (fault.seen >= fault.first && fault.seen <= fault.last) result = fault.result;
  }
  if (result != CuResult::success) ++fault_hits;
  return result;
}

CuResult World::misuse(std::string_view entry, std::string_view what, CuResult answer) {
  ++misuses;
  last_misuse = std::string(entry) + ": " + std::string(what);
  return answer;
}

CuContext World::current() const {
  const std::vector<CuContext>& stack = context_stack();
  if (stack.empty() || stack.back() == nullptr || stack.back()->references == 0) return nullptr;
  return stack.back();
}

std::shared_ptr<CuStreamObject> World::find_stream(CuStream handle) {
  if (handle != nullptr) {
    const auto found = streams.find(handle);
    return found != streams.end() ? found->second : nullptr;
  }
  const CuContext context = current();
  if (context == nullptr) return nullptr;
  if (context->default_stream == nullptr)
    context->default_stream = std::make_shared<CuStreamObject>(context, 0U);
  return context->default_stream;
}

EventOwner World::find_event(CuEvent handle) const {
  const auto found = events.find(handle);
  return found != events.end() ? found->second : nullptr;
}

Place World::find_place(CuAddress address, std::uint64_t bytes, int device) const {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return {};
  const auto& [start, block] = *--after;
  const std::uint64_t offset = address - start;
  if (block.device != device || offset > block.bytes || bytes > block.bytes - offset) return {};
  return {block.storage, block.storage->data() + offset};
}

bool World::is_registered(const std::byte* start, std::uint64_t bytes) const {
  return std::ranges::any_of(registrations, [&](const auto& entry) {
    return entry.first <= start && start + bytes <= entry.first + entry.second;
  });
}

bool World::is_live(CuAddress address, std::uint64_t bytes, int device) const {
  for (const CuAddress end = address + bytes; address < end;) {
    const auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return false;
    const auto& [start, block] = *std::prev(after);
    if (block.device != device || address >= start + block.bytes) return false;
    address = start + block.bytes;
  }
  return true;
}

// Aligned to 256 and never to 512, which is all that the real driver promises; a page apart, so that an
// overrun misses its neighbour.
CuAddress World::new_address(std::uint64_t bytes) {
  if (is_packed) return std::exchange(next_address_, next_address_ + (bytes + 255) / 256 * 256);
  const CuAddress address = (next_address_ + 511) / 512 * 512 + 256;
  next_address_ += (bytes + 256 + 4096 + 511) / 512 * 512;
  return address;
}

std::vector<std::shared_ptr<CuStreamObject>> World::all_streams() const {
  std::vector<std::shared_ptr<CuStreamObject>> all;
  for (const auto& [handle, stream] : streams) all.push_back(stream);
  for (const CuContextObject& context : contexts) {
    if (context.default_stream != nullptr) all.push_back(context.default_stream);
  }
  return all;
}

FakeCudaLive World::live() const {
  FakeCudaLive live;
  for (const CuContextObject& context : contexts) live.contexts += context.references > 0 ? 1 : 0;
  live.allocations = blocks.size();
  for (const auto& [address, block] : blocks) live.allocated_bytes += block.bytes;
  live.registrations = registrations.size();
  for (const auto& [start, bytes] : registrations) live.registered_bytes += bytes;
  live.streams = streams.size();
  live.events = events.size();
  live.modules = modules.size();
  return live;
}

}  // namespace inrush::fakes
