#include <inrush/error.hpp>

#include "base/host_pages.hpp"
#include "base/text.hpp"
#include "gpu/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

namespace inrush::engine {

namespace {

constexpr std::uint64_t huge_page_bytes = 2ULL << 20;

// Copies when asked, so every ticket is reached as soon as it is recorded and there is nobody to wait for.
class HostCopyStream final : public CopyStream {
 public:
  std::uint64_t copy(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) {
      if (copy.row_bytes == 0) continue;
      for (std::uint64_t row = 0; row < copy.row_count; ++row) {
        std::memcpy(static_cast<std::byte*>(copy.target) + row * copy.target_pitch_bytes,
                    copy.source + row * copy.source_pitch_bytes, copy.row_bytes);
      }
    }
    return copies.size();
  }
  void use_kernel(KernelUse /*use*/, std::uint64_t /*reserved_bytes*/) override {}
  [[nodiscard]] const std::string& kernel_refusal() const noexcept override { return no_refusal_; }
  [[nodiscard]] const std::string& stage_refusal() const noexcept override { return no_refusal_; }
  [[nodiscard]] std::uint64_t record() override { return ++recorded_; }
  [[nodiscard]] std::uint64_t reached() override { return recorded_; }
  void wait(std::uint64_t ticket) override {
    if (ticket <= recorded_) return;
    throw Error(ErrorCode::internal,
                fmt::format("wait for ticket {} of {}: it was never recorded", ticket, recorded_));
  }
  void order_after(void* /*stream*/) override {}
  void order_before(void* /*stream*/) override {}
  [[nodiscard]] void* handle() const noexcept override { return nullptr; }
  void fill(void* target, std::uint64_t size_bytes, std::byte value) override {
    std::memset(target, std::to_integer<int>(value), size_bytes);
  }

 private:
  const std::string no_refusal_;
  std::uint64_t recorded_ = 0;
};

class HostGpu final : public Gpu {
 public:
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] bool is_host() const noexcept override { return true; }
  [[nodiscard]] DeviceMemoryInfo memory_info() const override;
  [[nodiscard]] std::shared_ptr<void> allocate(std::uint64_t size_bytes,
                                               std::uint64_t alignment_bytes) override;
  // Nothing copies behind the CPU's back, so there is nothing to pin for.
  [[nodiscard]] std::shared_ptr<void> pin(std::span<std::byte> memory, std::string& /*refusal*/) override {
    return {memory.data(), [](void*) noexcept {}};
  }
  [[nodiscard]] std::shared_ptr<void> pin_read_only(std::span<std::byte> memory,
                                                    std::string& refusal) override {
    return pin(memory, refusal);
  }
  [[nodiscard]] std::unique_ptr<CopyStream> open_stream() override {
    return std::make_unique<HostCopyStream>();
  }
  void copy_to_host(const void* source, std::span<std::byte> target) override {
    if (!target.empty()) std::memcpy(target.data(), source, target.size());
  }
  [[nodiscard]] bool streams_wait() override { return false; }
  [[nodiscard]] std::unique_ptr<StreamFlags> open_flags(const StreamFlagsShape& /*shape*/) override {
    throw Error(ErrorCode::environment_unfit, "the device \"cpu\" has no streams that could wait for values");
  }
  [[nodiscard]] std::shared_ptr<CufileDriver> open_cufile(const CufileOptions& /*options*/) override {
    throw Error(ErrorCode::environment_unfit, "cuFile reads into GPU memory, and this is the device \"cpu\"");
  }

 private:
  Device device_;
};

// MemAvailable and not the free pages: page cache gives way to an allocation.
DeviceMemoryInfo HostGpu::memory_info() const {
  DeviceMemoryInfo info;
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == "MemTotal:") info.total_bytes = kibibytes * 1024;
    if (name == "MemAvailable:") info.free_bytes = kibibytes * 1024;
  }
  return info;
}

std::shared_ptr<void> HostGpu::allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
  if (size_bytes >= huge_page_bytes && alignment_bytes <= huge_page_bytes) {
    const auto pages = std::make_shared<HostPages>(size_bytes);
    return {pages, pages->bytes().data()};
  }
  const auto alignment =
      std::align_val_t{std::max<std::uint64_t>(alignment_bytes, alignof(std::max_align_t))};
  void* memory = ::operator new(std::max<std::uint64_t>(size_bytes, 1), alignment, std::nothrow);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cpu: allocate {}: {} are available; load less, or free memory",
                            bytes_text(size_bytes), bytes_text(memory_info().free_bytes)));
  }
  return {memory, [alignment](void* start) noexcept { ::operator delete(start, alignment); }};
}

}  // namespace

std::shared_ptr<Gpu> open_host_gpu() { return std::make_shared<HostGpu>(); }

}  // namespace inrush::engine
