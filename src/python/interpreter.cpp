#include "interpreter.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

namespace inrush::python {

namespace {

// Public since 3.13, private before, and in no stable ABI below 3.13; the interpreter exports it under either
// name.
int (*find_is_finalizing())() {
  void* symbol = ::dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (symbol == nullptr) symbol = ::dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  return reinterpret_cast<int (*)()>(symbol);
}

}  // namespace

void wait_for_end() noexcept {
  while (true) ::pause();
}

Interpreter::Interpreter() : is_finalizing_(find_is_finalizing()), process_(::getpid()) {}

bool Interpreter::is_finalizing() const noexcept {
  return is_finalizing_ != nullptr && is_finalizing_() != 0;
}

bool Interpreter::is_closing() const noexcept { return is_closing_ || is_finalizing(); }

void Interpreter::close(double wait_max_s) {
  is_closing_ = true;
  {
    const nb::gil_scoped_release released;
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_max_s);
    // A forked child counts threads too that only its parent has.
    while (outside_count_ > 0 && process_ == ::getpid() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  is_closing_ = false;  // functions that run at exit after this one may load
}

Interpreter::Outside::Outside(Interpreter& interpreter)
    : interpreter_(interpreter),
      is_last_(interpreter.is_finalizing()),
      is_awaited_(!interpreter.is_closing_) {
  if (is_awaited_) ++interpreter_.outside_count_;
  state_ = PyEval_SaveThread();
}

Interpreter::Outside::~Outside() {
  if (!is_last_ && interpreter_.is_finalizing()) wait_for_end();
  call_python([this] { PyEval_RestoreThread(state_); });
  if (is_awaited_) --interpreter_.outside_count_;
}

void DroppedObjects::add(PyObject* object) noexcept {
  const std::lock_guard lock(mutex_);
  objects_.push_back(object);
}

void DroppedObjects::drain() noexcept {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(mutex_);
    objects.swap(objects_);
  }
  call_python([&] {
    for (PyObject* const object : objects) Py_DECREF(object);
  });
}

std::shared_ptr<void> share_object(nb::object object, std::shared_ptr<DroppedObjects> dropped) {
  return {static_cast<void*>(object.release().ptr()),
          [dropped = std::move(dropped)](void* pointer) { dropped->add(static_cast<PyObject*>(pointer)); }};
}

}  // namespace inrush::python
