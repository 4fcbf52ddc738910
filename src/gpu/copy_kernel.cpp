#include "gpu/copy_kernel.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "gpu/cuda_context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace inrush::engine {

namespace {

// What one warp copies. A piece of 4 MiB gives 512 warps work, and their list is 0.3 % of its bytes.
constexpr std::uint64_t run_bytes_max = 8ULL << 10;
constexpr std::size_t list_runs_max = 2048;
constexpr std::uint64_t list_bytes = list_runs_max * sizeof(CopyRun);
constexpr unsigned threads_per_block = 256;
constexpr unsigned warps_per_block = threads_per_block / 32;
// A warp has 2 KiB on their way over the bus, which takes some microseconds: 512 warps hide that.
constexpr unsigned blocks_max = 64;

}  // namespace

CopyKernel::CopyKernel(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)), pages_(list_count * list_bytes) {
  try {
    prepare();
  } catch (...) {
    release();
    throw;
  }
}

CopyKernel::~CopyKernel() { release(); }

void CopyKernel::prepare() {
  const CudaBinding binding(*context_);
  const CudaTable& table = context_->table();
  require(table.module_load_data(&module_, copy_kernel_ptx), "cuModuleLoadData");
  require(table.module_get_function(&function_, module_, copy_kernel_name), "cuModuleGetFunction");
  const std::span<std::byte> memory = pages_.bytes();
  require(table.mem_host_register(memory.data(), memory.size(), cu_register_portable), "cuMemHostRegister");
  is_pinned_ = true;
  CuAddress address = 0;
  require(table.mem_host_get_device_pointer(&address, memory.data(), 0), "cuMemHostGetDevicePointer");
  for (std::size_t i = 0; i < list_count; ++i) {
    lists_[i].entries = reinterpret_cast<CopyRun*>(memory.data() + i * list_bytes);
    lists_[i].address = address + i * list_bytes;
    require(table.event_create(&lists_[i].event, cu_event_no_timing), "cuEventCreate");
  }
}

void CopyKernel::require(CuResult result, const char* call) const {
  if (result == CuResult::success) return;
  throw Error(ErrorCode::environment_unfit, fmt::format("{}: {} for the kernel that copies small tensors: {}",
                                                        device_name(context_->device()), call,
                                                        cuda_result_text(context_->table(), result)));
}

void CopyKernel::release() const noexcept {
  context_->release([this](const CudaTable& table) {
    for (const List& list : lists_) {
      if (list.event != nullptr) table.event_destroy(list.event);
    }
    if (is_pinned_) table.mem_host_unregister(pages_.bytes().data());
    if (module_ != nullptr) table.module_unload(module_);
  });
}

std::uint64_t CopyKernel::start(std::span<const CopyRun> runs, CuStream stream) {
  std::uint64_t launch_count = 0;
  for (const CopyRun& run : runs) {
    for (std::uint64_t done_bytes = 0; done_bytes < run.bytes; done_bytes += run_bytes_max) {
      if (run_count_ == list_runs_max) {
        launch(stream);
        ++launch_count;
      }
      List& list = lists_[list_];
      if (run_count_ == 0 && std::exchange(list.is_used, true))
        context_->check(context_->table().event_synchronize(list.event), "cuEventSynchronize after a kernel");
      list.entries[run_count_++] = {run.source + done_bytes, run.target + done_bytes,
                                    std::min(run_bytes_max, run.bytes - done_bytes)};
    }
  }
  if (run_count_ == 0) return launch_count;
  launch(stream);
  return launch_count + 1;
}

void CopyKernel::launch(CuStream stream) {
  List& list = lists_[list_];
  auto count = static_cast<unsigned>(std::exchange(run_count_, 0));
  list_ = (list_ + 1) % list_count;
  const unsigned blocks = std::min(blocks_max, (count + warps_per_block - 1) / warps_per_block);
  std::array<void*, 2> parameters = {&list.address, &count};
  const CudaTable& table = context_->table();
  context_->check(table.launch_kernel(function_, blocks, 1, 1, threads_per_block, 1, 1, 0, stream,
                                      parameters.data(), nullptr),
                  "cuLaunchKernel of the kernel that copies small tensors");
  context_->check(table.event_record(list.event, stream), "cuEventRecord after a kernel");
}

}  // namespace inrush::engine
