// What each file of this folder adds to the module. All take the GIL as held.
#pragma once

#include <inrush/loader.hpp>

#include "interpreter.hpp"
#include "load_calls.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inrush::python {

void bind_errors(nb::module_& module);
void bind_report(nb::module_& module);
void bind_checkpoint(nb::module_& module, const std::shared_ptr<Interpreter>& interpreter);
void bind_tensor(nb::module_& module);
void bind_loader(nb::module_& module, const std::shared_ptr<Interpreter>& interpreter);
void bind_async_load(nb::module_& module);

// An AsyncLoad, which bytes are on their way to. Throws as Loader::load_async().
[[nodiscard]] nb::object start_async_load(LoadOrigin origin, const Checkpoint& checkpoint,
                                          const Request& request, StreamWait wait);

// Text of a file, which need not be UTF-8: what is not comes as lone surrogates, like a path from
// os.fsdecode().
[[nodiscard]] nb::str to_str(std::string_view text);
[[nodiscard]] nb::list to_list(std::span<const std::string> texts);
[[nodiscard]] nb::tuple to_tuple(std::span<const std::uint64_t> numbers);

// A loaded tensor in Python's hands. `owner` counts where the memory came from an allocate() of Python's.
class TensorObject {
 public:
  TensorObject(Tensor tensor, std::shared_ptr<DroppedObjects> dropped)
      : tensor_(std::move(tensor)), dropped_(std::move(dropped)) {}
  ~TensorObject() {
    tensor_.memory.reset();
    if (dropped_ != nullptr) dropped_->drain();
  }
  TensorObject(const TensorObject&) = delete;
  TensorObject& operator=(const TensorObject&) = delete;

  [[nodiscard]] const Tensor& tensor() const noexcept { return tensor_; }
  [[nodiscard]] const std::shared_ptr<DroppedObjects>& dropped() const noexcept { return dropped_; }
  // The object that allocate() returned for this memory; None where the engine allocated.
  [[nodiscard]] nb::object owner() const;

 private:
  Tensor tensor_;
  const std::shared_ptr<DroppedObjects> dropped_;  // null: no memory of Python's
};

// Of TensorObject, in this order.
[[nodiscard]] nb::list to_tensors(std::vector<Tensor> tensors,
                                  const std::shared_ptr<DroppedObjects>& dropped);

}  // namespace inrush::python
