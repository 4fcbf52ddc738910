#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"
#include "gpu/cuda_context.hpp"
#include "gpu/cuda_copy_stream.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/cuda_stream_flags.hpp"
#include "gpu/cuda_table.hpp"
#include "gpu/cufile_driver.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::uint64_t natural_alignment_bytes = 256;  // what cuMemAlloc promises

void* pointer_to(CuAddress address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

// "Out of memory" with an empty GPU misled many (microsoft/WSL#14078): say which memory is meant. The limit
// is a hint: some drivers and sandboxes charge pinned memory to it, most do not.
std::string pin_advice(CuResult result, std::uint64_t wanted_bytes) {
  if (result != CuResult::out_of_memory) return "";
  std::string advice = "; pinned host memory is short, not the device's";
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur >= wanted_bytes) return advice;
  return advice + fmt::format("; RLIMIT_MEMLOCK is {} (ulimit -l)", bytes_text(limit.rlim_cur));
}

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(std::shared_ptr<const CudaContext> context) : context_(std::move(context)) {}

  [[nodiscard]] const Device& device() const noexcept override { return context_->device(); }
  [[nodiscard]] bool is_host() const noexcept override { return false; }
  [[nodiscard]] DeviceMemoryInfo memory_info() const override;
  [[nodiscard]] std::shared_ptr<void> allocate(std::uint64_t size_bytes,
                                               std::uint64_t alignment_bytes) override;
  [[nodiscard]] std::shared_ptr<void> pin(std::span<std::byte> memory, std::string& refusal) override {
    return register_memory(memory, cu_register_portable, refusal);
  }
  [[nodiscard]] std::shared_ptr<void> pin_read_only(std::span<std::byte> memory,
                                                    std::string& refusal) override {
    return register_memory(memory, cu_register_portable | cu_register_read_only, refusal);
  }
  [[nodiscard]] std::unique_ptr<CopyStream> open_stream() override {
    return std::make_unique<CudaCopyStream>(context_);
  }
  void copy_to_host(const void* source, std::span<std::byte> target) override;
  [[nodiscard]] std::unique_ptr<StreamFlags> open_flags(const StreamFlagsShape& shape) override {
    return std::make_unique<CudaStreamFlags>(context_, shape);
  }
  [[nodiscard]] bool streams_wait() override {
    const CudaBinding binding(*context_);
    return context_->waiting_streams().any(context_->table());
  }
  [[nodiscard]] std::shared_ptr<CufileDriver> open_cufile(const CufileOptions& options) override {
    return std::make_shared<CufileDriver>(options, context_);
  }

 private:
  [[nodiscard]] std::shared_ptr<void> register_memory(std::span<std::byte> memory, unsigned flags,
                                                      std::string& refusal) const;
  [[nodiscard]] Error no_memory(std::uint64_t wanted_bytes) const;

  std::shared_ptr<const CudaContext> context_;
};

DeviceMemoryInfo CudaGpu::memory_info() const {
  const CudaBinding binding(*context_);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  context_->check(context_->table().mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  return {free_bytes, total_bytes};
}

Error CudaGpu::no_memory(std::uint64_t wanted_bytes) const {
  const DeviceMemoryInfo info = memory_info();
  return {ErrorCode::out_of_memory,
          fmt::format("{}: cuMemAlloc of {}: {}; {} of {} are free: load less, or free memory on the device",
                      device_name(device()), bytes_text(wanted_bytes),
                      cuda_result_text(context_->table(), CuResult::out_of_memory),
                      bytes_text(info.free_bytes), bytes_text(info.total_bytes))};
}

std::shared_ptr<void> CudaGpu::allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
  const std::uint64_t slack = alignment_bytes > natural_alignment_bytes ? alignment_bytes : 0;
  const auto wanted = checked_add(std::max<std::uint64_t>(size_bytes, 1), slack);
  if (!wanted) throw no_memory(size_bytes);
  const CudaBinding binding(*context_);
  CuAddress address = 0;
  const CuResult result = context_->table().mem_alloc(&address, *wanted);
  if (result == CuResult::out_of_memory) throw no_memory(*wanted);
  if (result != CuResult::success) context_->check(result, "cuMemAlloc of " + bytes_text(*wanted));
  std::shared_ptr<void> block(pointer_to(address),
                              [context = context_, address](void*) noexcept { context->free(address); });
  if (slack == 0) return block;
  return {block, pointer_to(round_up(address, alignment_bytes))};
}

std::shared_ptr<void> CudaGpu::register_memory(std::span<std::byte> memory, unsigned flags,
                                               std::string& refusal) const {
  const CudaBinding binding(*context_);
  const CuResult result = context_->table().mem_host_register(memory.data(), memory.size(), flags);
  if (result != CuResult::success) {
    refusal = fmt::format("{}: cuMemHostRegister of {} of HOST memory: {}{}", device_name(device()),
                          bytes_text(memory.size()), cuda_result_text(context_->table(), result),
                          pin_advice(result, memory.size()));
    return nullptr;
  }
  return {memory.data(), [context = context_](void* start) noexcept {
            context->release([start](const CudaTable& table) { table.mem_host_unregister(start); });
          }};
}

void CudaGpu::copy_to_host(const void* source, std::span<std::byte> target) {
  if (target.empty()) return;
  const CudaBinding binding(*context_);
  const CuAddress address = reinterpret_cast<std::uintptr_t>(source);
  const CuResult result = context_->table().memcpy_dtoh(target.data(), address, target.size());
  if (result != CuResult::success) context_->check(result, "cuMemcpyDtoH of " + bytes_text(target.size()));
}

std::string device_list(const std::vector<Device>& devices) {
  std::string text;
  for (const Device& device : devices) {
    text += fmt::format("{}cuda:{} ({})", text.empty() ? "" : ", ", device.index, device.uuid);
  }
  return text;
}

// As CUDA_VISIBLE_DEVICES does: the beginning of a UUID is enough where it is the only such one; hexadecimal
// in either case.
bool names(std::string_view spelling, std::string_view uuid) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return spelling.size() <= uuid.size() && std::equal(spelling.begin(), spelling.end(), uuid.begin(), same);
}

Device resolve(const CudaDriver& driver, const Device& wanted) {
  const std::vector<Device> devices = driver.devices();
  std::vector<Device> matches;
  for (const Device& device : devices) {
    if (!wanted.uuid.empty() && names(wanted.uuid, device.uuid)) matches.push_back(device);
    if (wanted.uuid.empty() && wanted.index == device.index) matches.push_back(wanted);
  }
  const std::string name = printable(device_name(wanted));
  if (matches.empty()) {
    throw Error(ErrorCode::environment_unfit,
                fmt::format("{}: there is no such device; this process sees {}", name, device_list(devices)));
  }
  if (matches.size() > 1) {
    throw Error(
        ErrorCode::invalid_request,
        fmt::format("{}: names more than one device: {}; give more of the UUID", name, device_list(matches)));
  }
  return matches.front();
}

}  // namespace

std::shared_ptr<Gpu> open_cuda_gpu(std::shared_ptr<const CudaDriver> driver, const Device& device) {
  const Device resolved = resolve(*driver, device);
  return std::make_shared<CudaGpu>(std::make_shared<const CudaContext>(std::move(driver), resolved));
}

}  // namespace inrush::engine
