#include "gpu/cuda_context.hpp"

#include <inrush/error.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <new>
#include <string>

namespace inrush::engine {

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, Device device)
    : driver_(std::move(driver)), device_(std::move(device)), process_(::getpid()) {
  check(table().device_get(&ordinal_, static_cast<int>(device_.index)), "cuDeviceGet");
  const CuResult result = table().primary_ctx_retain(&handle_, ordinal_);
  if (result == CuResult::out_of_memory) {
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("{}: cuDevicePrimaryCtxRetain: {}: no room for a context; free memory on the device",
                    device_name(device_), cuda_result_text(table(), result)));
  }
  check(result, "cuDevicePrimaryCtxRetain");
}

// What a parent's context looks like from a forked child is undefined: even giving it back is a call too
// many.
CudaContext::~CudaContext() {
  free_kept();
  if (is_own_process()) table().primary_ctx_release(ordinal_);
}

void CudaContext::check(CuResult result, std::string_view call) const {
  if (result == CuResult::success) return;
  throw Error(ErrorCode::device_failed,
              fmt::format("{}: {}: {}", device_name(device_), call, cuda_result_text(table(), result)));
}

void CudaContext::free(CuAddress address) const noexcept {
  release([this, address](const CudaTable& table) {
    try {
      if (waiting_.run_alone(table, [&] { table.mem_free(address); })) return;
      waiting_.keep(address);
    } catch (const std::bad_alloc&) {
      table.mem_free(address);  // which waits
    }
  });
}

void CudaContext::free_kept() const noexcept {
  release([this](const CudaTable& table) {
    const auto free_all = [&] {
      for (const CuAddress address : waiting_.take_kept()) table.mem_free(address);
    };
    static_cast<void>(waiting_.run_alone(table, free_all));
  });
}

// Asked at every call: getpid() costs 0.16 us, and pthread_atfork() would be state of the process.
bool CudaContext::is_own_process() const noexcept { return ::getpid() == process_; }

// Pushed and popped rather than set: torch, or another device of ours, may have a context current on this
// thread.
void CudaContext::bind() const {
  if (!is_own_process()) {
    throw Error(ErrorCode::invalid_request,
                device_name(device_) +
                    ": CUDA does not survive a fork; open the device in the child, or start it by spawn");
  }
  check(table().ctx_push_current(handle_), "cuCtxPushCurrent");
}

void CudaContext::unbind() const noexcept {
  CuContext popped = nullptr;
  table().ctx_pop_current(&popped);
}

}  // namespace inrush::engine
