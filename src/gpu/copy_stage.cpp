#include "gpu/copy_stage.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "gpu/cuda_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace inrush::engine {

namespace {

// A load that just fits must go on fitting, and what others want meanwhile too.
constexpr std::uint64_t share_of_spare = 8;

}  // namespace

CopyStage::CopyStage(std::shared_ptr<const CudaContext> context, std::uint64_t reserved_bytes)
    : context_(std::move(context)) {
  try {
    prepare(reserved_bytes);
  } catch (...) {
    destroy();
    throw;
  }
}

CopyStage::~CopyStage() { destroy(); }

void CopyStage::prepare(std::uint64_t reserved_bytes) {
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  require(table.mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  constexpr std::uint64_t bytes = buffer_count * buffer_bytes;
  const std::uint64_t spare_bytes = free_bytes - std::min<std::uint64_t>(free_bytes, reserved_bytes);
  if (spare_bytes / share_of_spare < bytes) {
    throw Error(ErrorCode::environment_unfit,
                fmt::format("{}: {} to stage small tensors in is too much of the {} that stay free",
                            device_name(context_->device()), bytes_text(bytes), bytes_text(spare_bytes)));
  }
  require(table.stream_create(&stream_, cu_stream_non_blocking), "cuStreamCreate");
  require(table.event_create(&brought_, cu_event_no_timing), "cuEventCreate");
  require(table.mem_alloc(&memory_, bytes), "cuMemAlloc");
  for (std::size_t i = 0; i < buffer_count; ++i) {
    buffers_[i].address = memory_ + i * buffer_bytes;
    require(table.event_create(&buffers_[i].used, cu_event_no_timing), "cuEventCreate");
  }
}

void CopyStage::require(CuResult result, const char* call) const {
  if (result == CuResult::success) return;
  throw Error(ErrorCode::environment_unfit,
              fmt::format("{}: {} to stage small tensors: {}", device_name(context_->device()), call,
                          cuda_result_text(context_->table(), result)));
}

void CopyStage::destroy() const noexcept {
  context_->release([this](const CudaTable& table) {
    if (stream_ != nullptr) table.stream_synchronize(stream_);
    for (const Buffer& buffer : buffers_) {
      if (buffer.used != nullptr) table.event_destroy(buffer.used);
    }
    if (memory_ != 0) table.mem_free(memory_);
    if (brought_ != nullptr) table.event_destroy(brought_);
    if (stream_ != nullptr) table.stream_destroy(stream_);
  });
}

CuAddress CopyStage::bring(const std::byte* source, std::uint64_t bytes, CuStream stream) {
  const CudaTable& table = context_->table();
  const Buffer& buffer = buffers_[next_];
  if (buffer.is_used)
    context_->check(table.stream_wait_event(stream_, buffer.used, 0), "cuStreamWaitEvent for a stage");
  const CuAddress address = buffer.address + reinterpret_cast<std::uintptr_t>(source) % margin_bytes;
  context_->check(table.memcpy_htod_async(address, source, bytes, stream_),
                  "cuMemcpyHtoDAsync of small tensors");
  context_->check(table.event_record(brought_, stream_), "cuEventRecord behind small tensors");
  context_->check(table.stream_wait_event(stream, brought_, 0), "cuStreamWaitEvent for small tensors");
  return address;
}

void CopyStage::release(CuStream stream) {
  Buffer& buffer = buffers_[next_];
  context_->check(context_->table().event_record(buffer.used, stream), "cuEventRecord after a kernel");
  buffer.is_used = true;
  next_ = (next_ + 1) % buffers_.size();
}

}  // namespace inrush::engine
