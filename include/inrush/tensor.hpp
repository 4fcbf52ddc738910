// A loaded tensor. It owns its memory together with its neighbours in the same slab and stays valid for as
// long as it is held, also after the Load, the Loader and the Checkpoint are gone. May be copied, held and
// dropped on any thread.
#pragma once

#include <inrush/device.hpp>
#include <inrush/dtype.hpp>
#include <inrush/version.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace inrush::inline v0 {

struct Tensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;  // elements; C order, no strides
  Device device;
  void* data = nullptr;  // device address (host address on the CPU); 256-byte aligned where the library
                         // allocated; null if empty
  std::uint64_t size_bytes = 0;
  std::shared_ptr<void> memory;  // keeps the slab alive
};

}  // namespace inrush::inline v0
