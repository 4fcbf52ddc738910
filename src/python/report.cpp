// Report and its parts, read-only.
#include <inrush/report.hpp>

#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace inrush::python {

namespace {

void bind_parts(nb::module_& module) {
  nb::class_<PathBytes>(module, "PathBytes", "Bytes of tensors that came one way.")
      .def_ro("path", &PathBytes::path)
      .def_ro("bytes", &PathBytes::bytes)
      .def("__repr__",
           [](const PathBytes& self) { return "<" + self.path + ": " + format_bytes(self.bytes) + ">"; });
  nb::class_<Fallback>(module, "Fallback", "One step down from what the machine should allow.")
      .def_ro("what", &Fallback::what)
      .def_ro("reason", &Fallback::reason)
      .def_ro("count", &Fallback::count)
      .def("__repr__", [](const Fallback& self) { return "<no " + self.what + ": " + self.reason + ">"; });
  nb::class_<Stages>(module, "Stages",
                     "Seconds since the start of the load at which each stage ended; negative: not reached.")
      .def_ro("open", &Stages::open)
      .def_ro("headers", &Stages::headers)
      .def_ro("plan", &Stages::plan)
      .def_ro("allocate", &Stages::allocate)
      .def_ro("first_byte", &Stages::first_byte)
      .def_ro("first_tensor", &Stages::first_tensor)
      .def_ro("last_byte", &Stages::last_byte);
}

}  // namespace

void bind_report(nb::module_& module) {
  bind_parts(module);
  nb::class_<Report>(module, "Report", "What a load did, from what happened. str() is text for people.")
      .def_prop_ro("device", [](const Report& self) { return device_name(self.device); })
      .def_ro("path", &Report::path)
      .def_ro("complete", &Report::complete)
      .def_ro("tensor_count", &Report::tensor_count)
      .def_ro("planned_bytes", &Report::planned_bytes)
      .def_ro("loaded_bytes", &Report::loaded_bytes)
      .def_ro("read_bytes", &Report::read_bytes)
      .def_ro("bytes_by_path", &Report::bytes_by_path)
      .def_ro("seconds", &Report::seconds)
      .def_ro("bytes_per_second", &Report::bytes_per_second)
      .def_ro("read_count", &Report::read_count)
      .def_ro("copy_count", &Report::copy_count)
      .def_ro("retry_count", &Report::retry_count)
      .def_ro("orphan_count", &Report::orphan_count)
      .def_ro("fallbacks", &Report::fallbacks)
      .def_ro("pinned_peak_bytes", &Report::pinned_peak_bytes)
      .def_ro("staging_peak_bytes", &Report::staging_peak_bytes)
      .def_ro("read_ahead_bytes", &Report::read_ahead_bytes)
      .def_ro("window_peak_bytes", &Report::window_peak_bytes)
      .def_ro("host_peak_bytes", &Report::host_peak_bytes)
      .def_prop_ro("notes", [](const Report& self) { return to_list(self.notes); })
      .def_prop_ro("suspect_tensors", [](const Report& self) { return to_list(self.suspect_tensors); })
      .def_prop_ro("overwritten_targets",
                   [](const Report& self) { return to_list(self.overwritten_targets); })
      .def("to_json", [](const Report& self) { return to_str(report_to_json(self)); })
      .def("__str__", [](const Report& self) { return to_str(report_to_text(self)); })
      .def("__repr__", [](const Report& self) {
        return "<inrush.Report " + format_bytes(self.loaded_bytes) + " on " + device_name(self.device) +
               (self.complete ? ">" : ", incomplete>");
      });
}

}  // namespace inrush::python
