// The CUDA driver API by dlopen: nothing is linked. One table a library; opened once by its Loader and shared
// by what it creates.
#pragma once

#include "gpu/gpu.hpp"

#include <inrush/device.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace inrush::engine {

struct CudaTable;  // the entry points; gpu/cuda_table.hpp

class CudaDriver {
 public:
  // dlopen(library), entry points by cuGetProcAddress at a stated version, cuInit. Throws environment_unfit
  // with the reason: library absent, driver too old (525 is the floor), no device. The library is never
  // closed again: others may use it.
  [[nodiscard]] static std::shared_ptr<const CudaDriver> open(const std::string& library);

  explicit CudaDriver(std::unique_ptr<const CudaTable> table);
  ~CudaDriver();

  [[nodiscard]] const CudaTable& table() const noexcept { return *table_; }
  // Visible devices with their UUIDs ("GPU-..." or "MIG-...").
  [[nodiscard]] std::vector<Device> devices() const;
  // The device of the context that is current on the calling thread, which stays as it is; where none is, the
  // first. Throws environment_unfit where no device is visible, device_failed.
  [[nodiscard]] Device current_device() const;
  // For people: "NVIDIA H200, driver API 13.0".
  [[nodiscard]] std::string describe(std::uint32_t index) const;

 private:
  std::unique_ptr<const CudaTable> table_;
};

// Binds the device's primary context, the one that the CUDA runtime and torch use. A device named by UUID is
// looked up. Throws environment_unfit if it is absent (lists what there is), device_failed.
[[nodiscard]] std::shared_ptr<Gpu> open_cuda_gpu(std::shared_ptr<const CudaDriver> driver,
                                                 const Device& device);

}  // namespace inrush::engine
