#include "gpu/cuda_stream_flags.hpp"

#include <inrush/error.hpp>

#include "base/clock.hpp"

#include <fmt/format.h>

#include <atomic>
#include <thread>
#include <utility>

namespace inrush::engine {

namespace {

// How long a stream may take to pass a word that is set already. Microseconds were seen.
constexpr auto trial_patience = std::chrono::seconds(2);

// One word more than the caller's: the last is for the trial.
std::uint64_t bytes_for(std::uint32_t count) { return (std::uint64_t{count} + 1) * sizeof(std::uint32_t); }

}  // namespace

CudaStreamFlags::CudaStreamFlags(std::shared_ptr<const CudaContext> context, const StreamFlagsShape& shape)
    : context_(std::move(context)),
      stream_count_max_(shape.stream_count_max),
      pages_(std::make_unique<HostPages>(bytes_for(shape.count))) {
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  std::byte* const start = pages_->bytes().data();
  context_->check(table.mem_host_register(start, pages_->bytes().size(), cu_register_portable),
                  "cuMemHostRegister of flags");
  try {
    context_->check(table.mem_host_get_device_pointer(&address_, start, 0), "cuMemHostGetDevicePointer");
    try_out(shape.count);
  } catch (...) {
    if (pages_ != nullptr) table.mem_host_unregister(start);
    throw;
  }
}

// A driver that takes the call and never passes it would block the caller's stream for good.
void CudaStreamFlags::try_out(std::uint32_t index) {
  set(index);
  const CudaTable& table = context_->table();
  CuStream stream = nullptr;
  context_->check(table.stream_create(&stream, cu_stream_non_blocking), "cuStreamCreate");
  CuEvent event = nullptr;
  CuResult result = table.event_create(&event, cu_event_no_timing);
  if (result == CuResult::success)
    result = table.stream_wait_value_32(stream, address_ + index * sizeof(std::uint32_t), 1,
                                        cu_wait_until_at_least);
  if (result == CuResult::success) result = table.event_record(event, stream);
  const Clock::time_point give_up = Clock::now() + trial_patience;
  while (result == CuResult::success) {
    result = table.event_query(event);
    if (result != CuResult::not_ready || Clock::now() > give_up) break;
    result = CuResult::success;
    std::this_thread::yield();
  }
  if (event != nullptr) table.event_destroy(event);
  if (result == CuResult::not_ready) {
    static_cast<void>(pages_.release());  // it looks there, for ever; destroying it would wait for it
  } else {
    table.stream_destroy(stream);
  }
  if (result == CuResult::success) return;
  throw Error(
      ErrorCode::environment_unfit,
      fmt::format("{}: streams cannot wait for values in host memory: cuStreamWaitValue32: {}; wait by "
                  "event",
                  device_name(context_->device()), cuda_result_text(table, result)));
}

CudaStreamFlags::~CudaStreamFlags() {
  context_->release([this](const CudaTable& table) {
    for (const auto& [stream, event] : passed_) {
      table.event_synchronize(event);
      context_->waiting_streams().forget(event);
      table.event_destroy(event);
    }
    table.mem_host_unregister(pages_->bytes().data());
  });
  context_->free_kept();
}

std::uint32_t* CudaStreamFlags::words() const noexcept {
  return reinterpret_cast<std::uint32_t*>(pages_->bytes().data());
}

void CudaStreamFlags::set(std::uint32_t index) noexcept {
  std::atomic_ref(words()[index]).store(1, std::memory_order_release);
}

CuEvent CudaStreamFlags::event_of(CuStream stream) {
  CuEvent& event = passed_[stream];
  if (event == nullptr)
    context_->check(context_->table().event_create(&event, cu_event_no_timing), "cuEventCreate");
  return event;
}

void CudaStreamFlags::wait(std::uint32_t index, void* stream) {
  if (std::atomic_ref(words()[index]).load(std::memory_order_acquire) != 0) return;  // nothing to wait for
  const std::lock_guard lock(mutex_);
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  auto* const waiting = static_cast<CuStream>(stream);
  const CuEvent event = event_of(waiting);
  const auto queue = [&] {
    context_->check(table.stream_wait_value_32(waiting, address_ + index * sizeof(std::uint32_t), 1,
                                               cu_wait_until_at_least),
                    "cuStreamWaitValue32");
    context_->check(table.event_record(event, waiting), "cuEventRecord on the caller's stream");
  };
  if (context_->waiting_streams().add(table, {waiting, event}, stream_count_max_, queue)) return;
  throw Error(
      ErrorCode::invalid_request,
      fmt::format("{}: {} streams wait for values already, and more could stand before the copies that "
                  "they wait for (half of the queues that the device has for streams): wait with fewer "
                  "streams, or by event",
                  device_name(context_->device()), stream_count_max_));
}

}  // namespace inrush::engine
