// A loaded tensor for any array library: DLPack, the buffer protocol (host memory) and the CUDA array
// interface.
#include <inrush/tensor.hpp>

#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include "bindings.hpp"
#include "dlpack.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace inrush::python {

nb::object TensorObject::owner() const {
  if (dropped_ == nullptr || tensor_.memory == nullptr) return nb::none();
  return nb::borrow(static_cast<PyObject*>(tensor_.memory.get()));
}

nb::list to_tensors(std::vector<Tensor> tensors, const std::shared_ptr<DroppedObjects>& dropped) {
  nb::list list;
  for (Tensor& tensor : tensors)
    list.append(nb::cast(std::make_unique<TensorObject>(std::move(tensor), dropped)));
  return list;
}

namespace {

constexpr dlpack::Version dlpack_version = {1, 1};  // the first with the 8, 6 and 4 bit floats

// By DType. Codes of DLDataTypeCode. F6 has no form that consumers agree on.
constexpr std::array<dlpack::DataType, dtype_count> dlpack_dtypes = {{
    {6, 8, 1},   // BOOL
    {17, 4, 2},  // F4: two elements to a byte, as torch.float4_e2m1fn_x2 has it
    {0, 0, 0},   // F6_E2M3
    {0, 0, 0},   // F6_E3M2
    {1, 8, 1},   // U8
    {0, 8, 1},   // I8
    {12, 8, 1},  // F8_E5M2
    {10, 8, 1},  // F8_E4M3, the "fn" kind
    {14, 8, 1},  // F8_E8M0
    {11, 8, 1},  // F8_E4M3FNUZ
    {13, 8, 1},  // F8_E5M2FNUZ
    {0, 16, 1},  // I16
    {1, 16, 1},  // U16
    {2, 16, 1},  // F16
    {4, 16, 1},  // BF16
    {0, 32, 1},  // I32
    {1, 32, 1},  // U32
    {2, 32, 1},  // F32
    {5, 64, 1},  // C64
    {2, 64, 1},  // F64
    {0, 64, 1},  // I64
    {1, 64, 1},  // U64
}};

dlpack::Device device_of(const Tensor& tensor) {
  if (tensor.device.kind == DeviceKind::cpu) return {dlpack::device_cpu, 0};
  return {dlpack::device_cuda, static_cast<std::int32_t>(tensor.device.index)};
}

// A managed tensor and what it points to. Freed by the consumer on any thread; holds nothing of Python's but
// through DroppedObjects.
template <typename Managed>
struct Export {
  explicit Export(const Tensor& tensor)
      : memory(tensor.memory), shape(tensor.shape.begin(), tensor.shape.end()) {
    const dlpack::DataType dtype = dlpack_dtypes[static_cast<std::size_t>(tensor.dtype)];
    if (dtype.bits == 0 || (dtype.lanes == 2 && (shape.empty() || shape.back() % 2 != 0))) {
      const std::string message = std::string(dtype_name(tensor.dtype)) +
                                  " of this shape has no DLPack type: take its bytes by as_bytes()";
      throw nb::buffer_error(message.c_str());
    }
    if (std::any_of(shape.begin(), shape.end(), [](std::int64_t length) { return length < 0; }))
      throw nb::buffer_error("a dimension of 2^63 or more has no form in DLPack");
    if (dtype.lanes == 2) shape.back() /= 2;
    strides.assign(shape.size(), 1);
    for (std::size_t i = shape.size(); i-- > 1;) {
      // Too large only where there are no elements, and nobody steps.
      if (__builtin_mul_overflow(strides[i], shape[i], &strides[i - 1])) strides[i - 1] = 0;
    }
    managed.manager_context = this;
    managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->manager_context); };
    dlpack::Tensor& view = view_of(managed);
    view = {tensor.data,
            device_of(tensor),
            static_cast<std::int32_t>(shape.size()),
            dtype,
            shape.data(),
            strides.data(),
            0};
  }

  static dlpack::Tensor& view_of(dlpack::ManagedTensor& managed) { return managed.tensor; }
  static dlpack::Tensor& view_of(dlpack::ManagedTensorVersioned& managed) {
    managed.version = dlpack_version;
    return managed.tensor;
  }

  Managed managed = {};
  std::shared_ptr<void> memory;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

// A capsule that nobody took frees the tensor; one that was taken has another name.
template <typename Managed, const char* name>
nb::object make_capsule(const Tensor& tensor) {
  auto exported = std::make_unique<Export<Managed>>(tensor);
  PyObject* const capsule = PyCapsule_New(&exported->managed, name, [](PyObject* self) {
    if (PyCapsule_IsValid(self, name) == 0) return;
    auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(self, name));
    managed->deleter(managed);
  });
  if (capsule == nullptr) nb::raise_python_error();
  static_cast<void>(exported.release());
  return nb::steal(capsule);
}

constexpr char capsule_name[] = "dltensor";
constexpr char versioned_capsule_name[] = "dltensor_versioned";

// What __dlpack__() is asked for, each as Python gave it. Not `stream`: the bytes are on the device before a
// tensor is handed out, so there is nothing to order.
struct DlpackRequest {
  nb::handle max_version;
  nb::handle dl_device;
  nb::handle copy;
};

nb::object dlpack_of(const TensorObject& self, const DlpackRequest& request) {
  const dlpack::Device device = device_of(self.tensor());
  if (!request.dl_device.is_none() && !nb::make_tuple(device.type, device.id).equal(request.dl_device))
    throw nb::buffer_error("the tensor is on another device: import it there, then move it");
  if (!request.copy.is_none() && nb::cast<bool>(request.copy))
    throw nb::buffer_error("copy=True is not offered: import the tensor, then copy it");
  const bool is_versioned =
      !request.max_version.is_none() && nb::cast<std::int64_t>(request.max_version[0]) >= 1;
  return is_versioned ? make_capsule<dlpack::ManagedTensorVersioned, versioned_capsule_name>(self.tensor())
                      : make_capsule<dlpack::ManagedTensor, capsule_name>(self.tensor());
}

int get_buffer(PyObject* object, Py_buffer* view, int flags) noexcept {
  const auto* const self = nb::inst_ptr<TensorObject>(object);
  if (self->tensor().device.kind != DeviceKind::cpu) {
    PyErr_SetString(PyExc_BufferError, "the tensor is in GPU memory: use DLPack, or Loader.copy_to_host()");
    return -1;
  }
  // An empty tensor has no address, and NumPy wants one.
  void* const data = self->tensor().data == nullptr ? const_cast<char*>("") : self->tensor().data;
  return PyBuffer_FillInfo(view, object, data, static_cast<Py_ssize_t>(self->tensor().size_bytes), 0, flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

// The same memory as plain bytes, for those who have no type for the elements.
std::unique_ptr<TensorObject> bytes_of(const TensorObject& self) {
  Tensor bytes = self.tensor();
  bytes.dtype = DType::u8;
  bytes.shape = {bytes.size_bytes};
  return std::make_unique<TensorObject>(std::move(bytes), self.dropped());
}

// Elements of `dtype` before the tensor within the memory of its owner, whose first byte is at `base`.
std::uint64_t element_offset(const TensorObject& self, std::uint64_t base, std::uint64_t element_bytes) {
  return (reinterpret_cast<std::uintptr_t>(self.tensor().data) - base) / element_bytes;
}

std::string repr_of(const TensorObject& self) {
  const Tensor& tensor = self.tensor();
  std::string shape;
  for (const std::uint64_t length : tensor.shape)
    shape += (shape.empty() ? "" : ", ") + std::to_string(length);
  return "<inrush.Tensor " + escape_text(tensor.name) + ": " + std::string(dtype_name(tensor.dtype)) + " [" +
         shape + "] on " + device_name(tensor.device) + ">";
}

}  // namespace

void bind_tensor(nb::module_& module) {
  nb::class_<TensorObject>(
      module, "Tensor", nb::type_slots(buffer_slots),
      "A loaded tensor that owns its memory. Import it with from_dlpack() of NumPy, CuPy, JAX or torch.")
      .def_prop_ro("name", [](const TensorObject& self) { return to_str(self.tensor().name); })
      .def_prop_ro("dtype", [](const TensorObject& self) { return dtype_name(self.tensor().dtype); })
      .def_prop_ro("shape", [](const TensorObject& self) { return to_tuple(self.tensor().shape); })
      .def_prop_ro("device",
                   [](const TensorObject& self) {
                     return self.tensor().device.kind == DeviceKind::cpu
                                ? std::string("cpu")
                                : "cuda:" + std::to_string(self.tensor().device.index);
                   })
      .def_prop_ro("nbytes", [](const TensorObject& self) { return self.tensor().size_bytes; })
      .def_prop_ro(
          "data_ptr",
          [](const TensorObject& self) { return reinterpret_cast<std::uintptr_t>(self.tensor().data); })
      .def_prop_ro("owner", &TensorObject::owner)
      .def("as_bytes", bytes_of)
      .def("element_offset", element_offset, nb::arg("base"), nb::arg("element_bytes"))
      .def("__dlpack_device__",
           [](const TensorObject& self) {
             const dlpack::Device device = device_of(self.tensor());
             return nb::make_tuple(static_cast<std::int32_t>(device.type), device.id);
           })
      .def(
          "__dlpack__",
          [](const TensorObject& self, nb::handle /*stream*/, nb::handle max_version, nb::handle dl_device,
             nb::handle copy) {
            return dlpack_of(self, {max_version, dl_device, copy});
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__repr__", repr_of);
}

}  // namespace inrush::python
