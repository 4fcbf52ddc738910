// Devices, contexts and memory. Each entry answers as NVIDIA's documentation of the driver API says.
#include "fakes/libcuda/fake_world.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>

#ifndef MADV_POPULATE_READ  // Linux 5.14; absent from older headers
#define MADV_POPULATE_READ 22
#endif

namespace inrush::fakes {

namespace {

struct ResultText {
  CuResult result;
  const char* name;
  const char* text;
};

constexpr std::array<ResultText, 13> result_texts = {{
    {CuResult::success, "CUDA_SUCCESS", "no error"},
    {CuResult::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CuResult::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CuResult::not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CuResult::deinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CuResult::no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CuResult::invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CuResult::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CuResult::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CuResult::not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CuResult::memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already mapped"},
    {CuResult::memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not mapped"},
    {CuResult::launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
}};

CuResult describe(CuResult result, const char* ResultText::*what, const char** out) {
  for (const ResultText& known : result_texts) {
    if (known.result != result) continue;
    *out = known.*what;
    return CuResult::success;
  }
  *out = nullptr;
  return CuResult::invalid_value;
}

// The second device is a MIG instance, whose name is all that says so.
constexpr std::array<const char*, 2> device_names = {"Fake H200", "Fake H200 MIG 1g.18gb"};

CuResult enter_device(std::string_view entry, CuDevice device) {
  const CuResult answer = world().enter(entry, Needs::initialised);
  if (answer != CuResult::success) return answer;
  return device < 0 || device >= world().device_count ? CuResult::invalid_device : CuResult::success;
}

CuContextObject& context_of(CuDevice device) { return world().contexts.at(static_cast<std::size_t>(device)); }

std::uint64_t used_bytes(int device) {
  std::uint64_t bytes = 0;
  for (const auto& [address, block] : world().blocks) bytes += block.device == device ? block.bytes : 0;
  return bytes;
}

// Entries that a later driver of the 12 and 13 series added, or gave another meaning under the same name. Who
// asks for them as of 12.0 gets none, or the old meaning.
struct NewerEntry {
  std::string_view name;
  int version;
  const char* symbol;
};

constexpr std::array<NewerEntry, 3> newer_entries = {{
    {"cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync"},
    {"cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
}};

// What a driver that knows `version` calls the entry; empty: it has none.
std::string symbol_of(std::string_view name, int version, void* library) {
  const char* newest = nullptr;
  bool is_known = false;
  for (const NewerEntry& entry : newer_entries) {
    is_known = is_known || (entry.name == name && entry.symbol == name);
    if (entry.name == name && entry.version <= version) newest = entry.symbol;
  }
  if (newest != nullptr) return newest;
  if (is_known) return {};
  const std::string second = std::string(name) + "_v2";
  const bool has_second = name != "cuCtxGetDevice" && ::dlsym(library, second.c_str()) != nullptr;
  return has_second ? second : std::string(name);
}

// A context may only go when all that was made in it is gone: the real one takes it along, under whoever
// still holds it.
bool has_belongings(const CuContextObject& context) {
  const World& all = world();
  const auto mine = [&](const auto& entry) { return entry.second->context == &context; };
  return used_bytes(context.device) > 0 || std::any_of(all.streams.begin(), all.streams.end(), mine) ||
         std::any_of(all.events.begin(), all.events.end(), mine) ||
         std::any_of(all.modules.begin(), all.modules.end(), mine);
}

}  // namespace

FAKE_CUDA_EXPORT CuResult cuInit(unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuInit", Needs::nothing);
  if (answer != CuResult::success) return answer;
  if (flags != 0) return CuResult::invalid_value;
  world().initialised = true;
  world().process = ::getpid();
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuDriverGetVersion(int* version) {
  const Lock lock(world().mutex);
  *version = world().driver_version;
  return world().enter("cuDriverGetVersion", Needs::nothing);
}

FAKE_CUDA_EXPORT CuResult cuGetErrorName(CuResult result, const char** name) {
  return describe(result, &ResultText::name, name);
}

FAKE_CUDA_EXPORT CuResult cuGetErrorString(CuResult result, const char** text) {
  return describe(result, &ResultText::text, text);
}

// Only the second version of an entry is exported where there are two, as only that one is called.
FAKE_CUDA_EXPORT CuResult cuGetProcAddress_v2(const char* name, void** address, int version,
                                              std::uint64_t flags, int* status) {
  const Lock lock(world().mutex);
  *address = nullptr;
  *status = 1;
  if (world().proc_address_hidden || version < 12000 || flags != engine::cu_proc_legacy_stream)
    return CuResult::invalid_value;
  Dl_info own{};
  if (::dladdr(reinterpret_cast<void*>(&cuInit), &own) == 0) return CuResult::invalid_value;
  void* library = ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return CuResult::invalid_value;
  *address = ::dlsym(library, symbol_of(name, std::min(version, world().driver_version), library).c_str());
  ::dlclose(library);
  *status = *address != nullptr ? 0 : 1;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuDeviceGetCount(int* count) {
  const Lock lock(world().mutex);
  *count = world().device_count;
  return world().enter("cuDeviceGetCount", Needs::initialised);
}

FAKE_CUDA_EXPORT CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  const Lock lock(world().mutex);
  *device = ordinal;
  return enter_device("cuDeviceGet", ordinal);
}

FAKE_CUDA_EXPORT CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
  const Lock lock(world().mutex);
  const CuResult answer = enter_device("cuDeviceGetName", device);
  if (answer != CuResult::success) return answer;
  std::snprintf(name, static_cast<std::size_t>(size), "%s",
                device_names.at(static_cast<std::size_t>(device)));
  return CuResult::success;
}

// f4ce0000-0011-2233-4455-66778899aabb and f4ce0001-...: four digits are ambiguous, eight are not.
FAKE_CUDA_EXPORT CuResult cuDeviceGetUuid_v2(engine::CuUuid* uuid, CuDevice device) {
  const Lock lock(world().mutex);
  const CuResult answer = enter_device("cuDeviceGetUuid", device);
  if (answer != CuResult::success) return answer;
  static constexpr std::array<unsigned char, 16> bytes = {0xF4, 0xCE, 0x00, 0x00, 0x00, 0x11, 0x22, 0x33,
                                                          0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB};
  std::memcpy(uuid->bytes.data(), bytes.data(), bytes.size());
  uuid->bytes[3] = static_cast<char>(device);
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  Lock lock(world().mutex);
  ++world().contexts_waiting;
  world().changed.wait(lock, [] { return !world().contexts_held; });
  --world().contexts_waiting;
  const CuResult answer = enter_device("cuDevicePrimaryCtxRetain", device);
  if (answer != CuResult::success) return answer;
  *context = &context_of(device);
  ++context_of(device).references;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  Lock lock(world().mutex);
  const CuResult answer = world().require("cuDevicePrimaryCtxRelease", Needs::initialised);
  if (answer != CuResult::success) return answer;
  CuContextObject& context = context_of(device);
  if (context.references == 0) {
    return world().misuse("cuDevicePrimaryCtxRelease", "more often than retained", CuResult::invalid_context);
  }
  if (--context.references == 0) {
    if (has_belongings(context))
      world().misuse("cuDevicePrimaryCtxRelease", "before what lives in it", CuResult::success);
    if (const auto stream = std::move(context.default_stream)) stream->close(lock);
    context.failed = CuResult::success;
  }
  return world().fault("cuDevicePrimaryCtxRelease");
}

FAKE_CUDA_EXPORT CuResult cuCtxPushCurrent_v2(CuContext context) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuCtxPushCurrent", Needs::initialised);
  if (answer != CuResult::success) return answer;
  if (context == nullptr || context->references == 0) {
    return world().misuse("cuCtxPushCurrent", "of a context that is gone", CuResult::invalid_context);
  }
  context_stack().push_back(context);
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuCtxPopCurrent_v2(CuContext* context) {
  const Lock lock(world().mutex);
  const CuResult answer = world().require("cuCtxPopCurrent", Needs::context);
  if (answer != CuResult::success) return answer;
  *context = context_stack().back();
  context_stack().pop_back();
  return world().fault("cuCtxPopCurrent");
}

FAKE_CUDA_EXPORT CuResult cuCtxGetDevice(CuDevice* device) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuCtxGetDevice", Needs::initialised);
  if (answer != CuResult::success) return answer;
  const CuContext context = world().current();
  if (context == nullptr) return CuResult::invalid_context;  // a way to ask whether there is one
  *device = context->device;
  return CuResult::success;
}

// Of 13.0: of a context that is given, not of the current one.
FAKE_CUDA_EXPORT CuResult cuCtxGetDevice_v2(CuDevice* device, CuContext context) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuCtxGetDevice_v2", Needs::initialised);
  if (answer != CuResult::success) return answer;
  const bool is_ours = std::any_of(world().contexts.begin(), world().contexts.end(),
                                   [&](const CuContextObject& known) { return &known == context; });
  if (!is_ours) return CuResult::invalid_context;
  *device = context->device;
  return CuResult::success;
}

// Of 12.8 and 13.0. Nobody here calls them: they are there to be looked up.
FAKE_CUDA_EXPORT CuResult cuMemcpyBatchAsync() {
  const Lock lock(world().mutex);
  return world().misuse("cuMemcpyBatchAsync", "which no driver of version 12.0 has", CuResult::invalid_value);
}
FAKE_CUDA_EXPORT CuResult cuMemcpyBatchAsync_v2() { return cuMemcpyBatchAsync(); }

FAKE_CUDA_EXPORT CuResult cuMemAlloc_v2(CuAddress* address, std::size_t bytes) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemAlloc", Needs::context);
  if (answer != CuResult::success) return answer;
  if (bytes == 0) return CuResult::invalid_value;
  const int device = world().current()->device;
  const std::uint64_t used = used_bytes(device);
  if (used > world().device_bytes || bytes > world().device_bytes - used) {
    ++world().fault_hits;
    return CuResult::out_of_memory;
  }
  try {
    auto storage = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0xA5});
    *address = world().new_address(bytes);
    world().blocks[*address] = {bytes, device, std::move(storage)};
  } catch (const std::bad_alloc&) {
    return CuResult::out_of_memory;
  }
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemFree_v2(CuAddress address) {
  Lock lock(world().mutex);
  const CuResult answer = world().require("cuMemFree", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto block = world().blocks.find(address);
  if (block == world().blocks.end())
    return world().misuse("cuMemFree", "of no allocation", CuResult::invalid_value);
  for (const auto& stream : world().all_streams()) {
    if (stream->writes(address, block->second.bytes)) {
      world().misuse("cuMemFree", "under a copy in flight", CuResult::success);
      stream->drain(lock);  // as the real one does
    }
  }
  world().blocks.erase(address);
  return world().fault("cuMemFree");
}

FAKE_CUDA_EXPORT CuResult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemGetInfo", Needs::context);
  if (answer != CuResult::success) return answer;
  *total_bytes = world().device_bytes;
  *free_bytes = world().device_bytes - std::min(world().device_bytes, used_bytes(world().current()->device));
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemGetAddressRange_v2(CuAddress* start, std::size_t* bytes, CuAddress address) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemGetAddressRange", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto after = world().blocks.upper_bound(address);
  if (after == world().blocks.begin()) return CuResult::invalid_value;
  const auto& [first, block] = *std::prev(after);
  if (address - first >= block.bytes) return CuResult::invalid_value;
  *start = first;
  *bytes = block.bytes;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemHostRegister", Needs::context);
  if (answer != CuResult::success) return answer;
  if (memory == nullptr || bytes == 0) return CuResult::invalid_value;
  if ((flags & ~engine::cu_register_read_only) != engine::cu_register_portable)
    return world().misuse("cuMemHostRegister", "not portable", CuResult::invalid_value);
  auto* const start = static_cast<std::byte*>(memory);
  for (const auto& [other, other_bytes] : world().registrations) {
    if (start < other + other_bytes && other < start + bytes) return CuResult::memory_already_registered;
  }
  const std::uint64_t used = world().live().registered_bytes;
  if (used > world().pinned_bytes_max || bytes > world().pinned_bytes_max - used) {
    ++world().fault_hits;
    return CuResult::out_of_memory;
  }
  // As the real one, which pins the pages: those past the end of a file are refused.
  const bool is_mapping = (flags & engine::cu_register_read_only) != 0;
  if (is_mapping && ::madvise(start, bytes, MADV_POPULATE_READ) != 0) return CuResult::invalid_value;
  world().registrations[start] = bytes;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemHostGetDevicePointer_v2(CuAddress* address, void* memory, unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemHostGetDevicePointer", Needs::context);
  if (answer != CuResult::success) return answer;
  if (flags != 0 || !world().is_registered(static_cast<std::byte*>(memory), 1))
    return CuResult::invalid_value;
  *address = reinterpret_cast<CuAddress>(memory);
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemHostUnregister(void* memory) {
  const Lock lock(world().mutex);
  const CuResult answer = world().require("cuMemHostUnregister", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto found = world().registrations.find(static_cast<std::byte*>(memory));
  if (found == world().registrations.end()) {
    return world().misuse("cuMemHostUnregister", "of memory that is not registered",
                          CuResult::memory_not_registered);
  }
  for (const auto& stream : world().all_streams()) {
    if (stream->reads(found->first, found->second)) {
      world().misuse("cuMemHostUnregister", "under a copy in flight", CuResult::success);
    }
  }
  world().registrations.erase(found);
  return world().fault("cuMemHostUnregister");
}

}  // namespace inrush::fakes
