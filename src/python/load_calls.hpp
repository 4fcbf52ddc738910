// What all loads of Python's have in common: how they are asked for, and what the engine asks of Python while
// a thread waits in it. With the GIL, unless it says otherwise.
#pragma once

#include <inrush/loader.hpp>

#include "interpreter.hpp"
#include "request.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace inrush::python {

// One load as Python's functions ask for it; _inrush.pyi describes each field.
struct Request {
  std::string device = "cpu";
  Patterns only;
  SliceMap slices;
  std::string path = "auto";
  std::string page_cache = "auto";
  std::uint64_t window_bytes = 0;
  double timeout_s = 0;
  nb::object allocate =
      nb::none();  // (nbytes) -> (address, owner, stream or None); None: the engine allocates
  nb::object on_progress = nb::none();  // (loaded_bytes, planned_bytes) -> None
  std::map<std::string, std::pair<std::uintptr_t, std::uint64_t>> targets;  // address, bytes
  nb::object targets_owner = nb::none();
  std::optional<std::uintptr_t> targets_stream;

  template <typename Visit>
  void visit_objects(const Visit& visit) {
    visit(allocate);
    visit(on_progress);
    visit(targets_owner);
  }
};

// What a load is started in. The Loader outlives its loads.
struct LoadOrigin {
  std::shared_ptr<Interpreter> interpreter;
  std::shared_ptr<Loader> loader;
};

// The calls of one load into the engine, and the engine's back into Python.
class LoadCalls {
 public:
  // `progress`: of the load, once it has started; called by a thread that waits, without the GIL being given
  // away.
  LoadCalls(LoadOrigin origin, const Request& request, std::function<std::optional<Progress>()> progress);
  ~LoadCalls() {
    if (dropped_ != nullptr) dropped_->drain();  // of a start that threw
  }
  LoadCalls(const LoadCalls&) = delete;
  LoadCalls& operator=(const LoadCalls&) = delete;

  [[nodiscard]] Loader& loader() const { return *origin_.loader; }
  [[nodiscard]] Interpreter& interpreter() const { return *origin_.interpreter; }
  [[nodiscard]] const std::shared_ptr<DroppedObjects>& dropped() const noexcept { return dropped_; }

  // The engine's form of `asked`. It calls back into this object, which must outlive the load.
  [[nodiscard]] LoadRequest to_request(const Request& asked);

  void require_not_busy() const;

  // Without the GIL. Guarded by it: a load has one consumer at a time. What a callback raised comes first.
  template <typename Work>
  void call(const Work& work) {
    require_not_busy();
    is_busy_ = true;
    try {
      origin_.interpreter->released(work);
    } catch (const Error&) {
      settle();
      callbacks_.rethrow();
      throw;
    }
    settle();
  }

  // What of Python's it holds: a callable may lead back to whoever holds this load.
  template <typename Visit>
  void visit_objects(const Visit& visit) {
    visit(allocate_);
    visit(on_progress_);
  }

 private:
  void settle();
  void look_up();
  [[nodiscard]] Allocation allocate(std::uint64_t size_bytes);
  [[nodiscard]] Targets to_targets(const Request& asked) const;

  const LoadOrigin origin_;
  const std::function<std::optional<Progress>()> progress_;
  nb::object allocate_;
  nb::object on_progress_;
  Callbacks callbacks_;
  std::shared_ptr<DroppedObjects> dropped_;  // null: no memory of Python's
  bool is_busy_ = false;
};

// For Python's garbage collector, which finds cycles only through types that say what they hold.
template <typename T>
int traverse(PyObject* self, visitproc visit, void* arg) {  // named as Py_VISIT wants it
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  int stopped = 0;
  nb::inst_ptr<T>(self)->visit_objects([&](const nb::object& object) {
    if (stopped == 0) stopped = visit(object.ptr(), arg);
  });
  return stopped;
}

template <typename T>
int clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  nb::inst_ptr<T>(self)->visit_objects([](nb::object& object) { object = nb::none(); });
  return 0;
}

template <typename T>
inline PyType_Slot collector_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T>)},
                                        {Py_tp_clear, reinterpret_cast<void*>(clear<T>)},
                                        {0, nullptr}};

}  // namespace inrush::python
