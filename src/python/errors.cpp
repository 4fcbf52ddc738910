// inrush::Error becomes inrush.Error.
#include <inrush/error.hpp>

#include "bindings.hpp"

#include <new>

namespace inrush::python {

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          // The classes live in Python, where they can also be built-in exceptions.
          call_python([&error] {
            const nb::object raised = nb::module_::import_("inrush._errors")
                                          .attr("make_error")(to_str(error_code_name(error.code())),
                                                              to_str(error.what()), error.system_error());
            PyErr_SetObject(raised.type().ptr(), raised.ptr());
          });
        }
      },
      nullptr);
}

}  // namespace inrush::python
