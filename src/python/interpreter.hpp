// Going out of Python and coming back. One for the module, shared by all that waits without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace inrush::python {

namespace nb = nanobind;

// Until the process ends.
[[noreturn]] void wait_for_end() noexcept;

// Calls what may wait for the GIL. Once the interpreter goes, CPython before 3.14 ends a thread that wants it
// by unwinding its stack (pthread_exit): destructors would run that need the GIL, and std::terminate() where
// nothing may be thrown. So the thread stays here instead. No catch clause: a foreign exception may not be
// caught while another one is being handled.
template <typename Call>
[[gnu::noinline]] void call_python(const Call& call) {
  struct Leaving {
    const int exception_count = std::uncaught_exceptions();
    bool returned = false;
    ~Leaving() {
      if (!returned && std::uncaught_exceptions() == exception_count) wait_for_end();
    }
  } leaving;
  call();
  leaving.returned = true;
}

class Interpreter {
 public:
  Interpreter();

  // Runs `work`, which touches no Python, without the GIL. Does not return once the interpreter is being torn
  // down, but to the thread that does that.
  template <typename Work>
  auto released(const Work& work) {
    const Outside outside(*this);
    return work();
  }

  // Before the interpreter goes: what waits outside ends with `cancelled` and comes back. Waits at most
  // `wait_max_s` seconds for it, and not for what goes out meanwhile. With the GIL.
  void close(double wait_max_s);
  // Waits should end, and no more Python be called: close() is running or the interpreter is going.
  [[nodiscard]] bool is_closing() const noexcept;

 private:
  class Outside {
   public:
    explicit Outside(Interpreter& interpreter);
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Interpreter& interpreter_;
    const bool is_last_;  // the thread that tears the interpreter down, which may go in and out as it likes
    const bool is_awaited_;
    PyThreadState* state_;
  };

  [[nodiscard]] bool is_finalizing() const noexcept;

  int (*const is_finalizing_)();
  const int process_;
  std::atomic<std::uint32_t> outside_count_ = 0;
  std::atomic<bool> is_closing_ = false;
};

// Python objects whose last owner may be dropped on a thread that does not hold the GIL. They are let go by
// the next thread that calls drain() with the GIL; what is left when the interpreter ends, leaks.
class DroppedObjects {
 public:
  void add(PyObject* object) noexcept;
  void drain() noexcept;

 private:
  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

// Shares the ownership of `object`; get() is the PyObject*.
[[nodiscard]] std::shared_ptr<void> share_object(nb::object object, std::shared_ptr<DroppedObjects> dropped);

// Holds the GIL, on a thread that has none. nanobind's own may throw nothing, so it ends the process where
// the interpreter goes meanwhile.
class Inside {
 public:
  Inside() {
    call_python([this] { state_ = PyGILState_Ensure(); });
  }
  ~Inside() { PyGILState_Release(state_); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
};

// Python called back from inside the engine: a callback that raises stops the load, and what it raised is
// what the caller gets to see.
class Callbacks {
 public:
  explicit Callbacks(std::shared_ptr<const Interpreter> interpreter) : interpreter_(std::move(interpreter)) {}

  // On a thread without the GIL. False if `call` raised, now or before, or Python is closing.
  template <typename Call>
  bool run(const Call& call) noexcept {
    if (interpreter_->is_closing()) return false;
    const Inside inside;
    if (raised_) return false;
    try {
      call_python(call);
    } catch (nb::python_error& error) {
      raised_.emplace(std::move(error));
    } catch (...) {  // what a conversion of nanobind throws
      PyErr_SetString(PyExc_TypeError, "a callback returned what it should not");
      raised_.emplace();
    }
    return !raised_;
  }

  // Throws what a callback raised. With the GIL.
  void rethrow() {
    if (!raised_) return;
    nb::python_error error = std::move(*raised_);
    raised_.reset();
    throw error;
  }

 private:
  const std::shared_ptr<const Interpreter> interpreter_;
  std::optional<nb::python_error> raised_;  // guarded by the GIL
};

}  // namespace inrush::python
