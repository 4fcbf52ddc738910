#include "gpu/cuda_copy_stream.hpp"

#include <inrush/error.hpp>

#include "base/engine_thread.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

// CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device since 2010.
constexpr std::uint64_t pitch_bytes_max = 2147483647;
// Runs below this go by one kernel, from so many on: larger ones are faster by the copy engine (55 GB/s, the
// kernel 51), and so are few.
constexpr std::uint64_t kernel_run_bytes_max = 1ULL << 20;
constexpr std::ptrdiff_t kernel_runs_min = 4;
constexpr std::uint64_t staged_bytes_min = 256ULL << 10;

bool is_one_run(const Copy& copy) {
  return copy.row_count == 1 ||
         (copy.source_pitch_bytes == copy.row_bytes && copy.target_pitch_bytes == copy.row_bytes);
}

bool is_small_run(const Copy& copy) {
  return is_one_run(copy) && copy.row_bytes * copy.row_count < kernel_run_bytes_max;
}

// From the first byte to the end of the last run: they are in order.
std::uint64_t span_of(std::span<const CopyRun> runs) {
  return runs.back().source + runs.back().bytes - runs.front().source;
}

// All of the span crosses the bus, so little else may lie between the runs, and few bytes are not worth a
// copy more.
bool is_worth_staging(std::span<const CopyRun> runs) {
  std::uint64_t bytes = 0;
  for (const CopyRun& run : runs) bytes += run.bytes;
  return bytes >= staged_bytes_min && bytes >= span_of(runs) - span_of(runs) / 8;
}

CuAddress address_of(const void* device_memory) { return reinterpret_cast<std::uintptr_t>(device_memory); }

}  // namespace

void CudaCopyStream::DestroyStream::operator()(CuStream stream) const noexcept {
  context->release([stream](const CudaTable& table) { table.stream_destroy(stream); });
}

void CudaCopyStream::DestroyEvent::operator()(CuEvent event) const noexcept {
  context->release([event](const CudaTable& table) { table.event_destroy(event); });
}

// Non-blocking: the null stream, which torch uses, would else wait for our copies and ours for its kernels.
CudaCopyStream::Stream CudaCopyStream::make_stream() const {
  const CudaBinding binding(*context_);
  CuStream stream = nullptr;
  context_->check(context_->table().stream_create(&stream, cu_stream_non_blocking), "cuStreamCreate");
  return {stream, DestroyStream{context_.get()}};
}

// Not blocking: an event that wakes a sleeper costs the copy engine time at each record (pieces of 4 MiB,
// H200: 0.865 of the limit with it, 0.885 without), and the path polls; only the end of a load waits.
CudaCopyStream::Event CudaCopyStream::make_event() const {
  const CudaBinding binding(*context_);
  CuEvent event = nullptr;
  context_->check(context_->table().event_create(&event, cu_event_no_timing), "cuEventCreate");
  return {event, DestroyEvent{context_.get()}};
}

CudaCopyStream::CudaCopyStream(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)), stream_(make_stream()), order_event_(make_event()) {}

CudaCopyStream::~CudaCopyStream() {
  if (kernel_thread_.joinable()) kernel_thread_.join();
  context_->release([this](const CudaTable& table) { table.stream_synchronize(stream_.get()); });
}

std::uint64_t CudaCopyStream::copy(std::span<const Copy> copies) {
  const CudaBinding binding(*context_);
  const std::optional<std::uint64_t> device_offset = kernel_offset(copies);
  std::uint64_t count = 0;
  CopySource from = CopySource::host;
  runs_.clear();
  for (const Copy& copy : copies) {
    if (device_offset && is_small_run(copy)) {
      from = copy.from;
      runs_.push_back({address_of(copy.source), address_of(copy.target), copy.row_bytes * copy.row_count});
    } else {
      start(copy);
      ++count;
    }
  }
  return runs_.empty() ? count : count + scatter(from, *device_offset);
}

// In spans that the stage takes at once.
std::uint64_t CudaCopyStream::scatter(CopySource from, std::uint64_t device_offset) {
  std::ranges::sort(runs_, {}, &CopyRun::source);
  std::uint64_t count = 0;
  for (std::size_t first = 0, end = 0; first < runs_.size(); first = end) {
    while (end < runs_.size() &&
           span_of(std::span(runs_).subspan(first, end + 1 - first)) <= CopyStage::span_bytes_max)
      ++end;
    count += scatter(std::span(runs_).subspan(first, end - first), from, device_offset);
  }
  return count;
}

std::uint64_t CudaCopyStream::scatter(std::span<CopyRun> runs, CopySource from, std::uint64_t device_offset) {
  const bool is_staged = from == CopySource::host && is_worth_staging(runs) && has_stage();
  if (is_staged) {
    // Its type is a number for the kernel.
    const auto* const source = reinterpret_cast<const std::byte*>(runs.front().source);
    device_offset = stage_->bring(source, span_of(runs), stream_.get()) - runs.front().source;
  }
  for (CopyRun& run : runs) run.source += device_offset;
  const std::uint64_t launch_count = kernel_->start(runs, stream_.get());
  if (is_staged) stage_->release(stream_.get());
  return launch_count + (is_staged ? 1 : 0);
}

void CudaCopyStream::begin_kernel() {
  if (kernel_thread_.joinable() || kernel_is_done_) return;
  if (context_->waiting_streams().any(context_->table())) return;  // a later load may have it
  try {
    kernel_thread_ = start_engine_thread("inrush-kernel", [this] { make_kernel(); });
  } catch (const std::system_error&) {
    make_kernel();
  }
}

void CudaCopyStream::make_kernel() noexcept {
  try {
    const CudaBinding binding(*context_);
    const auto load_code = [this] { kernel_ = std::make_unique<CopyKernel>(context_); };
    if (!context_->waiting_streams().run_alone(context_->table(), load_code))
      kernel_refusal_ = "a stream waits for a value, and loading code would wait for it";
  } catch (const std::exception& error) {
    kernel_refusal_ = error.what();
  }
  kernel_is_done_ = true;
}

bool CudaCopyStream::has_stage() {
  if (kernel_use_ != KernelUse::staged) return false;
  if (stage_ != nullptr || !stage_refusal_.empty()) return stage_ != nullptr;
  try {
    stage_ = std::make_unique<CopyStage>(context_, reserved_bytes_);
  } catch (const Error& error) {
    stage_refusal_ = error.what();
  }
  return stage_ != nullptr;
}

void CudaCopyStream::use_kernel(KernelUse use, std::uint64_t reserved_bytes) {
  kernel_use_ = use;
  reserved_bytes_ = reserved_bytes;
  stage_refusal_.clear();
  if (use == KernelUse::forbidden && kernel_thread_.joinable()) kernel_thread_.join();
}

const std::string& CudaCopyStream::kernel_refusal() const noexcept {
  static const std::string none_yet;
  return kernel_is_done_ ? kernel_refusal_ : none_yet;
}

// Of the copies' sources, where the kernel is for them and there.
std::optional<std::uint64_t> CudaCopyStream::kernel_offset(std::span<const Copy> copies) {
  if (kernel_use_ == KernelUse::forbidden || std::ranges::count_if(copies, is_small_run) < kernel_runs_min)
    return std::nullopt;
  const std::optional<std::uint64_t> offset = device_offset_of(*std::ranges::find_if(copies, is_small_run));
  if (!offset) return std::nullopt;
  begin_kernel();
  return kernel_is_done_ && kernel_ != nullptr ? offset : std::nullopt;
}

// What leads from the source's address to the one that the device knows it by; nothing where the memory is
// not pinned.
std::optional<std::uint64_t> CudaCopyStream::device_offset_of(const Copy& copy) const {
  if (copy.from == CopySource::device) return 0;
  CuAddress address = 0;
  // Its type has no const.
  auto* const source = const_cast<std::byte*>(copy.source);
  if (context_->table().mem_host_get_device_pointer(&address, source, 0) != CuResult::success)
    return std::nullopt;
  return address - address_of(copy.source);
}

void CudaCopyStream::start(const Copy& copy) const {
  if (copy.row_bytes == 0 || copy.row_count == 0) return;
  if (is_one_run(copy)) return start_run(copy);
  if (copy.source_pitch_bytes <= pitch_bytes_max && copy.target_pitch_bytes <= pitch_bytes_max)
    return start_rows(copy);
  for (std::uint64_t row = 0; row < copy.row_count; ++row) {
    start_run({.source = copy.source + row * copy.source_pitch_bytes,
               .target = static_cast<std::byte*>(copy.target) + row * copy.target_pitch_bytes,
               .row_bytes = copy.row_bytes,
               .from = copy.from});
  }
}

void CudaCopyStream::start_run(const Copy& copy) const {
  const std::uint64_t bytes = copy.row_bytes * copy.row_count;
  std::uint64_t part_bytes = bytes;
  for (std::uint64_t done_bytes = 0; done_bytes < bytes; done_bytes += part_bytes) {
    const CuAddress address = address_of(copy.target) + done_bytes;
    const std::byte* const source = copy.source + done_bytes;
    const auto queue = [&] {
      const CudaTable& table = context_->table();
      return copy.from == CopySource::host
                 ? table.memcpy_htod_async(address, source, part_bytes, stream_.get())
                 : table.memcpy_dtod_async(address, address_of(source), part_bytes, stream_.get());
    };
    part_bytes = bytes - done_bytes;
    CuResult result = queue();
    const std::uint64_t room_bytes = result == CuResult::invalid_value ? bytes_in_allocation(address) : 0;
    if (0 < room_bytes && room_bytes < part_bytes) {
      part_bytes = room_bytes;
      result = queue();
    }
    if (result != CuResult::success)
      context_->check(result,
                      fmt::format("cuMemcpy{}Async of {}", copy.from == CopySource::host ? "HtoD" : "DtoD",
                                  bytes_text(bytes)));
  }
}

// Targets of the caller's may be neighbours in memory and yet lie in two allocations, and the driver refuses
// a copy that spans them (acts-project/vecmem#175 and #201). Looked up only after a refusal. 0: it does not
// know.
std::uint64_t CudaCopyStream::bytes_in_allocation(CuAddress address) const {
  CuAddress start = 0;
  std::size_t bytes = 0;
  const CuResult result = context_->table().mem_get_address_range(&start, &bytes, address);
  return result == CuResult::success ? start + bytes - address : 0;
}

void CudaCopyStream::start_rows(const Copy& copy) const {
  const bool from_host = copy.from == CopySource::host;
  const CuCopy2D rows = {.source_x_bytes = 0,
                         .source_y = 0,
                         .source_type = from_host ? CuMemoryType::host : CuMemoryType::device,
                         .source_host = from_host ? copy.source : nullptr,
                         .source_device = from_host ? 0 : address_of(copy.source),
                         .source_array = nullptr,
                         .source_pitch = copy.source_pitch_bytes,
                         .target_x_bytes = 0,
                         .target_y = 0,
                         .target_type = CuMemoryType::device,
                         .target_host = nullptr,
                         .target_device = address_of(copy.target),
                         .target_array = nullptr,
                         .target_pitch = copy.target_pitch_bytes,
                         .width_bytes = copy.row_bytes,
                         .height = copy.row_count};
  const CuResult result = context_->table().memcpy_2d_async(&rows, stream_.get());
  if (result != CuResult::success) {
    context_->check(
        result, fmt::format("cuMemcpy2DAsync of {} rows of {}", copy.row_count, bytes_text(copy.row_bytes)));
  }
}

std::uint64_t CudaCopyStream::record() {
  Event event = idle_events_.empty() ? make_event() : std::move(idle_events_.back());
  if (!idle_events_.empty()) idle_events_.pop_back();
  const CudaBinding binding(*context_);
  context_->check(context_->table().event_record(event.get(), stream_.get()), "cuEventRecord");
  pending_.push_back({recorded_ + 1, std::move(event)});
  return ++recorded_;
}

std::uint64_t CudaCopyStream::reached() {
  if (pending_.empty()) return reached_;
  const CudaBinding binding(*context_);
  while (!pending_.empty()) {
    const CuResult result = context_->table().event_query(pending_.front().event.get());
    if (result == CuResult::not_ready) break;
    context_->check(result, "cuEventQuery after copies");
    retire();
  }
  return reached_;
}

void CudaCopyStream::wait(std::uint64_t ticket) {
  if (ticket <= reached_) return;
  if (ticket > recorded_) {
    throw Error(ErrorCode::internal,
                fmt::format("wait for ticket {} of {}: it was never recorded", ticket, recorded_));
  }
  const CudaBinding binding(*context_);
  // Events of one stream complete in order: the ticket's own stands for all before it.
  const Event& event = pending_.at(ticket - pending_.front().ticket).event;
  context_->check(context_->table().event_synchronize(event.get()), "cuEventSynchronize after copies");
  while (reached_ < ticket) retire();
}

// A completed event can be recorded anew: a ring of n slots never has more than n of them.
void CudaCopyStream::retire() {
  reached_ = pending_.front().ticket;
  idle_events_.push_back(std::move(pending_.front().event));
  pending_.pop_front();
}

// Recorded on their stream, waited for by ours: nobody blocks, and work that they queue later does not hold
// us up.
void CudaCopyStream::order_after(void* stream) {
  const std::lock_guard lock(order_mutex_);
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  context_->check(table.event_record(order_event_.get(), static_cast<CuStream>(stream)),
                  "cuEventRecord on the caller's stream");
  context_->check(table.stream_wait_event(stream_.get(), order_event_.get(), 0), "cuStreamWaitEvent");
}

void CudaCopyStream::order_before(void* stream) {
  const std::lock_guard lock(order_mutex_);
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  context_->check(table.event_record(order_event_.get(), stream_.get()), "cuEventRecord");
  context_->check(table.stream_wait_event(static_cast<CuStream>(stream), order_event_.get(), 0),
                  "cuStreamWaitEvent on the caller's stream");
}

void CudaCopyStream::fill(void* target, std::uint64_t size_bytes, std::byte value) {
  if (size_bytes == 0) return;
  const CudaBinding binding(*context_);
  context_->check(context_->table().memset_d8_async(address_of(target), std::to_integer<unsigned char>(value),
                                                    size_bytes, stream_.get()),
                  "cuMemsetD8Async");
}

}  // namespace inrush::engine
