// Copies, streams and events.
#include "fakes/libcuda/fake_world.hpp"

#include <cstring>
#include <string>

namespace inrush::fakes {

namespace {

void give_fate(QueuedCopy& copy) {
  const auto fate = world().failing_copies.find(++world().copies);
  if (fate == world().failing_copies.end()) return;
  copy.fate = fate->second;
  ++world().fault_hits;
}

CuResult queue_copy(std::string_view entry, CuStream handle, QueuedCopy copy) {
  const auto stream = world().find_stream(handle);
  const CuContext context = world().current();
  if (stream == nullptr || stream->context != context) {
    return world().misuse(entry, "on no stream of this context", CuResult::invalid_handle);
  }
  const bool has_source = copy.source != nullptr || copy.source_device != 0 || copy.fill.has_value();
  if (!has_source || copy.row_bytes == 0 || copy.row_count == 0) return CuResult::invalid_value;
  if (copy.source_device != 0 &&
      world().find_place(copy.source_device, copy.source_span(), context->device).start == nullptr) {
    return world().misuse(entry, "from what is no allocation of this device", CuResult::invalid_value);
  }
  if (world().find_place(copy.target, copy.target_span(), context->device).start == nullptr) {
    // All of it exists, in more than one allocation: refused, as by the real one.
    if (world().is_live(copy.target, copy.target_span(), context->device)) return CuResult::invalid_value;
    return world().misuse(entry, "to what is no allocation of this device", CuResult::invalid_value);
  }
  give_fate(copy);
  stream->push(copy);
  return CuResult::success;
}

// The legacy default stream waits for every stream that was not created non-blocking.
void drain_default(Lock& lock, CuContext context) {
  for (const auto& stream : world().all_streams()) {
    if (stream->context == context && (stream->flags & engine::cu_stream_non_blocking) == 0)
      stream->drain(lock);
  }
}

CuResult failure_of(CuContext context) { return context->failed; }

}  // namespace

FAKE_CUDA_EXPORT CuResult cuModuleLoadData(engine::CuModule* handle, const void* image) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuModuleLoadData", Needs::context);
  if (answer != CuResult::success) return answer;
  const std::string_view text = static_cast<const char*>(image);
  if (text.find(".version") == std::string_view::npos)
    return world().misuse("cuModuleLoadData", "of no PTX", CuResult::invalid_value);
  const auto module = std::make_shared<engine::CuModuleObject>();
  module->context = world().current();
  module->function.module = module.get();
  *handle = module.get();
  world().modules[*handle] = module;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuModuleUnload(engine::CuModule handle) {
  const Lock lock(world().mutex);
  const CuResult answer = world().require("cuModuleUnload", Needs::context);
  if (answer != CuResult::success) return answer;
  if (world().modules.erase(handle) == 0)
    return world().misuse("cuModuleUnload", "of no module", CuResult::invalid_handle);
  return world().fault("cuModuleUnload");
}

FAKE_CUDA_EXPORT CuResult cuModuleGetFunction(engine::CuFunction* function, engine::CuModule handle,
                                              const char* name) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuModuleGetFunction", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto module = world().modules.find(handle);
  if (module == world().modules.end() || name != std::string_view(engine::copy_kernel_name))
    return world().misuse("cuModuleGetFunction", "of no module, or none of its functions",
                          CuResult::invalid_handle);
  *function = &module->second->function;
  return CuResult::success;
}

// The one kernel there is: runs, each from pinned or device memory to device memory.
FAKE_CUDA_EXPORT CuResult cuLaunchKernel(engine::CuFunction function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared_bytes, CuStream handle,
                                         void** parameters, void** extra) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuLaunchKernel", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = world().find_stream(handle);
  const bool is_loaded = world().modules.contains(function->module);
  if (!is_loaded || stream == nullptr || stream->context != function->module->context)
    return world().misuse("cuLaunchKernel", "no such function or stream", CuResult::invalid_handle);
  const bool fits = grid_x > 0 && grid_y == 1 && grid_z == 1 && block_x % 32 == 0 && block_x <= 1024 &&
                    block_y == 1 && block_z == 1 && shared_bytes == 0 && extra == nullptr;
  if (!fits) return world().misuse("cuLaunchKernel", "shape", CuResult::invalid_value);
  QueuedCopy launch;
  launch.runs = reinterpret_cast<const engine::CopyRun*>(*static_cast<CuAddress*>(parameters[0]));
  launch.run_count = *static_cast<unsigned*>(parameters[1]);
  if (!world().is_registered(reinterpret_cast<const std::byte*>(launch.runs),
                             launch.run_count * sizeof(engine::CopyRun)))
    return world().misuse("cuLaunchKernel", "its list is not pinned", CuResult::invalid_value);
  give_fate(launch);
  stream->push(launch);
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemcpyHtoDAsync_v2(CuAddress target, const void* source, std::size_t bytes,
                                               CuStream stream) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemcpyHtoDAsync", Needs::context);
  if (answer != CuResult::success) return answer;
  return queue_copy("cuMemcpyHtoDAsync", stream,
                    {.source = static_cast<const std::byte*>(source), .target = target, .row_bytes = bytes});
}

FAKE_CUDA_EXPORT CuResult cuMemcpyDtoDAsync_v2(CuAddress target, CuAddress source, std::size_t bytes,
                                               CuStream stream) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemcpyDtoDAsync", Needs::context);
  if (answer != CuResult::success) return answer;
  return queue_copy("cuMemcpyDtoDAsync", stream,
                    {.source_device = source, .target = target, .row_bytes = bytes});
}

FAKE_CUDA_EXPORT CuResult cuMemsetD8Async(CuAddress target, unsigned char value, std::size_t bytes,
                                          CuStream stream) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemsetD8Async", Needs::context);
  if (answer != CuResult::success) return answer;
  return queue_copy("cuMemsetD8Async", stream,
                    {.target = target, .row_bytes = bytes, .fill = std::byte{value}});
}

FAKE_CUDA_EXPORT CuResult cuStreamWaitValue32_v2(CuStream handle, CuAddress address, std::uint32_t value,
                                                 unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuStreamWaitValue32", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = world().find_stream(handle);
  if (stream == nullptr || flags != 0)
    return world().misuse("cuStreamWaitValue32", "no such stream or flag", CuResult::invalid_handle);
  const auto* const word = reinterpret_cast<const std::uint32_t*>(address);
  if (!world().is_registered(reinterpret_cast<const std::byte*>(word), sizeof *word))
    return world().misuse("cuStreamWaitValue32", "of memory that is not registered", CuResult::invalid_value);
  stream->push(QueuedValueWait{word, value});
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuMemcpy2DAsync_v2(const engine::CuCopy2D* copy, CuStream stream) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemcpy2DAsync", Needs::context);
  if (answer != CuResult::success) return answer;
  const bool from_host = copy->source_type == engine::CuMemoryType::host;
  const bool to_device = copy->target_type == engine::CuMemoryType::device;
  const bool plain = copy->source_x_bytes + copy->source_y + copy->target_x_bytes + copy->target_y == 0;
  const bool fits = copy->source_pitch >= copy->width_bytes && copy->target_pitch >= copy->width_bytes &&
                    copy->source_pitch < (1ULL << 31) && copy->target_pitch < (1ULL << 31);
  if (!to_device || !plain || !fits)
    return world().misuse("cuMemcpy2DAsync", "pitch or kind", CuResult::invalid_value);
  return queue_copy("cuMemcpy2DAsync", stream,
                    {.source = from_host ? static_cast<const std::byte*>(copy->source_host) : nullptr,
                     .source_device = from_host ? 0 : copy->source_device,
                     .source_pitch = copy->source_pitch,
                     .target = copy->target_device,
                     .target_pitch = copy->target_pitch,
                     .row_bytes = copy->width_bytes,
                     .row_count = copy->height});
}

FAKE_CUDA_EXPORT CuResult cuMemcpyDtoH_v2(void* target, CuAddress source, std::size_t bytes) {
  Lock lock(world().mutex);
  const CuResult answer = world().enter("cuMemcpyDtoH", Needs::context);
  if (answer != CuResult::success) return answer;
  const CuContext context = world().current();
  const Place place = world().find_place(source, bytes, context->device);
  if (place.start == nullptr) {
    return world().misuse("cuMemcpyDtoH", "from what is no allocation of this device",
                          CuResult::invalid_value);
  }
  drain_default(lock, context);
  lock.unlock();
  std::memcpy(target, place.start, bytes);
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuStreamCreate(CuStream* handle, unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuStreamCreate", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = std::make_shared<CuStreamObject>(world().current(), flags);
  *handle = stream.get();
  world().streams[*handle] = stream;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuStreamDestroy_v2(CuStream handle) {
  Lock lock(world().mutex);
  const CuResult answer = world().require("cuStreamDestroy", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto found = world().streams.find(handle);
  if (found == world().streams.end())
    return world().misuse("cuStreamDestroy", "of no stream", CuResult::invalid_handle);
  const auto stream = found->second;
  if (!stream->is_empty()) world().misuse("cuStreamDestroy", "with work in flight", CuResult::success);
  world().streams.erase(found);
  stream->close(lock);
  return world().fault("cuStreamDestroy");
}

FAKE_CUDA_EXPORT CuResult cuStreamWaitEvent(CuStream handle, CuEvent event_handle, unsigned flags) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuStreamWaitEvent", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = world().find_stream(handle);
  const auto event = world().find_event(event_handle);
  if (stream == nullptr || event == nullptr || flags != 0) {
    return world().misuse("cuStreamWaitEvent", "no such stream or event", CuResult::invalid_handle);
  }
  stream->push(QueuedWait{{event, event->recorded}});
  return CuResult::success;
}

// Waits even where a call before failed, as a real one ends only when nothing runs any more.
FAKE_CUDA_EXPORT CuResult cuStreamSynchronize(CuStream handle) {
  Lock lock(world().mutex);
  const CuResult answer = world().require("cuStreamSynchronize", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = world().find_stream(handle);
  if (stream == nullptr)
    return world().misuse("cuStreamSynchronize", "of no stream", CuResult::invalid_handle);
  stream->drain(lock);
  const CuResult fault = world().fault("cuStreamSynchronize");
  return fault != CuResult::success ? fault : failure_of(stream->context);
}

FAKE_CUDA_EXPORT CuResult cuEventCreate(CuEvent* handle, unsigned /*flags*/) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuEventCreate", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto event = std::make_shared<CuEventObject>();
  event->context = world().current();
  *handle = event.get();
  world().events[*handle] = event;
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuEventDestroy_v2(CuEvent handle) {
  const Lock lock(world().mutex);
  const CuResult answer = world().require("cuEventDestroy", Needs::context);
  if (answer != CuResult::success) return answer;
  if (world().events.erase(handle) == 0)
    return world().misuse("cuEventDestroy", "of no event", CuResult::invalid_handle);
  return world().fault("cuEventDestroy");
}

FAKE_CUDA_EXPORT CuResult cuEventRecord(CuEvent event_handle, CuStream handle) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuEventRecord", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto stream = world().find_stream(handle);
  const auto event = world().find_event(event_handle);
  if (stream == nullptr || event == nullptr || stream->context != event->context) {
    return world().misuse("cuEventRecord", "no such event or stream of one context",
                          CuResult::invalid_handle);
  }
  stream->push(QueuedRecord{{event, ++event->recorded}});
  return CuResult::success;
}

FAKE_CUDA_EXPORT CuResult cuEventQuery(CuEvent handle) {
  const Lock lock(world().mutex);
  const CuResult answer = world().enter("cuEventQuery", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto event = world().find_event(handle);
  if (event == nullptr) return world().misuse("cuEventQuery", "of no event", CuResult::invalid_handle);
  return event->completed >= event->recorded ? CuResult::success : CuResult::not_ready;
}

FAKE_CUDA_EXPORT CuResult cuEventSynchronize(CuEvent handle) {
  Lock lock(world().mutex);
  const CuResult answer = world().enter("cuEventSynchronize", Needs::context);
  if (answer != CuResult::success) return answer;
  const auto event = world().find_event(handle);
  if (event == nullptr) return world().misuse("cuEventSynchronize", "of no event", CuResult::invalid_handle);
  world().changed.wait(lock, [&] { return event->completed >= event->recorded; });
  return failure_of(event->context);
}

}  // namespace inrush::fakes
