// Loader and Load. What waits does so without the GIL; signals, progress and memory of Python's are asked for
// by callbacks on the waiting thread (load_calls.hpp).
#include <inrush/loader.hpp>

#include "bindings.hpp"
#include "load_calls.hpp"
#include "request.hpp"
#include "views.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inrush::python {

namespace {

// Messages of engine threads, until a thread with the GIL fetches them. Bounded: the newest stay.
class LogQueue {
 public:
  void add(LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() >= message_count_max) messages_.pop_front();
    messages_.emplace_back(level, message);
  }

  // Levels of Python's logging, and texts.
  nb::list take() {
    std::deque<std::pair<LogLevel, std::string>> messages;
    {
      const std::lock_guard lock(mutex_);
      messages.swap(messages_);
    }
    nb::list list;
    for (const auto& [level, message] : messages) {
      const int number = level == LogLevel::debug ? 10 : level == LogLevel::info ? 20 : 30;
      list.append(nb::make_tuple(number, to_str(message)));
    }
    return list;
  }

 private:
  static constexpr std::size_t message_count_max = 1000;
  std::mutex mutex_;
  std::deque<std::pair<LogLevel, std::string>> messages_;
};

// Of a take that makes views, so that signals, progress and other threads of Python get their turn: 1 ms of
// views.
constexpr std::size_t views_at_once = 1024;

class LoadObject {
 public:
  LoadObject(LoadOrigin origin, const Request& request)
      : calls_(std::move(origin), request, [this]() -> std::optional<Progress> {
          return load_ == nullptr ? std::nullopt : std::optional(load_->progress());
        }) {}
  ~LoadObject() {
    if (load_ != nullptr) close();
  }
  LoadObject(const LoadObject&) = delete;
  LoadObject& operator=(const LoadObject&) = delete;

  void start(const Checkpoint& checkpoint, const Request& asked) {
    const LoadRequest request = calls_.to_request(asked);
    std::unique_ptr<Load> load;
    calls_.call([&] { load = calls_.loader().start(checkpoint, request); });
    load_ = std::move(load);
  }

  // What has arrived since, at least one tensor, and no more once `bytes_max` are reached; empty at the end.
  nb::list take(std::uint64_t bytes_max) {
    return to_tensors(arrived({.bytes_max = bytes_max}), calls_.dropped());
  }

  // The same as `views` by name, into `target`. The number of them.
  std::size_t take_views(Views& views, const nb::dict& target) {
    const std::vector<Tensor> tensors = arrived({.count_max = views_at_once});
    call_python([&] {  // functions of a framework let go of the GIL as they like
      for (const Tensor& tensor : tensors) {
        const nb::object view = views.of(tensor, calls_.dropped());
        if (PyDict_SetItem(target.ptr(), to_str(tensor.name).ptr(), view.ptr()) != 0)
          nb::raise_python_error();
      }
    });
    return tensors.size();
  }

  template <typename Visit>
  void visit_objects(const Visit& visit) {
    calls_.visit_objects(visit);
  }

  void cancel() {
    if (load_ != nullptr) load_->cancel();
  }

  // Cancels, drains and frees; tensors that were taken stay, and the report.
  void close() {
    if (load_ == nullptr) return;
    calls_.require_not_busy();
    std::unique_ptr<Load> load = std::move(load_);
    calls_.interpreter().released([&] {
      load->close();
      try {
        last_report_ = load->report();
      } catch (const Error&) {  // a forked child may drop its parent's load, and no more
      }
      load.reset();
    });
    if (calls_.dropped() != nullptr) calls_.dropped()->drain();
  }

  [[nodiscard]] bool done() const { return load_ == nullptr || load_->done(); }
  [[nodiscard]] Report report() const { return load_ == nullptr ? last_report_ : load_->report(); }
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> progress() const {
    const Progress progress = open_load().progress();
    return {progress.loaded_bytes, progress.planned_bytes};
  }

 private:
  [[nodiscard]] Load& open_load() const {
    if (load_ == nullptr) throw Error(ErrorCode::invalid_request, "this Load was closed");
    return *load_;
  }

  std::vector<Tensor> arrived(const TakeLimits& limits) {
    std::vector<Tensor> tensors;
    Load& load = open_load();
    calls_.call([&] { tensors = load.take(limits); });
    return tensors;
  }

  LoadCalls calls_;
  std::unique_ptr<Load> load_;
  Report last_report_;  // once it is closed
};

class LoaderObject {
 public:
  LoaderObject(std::shared_ptr<Interpreter> interpreter, LoaderOptions options)
      : interpreter_(std::move(interpreter)) {
    options.log = [log = log_](LogLevel level, std::string_view message) { log->add(level, message); };
    loader_ = std::make_shared<Loader>(std::move(options));
  }

  [[nodiscard]] Loader& loader() const { return *loader_; }
  nb::list take_log() { return log_->take(); }

  std::unique_ptr<LoadObject> start(const Checkpoint& checkpoint, const Request& request) {
    auto load = std::make_unique<LoadObject>(LoadOrigin{interpreter_, loader_}, request);
    load->start(checkpoint, request);
    return load;
  }

  nb::object load_async(const Checkpoint& checkpoint, const Request& request, const std::string& wait) {
    return start_async_load({interpreter_, loader_}, checkpoint, request, parse_stream_wait(wait));
  }

  nb::bytes copy_to_host(const TensorObject& tensor) {
    nb::bytes bytes = nb::steal<nb::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(tensor.tensor().size_bytes)));
    auto* const target = reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr()));
    interpreter_->released([&] {
      loader_->copy_to_host(tensor.tensor(), 0, {target, tensor.tensor().size_bytes});
    });
    return bytes;
  }

 private:
  const std::shared_ptr<Interpreter> interpreter_;
  const std::shared_ptr<LogQueue> log_ = std::make_shared<LogQueue>();
  std::shared_ptr<Loader> loader_;
};

std::uint64_t to_bytes(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return parse_bytes(nb::cast<std::string>(value));
  std::uint64_t bytes = 0;
  if (nb::try_cast(value, bytes)) return bytes;
  throw Error(ErrorCode::invalid_request, std::string(nb::repr(value).c_str()) +
                                              " is no size: say bytes as an int, or a text like \"64KiB\"");
}

std::string spelling_of(const Device& device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

void bind_load(nb::module_& module) {
  nb::class_<Request>(module, "Request", nb::type_slots(collector_slots<Request>),
                      "What Loader.start() is asked for.")
      .def(nb::init<>())
      .def_rw("device", &Request::device)
      .def_rw("only", &Request::only, nb::arg().none())
      .def_rw("slices", &Request::slices)
      .def_rw("path", &Request::path)
      .def_rw("page_cache", &Request::page_cache)
      .def_rw("window_bytes", &Request::window_bytes)
      .def_rw("timeout_s", &Request::timeout_s)
      .def_rw("allocate", &Request::allocate, nb::arg().none())
      .def_rw("on_progress", &Request::on_progress, nb::arg().none())
      .def_rw("targets", &Request::targets)
      .def_rw("targets_owner", &Request::targets_owner, nb::arg().none())
      .def_rw("targets_stream", &Request::targets_stream, nb::arg().none());
  nb::class_<LoadObject>(module, "Load", nb::type_slots(collector_slots<LoadObject>), "A load in progress.")
      .def("take", &LoadObject::take, nb::arg("bytes_max") = UINT64_MAX)
      .def("take_views", &LoadObject::take_views, nb::arg("views"), nb::arg("into"))
      .def("cancel", &LoadObject::cancel)
      .def("close", &LoadObject::close)
      .def_prop_ro("done", &LoadObject::done)
      .def_prop_ro("progress", &LoadObject::progress)
      .def("report", &LoadObject::report);
}

}  // namespace

void bind_loader(nb::module_& module, const std::shared_ptr<Interpreter>& interpreter) {
  bind_views(module);
  bind_load(module);
  nb::class_<LoaderObject>(module, "Loader",
                           "What is dear to set up: driver, pinned ring, reader threads. Kept between loads; "
                           "may be shared by threads.")
      .def(
          "__init__",
          [interpreter](LoaderObject* self, std::optional<std::uint32_t> readers,
                        const nb::object& piece_bytes, const nb::object& staging_bytes,
                        std::optional<std::uint32_t> processes, std::optional<bool> io_uring,
                        const std::optional<std::string>& cuda_library) {
            LoaderOptions options = options_from_environment();  // for what is None
            if (readers) options.reader_count_max = *readers;
            if (!piece_bytes.is_none()) options.piece_bytes_max = to_bytes(piece_bytes);
            if (!staging_bytes.is_none()) options.staging_bytes_max = to_bytes(staging_bytes);
            if (processes) options.loading_process_count = *processes;
            if (io_uring) options.io_uring = *io_uring ? IoUring::automatic : IoUring::off;
            if (cuda_library) options.cuda_library = *cuda_library;
            new (self) LoaderObject(interpreter, std::move(options));
          },
          nb::kw_only(), nb::arg("readers") = nb::none(), nb::arg("piece_bytes") = nb::none(),
          nb::arg("staging_bytes") = nb::none(), nb::arg("processes") = nb::none(),
          nb::arg("io_uring") = nb::none(), nb::arg("cuda_library") = nb::none())
      .def("start", &LoaderObject::start, nb::arg("checkpoint"), nb::arg("request"))
      .def("load_async", &LoaderObject::load_async, nb::arg("checkpoint"), nb::arg("request"),
           nb::arg("wait") = "event")
      .def("devices",
           [](const LoaderObject& self) {
             nb::list list;
             for (const Device& device : self.loader().devices())
               list.append(nb::make_tuple(spelling_of(device), device.uuid));
             return list;
           })
      .def("current_device",
           [](const LoaderObject& self) { return spelling_of(self.loader().current_device()); })
      .def("copy_to_host", &LoaderObject::copy_to_host, nb::arg("tensor"))
      .def("release_idle", [](const LoaderObject& self) { self.loader().release_idle(); })
      .def("take_log", &LoaderObject::take_log);
}

}  // namespace inrush::python
