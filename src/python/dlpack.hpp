// The parts of DLPack's C interface (version 1.1, github.com/dmlc/dlpack, dlpack.h) that handing out a tensor
// needs. The layouts are an ABI.
#pragma once

#include <cstdint>

namespace inrush::python::dlpack {

enum DeviceType : std::int32_t { device_cpu = 1, device_cuda = 2 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

// Before version 1.0.
struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct ManagedTensorVersioned {
  Version version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace inrush::python::dlpack
