// Loaded tensors as a framework's own: views of memory that it allocated itself. The module knows no
// framework; what is made of what is said by functions of Python's, of which one is called for each tensor
// and the others for what has not been seen before. Owned by Python; with the GIL.
#pragma once

#include <inrush/tensor.hpp>

#include "interpreter.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace inrush::python {

// _inrush.pyi describes each.
struct ViewFunctions {
  nb::object form;   // (dtype, shape, nbytes) -> (element type, shape, strides)
  nb::object base;   // (owner, element type) -> (array, address, bytes of an element)
  nb::object view;   // (array, shape, strides, offset in elements) -> view
  nb::object empty;  // (Tensor) -> array; of a tensor without bytes
};

class Views {
 public:
  explicit Views(ViewFunctions functions) : functions_(std::move(functions)) {}
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // The framework's form of `tensor`; `dropped` is that of its load.
  [[nodiscard]] nb::object of(const Tensor& tensor, const std::shared_ptr<DroppedObjects>& dropped);
  // Lets go of the memory that is kept to make the next view of it sooner.
  void forget() noexcept;

  // Of the collector.
  template <typename Visit>
  void visit_objects(const Visit& visit) {
    visit(functions_.form);
    visit(functions_.base);
    visit(functions_.view);
    visit(functions_.empty);
  }

 private:
  // A shape and its element type as the framework has them. Models repeat theirs.
  struct Form {
    nb::object element;
    nb::object shape;
    nb::object strides;
  };
  // An allocation as one array of one element type.
  struct Base {
    nb::object owner;  // or another one could come to its address, which is what it is found by
    nb::object array;
    std::uint64_t address = 0;
    std::uint64_t element_bytes = 1;
  };

  // Copies: while Python runs another thread may call forget().
  [[nodiscard]] Form form_of(const Tensor& tensor);
  [[nodiscard]] Base base_of(const nb::object& owner, const nb::object& element);

  ViewFunctions functions_;
  std::array<std::map<std::vector<std::uint64_t>, Form>, dtype_count> forms_;  // by DType and shape
  std::map<std::pair<PyObject*, PyObject*>, Base> bases_;                      // by owner and element type
};

// Called by bind_loader().
void bind_views(nb::module_& module);

}  // namespace inrush::python
