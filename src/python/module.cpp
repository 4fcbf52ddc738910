// The module inrush._inrush: the C++ library as Python objects. Thin on purpose; what needs no C++ is Python,
// in python/inrush.
#include "bindings.hpp"

#include <nanobind/stl/string_view.h>

#include <string>

namespace inrush::python {

nb::str to_str(std::string_view text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

nb::list to_list(std::span<const std::string> texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(to_str(text));
  return list;
}

nb::tuple to_tuple(std::span<const std::uint64_t> numbers) {
  nb::tuple tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLongLong(numbers[i]));
  }
  return tuple;
}

}  // namespace inrush::python

NB_MODULE(_inrush, module) {
  using namespace inrush::python;
  // Tensors that are alive when Python ends are no leak: their memory goes with the process.
  nb::set_leak_warnings(false);
  module.attr("__version__") = inrush::version();
  const auto interpreter = std::make_shared<Interpreter>();
  module.def(
      "close", [interpreter](double wait_max_s) { interpreter->close(wait_max_s); }, nb::arg("wait_max_s"));
  bind_errors(module);
  bind_report(module);
  bind_checkpoint(module, interpreter);
  bind_tensor(module);
  bind_async_load(module);
  bind_loader(module, interpreter);
}
