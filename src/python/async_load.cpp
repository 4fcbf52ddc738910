// A load whose tensors are there before their bytes. Started by Loader.load_async().
#include <inrush/loader.hpp>

#include <inrush/error.hpp>

#include "bindings.hpp"
#include "load_calls.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace inrush::python {

namespace {

class AsyncLoadObject {
 public:
  AsyncLoadObject(LoadOrigin origin, const Request& request)
      : calls_(std::move(origin), request, [this]() -> std::optional<Progress> {
          return load_ == nullptr ? std::nullopt : std::optional(load_->progress());
        }) {}
  ~AsyncLoadObject() {
    if (load_ != nullptr) close();
  }
  AsyncLoadObject(const AsyncLoadObject&) = delete;
  AsyncLoadObject& operator=(const AsyncLoadObject&) = delete;

  void start(const Checkpoint& checkpoint, const Request& asked, StreamWait wait) {
    const LoadRequest request = calls_.to_request(asked);
    std::unique_ptr<AsyncLoad> load;
    calls_.call([&] { load = calls_.loader().load_async(checkpoint, request, wait); });
    load_ = std::move(load);
  }

  [[nodiscard]] nb::list tensors() const { return to_tensors(open_load().tensors(), calls_.dropped()); }

  // By the tensor and not by its name, which need not be valid Unicode.
  void wait(const TensorObject& tensor, std::uintptr_t stream) {
    AsyncLoad& load = open_load();
    calls_.call([&] { load.wait(tensor.tensor().name, reinterpret_cast<void*>(stream)); });
  }

  void wait_all(std::uintptr_t stream) {
    AsyncLoad& load = open_load();
    calls_.call([&] { load.wait_all(reinterpret_cast<void*>(stream)); });
  }

  void finish() {
    AsyncLoad& load = open_load();
    calls_.call([&] { load.finish(); });
  }

  void cancel() {
    if (load_ != nullptr && is_own_process()) load_->cancel();
  }

  // Cancels, drains and frees, also while streams wait; the tensors stay, and the report.
  void close() {
    if (load_ == nullptr) return;
    calls_.require_not_busy();
    std::unique_ptr<AsyncLoad> load = std::move(load_);
    if (!is_own_process()) {
      // Its threads are the parent's, and the driver may not be touched: left to the end of the process.
      static_cast<void>(load.release());
      return;
    }
    Report last;
    calls_.interpreter().released([&] {
      load->close();
      last = load->report();
      load.reset();
    });
    last_report_ = std::move(last);
    if (calls_.dropped() != nullptr) calls_.dropped()->drain();
  }

  [[nodiscard]] bool done() const { return load_ == nullptr || open_load().done(); }
  [[nodiscard]] Report report() const { return load_ == nullptr ? last_report_ : open_load().report(); }
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> progress() const {
    const Progress progress = open_load().progress();
    return {progress.loaded_bytes, progress.planned_bytes};
  }

  template <typename Visit>
  void visit_objects(const Visit& visit) {
    calls_.visit_objects(visit);
  }

 private:
  [[nodiscard]] bool is_own_process() const { return ::getpid() == process_; }

  [[nodiscard]] AsyncLoad& open_load() const {
    if (load_ == nullptr) throw Error(ErrorCode::invalid_request, "this load was closed");
    if (!is_own_process()) {
      throw Error(ErrorCode::invalid_request,
                  "this load belongs to the parent process; a forked child needs one of its own "
                  "(with multiprocessing: use spawn)");
    }
    return *load_;
  }

  LoadCalls calls_;
  const int process_ = ::getpid();
  std::unique_ptr<AsyncLoad> load_;
  Report last_report_;  // once it is closed
};

}  // namespace

nb::object start_async_load(LoadOrigin origin, const Checkpoint& checkpoint, const Request& request,
                            StreamWait wait) {
  auto load = std::make_unique<AsyncLoadObject>(std::move(origin), request);
  load->start(checkpoint, request, wait);
  return nb::cast(std::move(load));
}

void bind_async_load(nb::module_& module) {
  nb::class_<AsyncLoadObject>(module, "AsyncLoad", nb::type_slots(collector_slots<AsyncLoadObject>),
                              "A load whose tensors are there before their bytes.")
      .def("tensors", &AsyncLoadObject::tensors)
      .def("wait", &AsyncLoadObject::wait, nb::arg("tensor"), nb::arg("stream") = 0)
      .def("wait_all", &AsyncLoadObject::wait_all, nb::arg("stream") = 0)
      .def("finish", &AsyncLoadObject::finish)
      .def("cancel", &AsyncLoadObject::cancel)
      .def("close", &AsyncLoadObject::close)
      .def_prop_ro("done", &AsyncLoadObject::done)
      .def_prop_ro("progress", &AsyncLoadObject::progress)
      .def("report", &AsyncLoadObject::report);
}

}  // namespace inrush::python
