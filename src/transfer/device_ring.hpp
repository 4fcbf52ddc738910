// The ring that cuFile reads into: slots of device memory, registered once. Kept alive by its lease and by
// every read that targets it.
#pragma once

#include "gpu/cufile_driver.hpp"
#include "gpu/gpu.hpp"
#include "transfer/ring.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace inrush::engine {

class DeviceRing {
 public:
  // Registering costs 5 to 30 ms and pins that much of the GPU's window on the bus; destinations are never
  // registered. Throws out_of_memory, environment_unfit.
  DeviceRing(Gpu& gpu, std::shared_ptr<CufileDriver> driver, RingShape shape);

  [[nodiscard]] RingShape shape() const noexcept { return shape_; }
  [[nodiscard]] const std::shared_ptr<CufileDriver>& driver() const noexcept { return driver_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept;
  [[nodiscard]] std::span<std::byte> slot(std::uint32_t index) const noexcept;

 private:
  const RingShape shape_;
  const std::shared_ptr<CufileDriver> driver_;
  const std::shared_ptr<void> memory_;
  // Goes before the memory: freed without it, the address is refused when it comes round again (5023).
  const std::shared_ptr<void> registration_;
};

}  // namespace inrush::engine
