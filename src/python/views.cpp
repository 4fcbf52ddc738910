#include "views.hpp"

#include <inrush/error.hpp>

#include "bindings.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <tuple>

namespace inrush::python {

nb::object Views::of(const Tensor& tensor, const std::shared_ptr<DroppedObjects>& dropped) {
  if (tensor.size_bytes == 0)  // no memory, and perhaps a shape that nobody can count
    return functions_.empty(std::make_unique<TensorObject>(tensor, dropped));
  if (dropped == nullptr)
    throw Error(ErrorCode::invalid_request, "the memory of this load is the engine's: nobody's to view");
  const Form form = form_of(tensor);
  const Base base = base_of(nb::borrow(static_cast<PyObject*>(tensor.memory.get())), form.element);
  const std::uint64_t offset =
      (reinterpret_cast<std::uintptr_t>(tensor.data) - base.address) / base.element_bytes;
  const nb::object place = nb::steal(PyLong_FromUnsignedLongLong(offset));
  // Not nanobind's call: it looks at each argument's type.
  PyObject* const arguments[] = {base.array.ptr(), form.shape.ptr(), form.strides.ptr(), place.ptr()};
  PyObject* const view =
      place.is_valid() ? PyObject_Vectorcall(functions_.view.ptr(), arguments, std::size(arguments), nullptr)
                       : nullptr;
  if (view == nullptr) nb::raise_python_error();
  return nb::steal(view);
}

void Views::forget() noexcept {
  // Apart first: what goes may run Python.
  std::map<std::pair<PyObject*, PyObject*>, Base> bases;
  bases.swap(bases_);
}

Views::Form Views::form_of(const Tensor& tensor) {
  auto& forms = forms_[static_cast<std::size_t>(tensor.dtype)];
  if (const auto found = forms.find(tensor.shape); found != forms.end()) return found->second;
  auto [element, shape, strides] = nb::cast<std::tuple<nb::object, nb::tuple, nb::tuple>>(
      functions_.form(to_str(dtype_name(tensor.dtype)), to_tuple(tensor.shape), tensor.size_bytes));
  return forms.try_emplace(tensor.shape, Form{element, shape, strides}).first->second;
}

Views::Base Views::base_of(const nb::object& owner, const nb::object& element) {
  const std::pair key(owner.ptr(), element.ptr());
  if (const auto found = bases_.find(key); found != bases_.end()) return found->second;
  auto [array, address, element_bytes] =
      nb::cast<std::tuple<nb::object, std::uint64_t, std::uint64_t>>(functions_.base(owner, element));
  if (element_bytes == 0) throw nb::value_error("elements without bytes");
  return bases_.try_emplace(key, Base{owner, array, address, element_bytes}).first->second;
}

void bind_views(nb::module_& module) {
  nb::class_<Views>(module, "Views", nb::type_slots(collector_slots<Views>),
                    "Loaded tensors as views of the memory that Request.allocate gave.")
      .def(
          "__init__",
          [](Views* self, nb::object form, nb::object base, nb::object view, nb::object empty) {
            new (self) Views({std::move(form), std::move(base), std::move(view), std::move(empty)});
          },
          nb::kw_only(), nb::arg("form"), nb::arg("base"), nb::arg("view"), nb::arg("empty"))
      .def(
          "of",
          [](Views& self, const TensorObject& tensor) { return self.of(tensor.tensor(), tensor.dropped()); },
          nb::arg("tensor"))
      .def("forget", &Views::forget);
}

}  // namespace inrush::python
