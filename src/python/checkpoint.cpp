// Checkpoint as a mapping from names to TensorInfo.
#include <inrush/checkpoint.hpp>

#include <inrush/loader.hpp>
#include <inrush/plan.hpp>
#include <inrush/report.hpp>

#include "bindings.hpp"
#include "request.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace inrush::python {

namespace {

// A TensorInfo that owns what it shows.
struct TensorEntry {
  Checkpoint checkpoint;
  TensorInfo info;
  std::vector<std::uint64_t> shape;  // of the slice, where there is one
  std::uint64_t size_bytes = 0;

  [[nodiscard]] const std::string& file() const { return checkpoint.files()[info.file].path; }
};

TensorEntry entry_of(const Checkpoint& checkpoint, std::size_t index) {
  const TensorInfo info = checkpoint.tensor(index);
  return {checkpoint, info, {info.shape.begin(), info.shape.end()}, info.size_bytes};
}

// Nothing for what is no name: another type, text that is not UTF-8.
std::optional<std::size_t> find(const Checkpoint& checkpoint, nb::handle name) {
  std::string_view text;
  return nb::try_cast(name, text) ? checkpoint.find(text) : std::nullopt;
}

nb::list names_of(const Checkpoint& checkpoint) {
  nb::list names;
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) names.append(to_str(checkpoint.tensor(i).name));
  return names;
}

nb::dict to_dict(const std::map<std::string, std::string>& metadata) {
  nb::dict dict;
  for (const auto& [key, value] : metadata) dict[to_str(key)] = to_str(value);
  return dict;
}

// Of all files together; where two give one key different values, the first file's counts.
nb::dict metadata_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> all;
  for (const CheckpointFile& file : checkpoint.files())
    all.insert(file.metadata.begin(), file.metadata.end());
  return to_dict(all);
}

// The element types that occur, each once.
nb::list dtypes_of(const Checkpoint& checkpoint) {
  std::array<bool, dtype_count> occurs = {};
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i)
    occurs[static_cast<std::size_t>(checkpoint.tensor(i).dtype)] = true;
  nb::list dtypes;
  for (std::size_t i = 0; i < occurs.size(); ++i) {
    if (occurs[i]) dtypes.append(to_str(dtype_name(static_cast<DType>(i))));
  }
  return dtypes;
}

nb::list files_of(const Checkpoint& checkpoint) {
  nb::list files;
  for (const CheckpointFile& file : checkpoint.files()) files.append(nb::cast(file, nb::rv_policy::copy));
  return files;
}

// What a load with these arguments would bring, in the order of the plan. Reads nothing.
std::vector<TensorEntry> selection(const Checkpoint& checkpoint, const Patterns& only,
                                   const SliceMap& slices) {
  const Machine machine = {.devices = {Device{}},
                           .paths = {{.name = "staged", .usable = true, .reason = ""}}};
  const Plan plan = make_plan(checkpoint, make_request(only, slices), machine);
  std::vector<TensorEntry> entries;
  entries.reserve(plan.placements.size());
  for (const Placement& placement : plan.placements) {
    entries.push_back(entry_of(checkpoint, placement.tensor));
    entries.back().size_bytes = placement.size_bytes;
    if (placement.slice) entries.back().shape.at(placement.slice->dimension) = placement.slice->length;
  }
  return entries;
}

Checkpoint open_checkpoint(const nb::bytes& path, bool is_index_ignored,
                           const std::shared_ptr<Interpreter>& interpreter) {
  const std::string name(path.c_str(), path.size());
  Callbacks callbacks(interpreter);
  DiscoverOptions options;
  if (is_index_ignored) options.index = IndexPolicy::ignore;
  options.interrupted = [&callbacks] {
    return !callbacks.run([] {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    });
  };
  try {
    return interpreter->released([&] { return discover(name, options); });
  } catch (const Error&) {
    callbacks.rethrow();
    throw;
  }
}

// (name, dtype, shape, file, offset)
using PlaceTuple =
    std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uint32_t, std::uint64_t>;

TensorPlace place_of(PlaceTuple&& tuple) {
  auto& [name, dtype_text, shape, file, offset] = tuple;
  const std::optional<DType> dtype = parse_dtype(dtype_text);
  if (!dtype) throw Error(ErrorCode::invalid_request, name + ": no element type " + dtype_text);
  return {std::move(name), *dtype, std::move(shape), file, offset};
}

Checkpoint describe(const nb::bytes& path, const std::vector<nb::bytes>& files,
                    std::vector<PlaceTuple> tuples, Interpreter& interpreter) {
  const std::string name(path.c_str(), path.size());
  std::vector<std::string> paths;
  for (const nb::bytes& file : files) paths.emplace_back(file.c_str(), file.size());
  return interpreter.released([&] {
    std::vector<TensorPlace> tensors;
    tensors.reserve(tuples.size());
    for (PlaceTuple& tuple : tuples) tensors.push_back(place_of(std::move(tuple)));
    return describe_checkpoint(name, paths, std::move(tensors));
  });
}

// on_progress: (resident_bytes, planned_bytes) -> None, every 16 MiB; what it raises ends the call.
nb::tuple warm_up(const Checkpoint& checkpoint, LoadRequest request, const nb::object& on_progress,
                  const std::shared_ptr<Interpreter>& interpreter) {
  Callbacks callbacks(interpreter);
  request.interrupted = [&] {
    return !callbacks.run([] {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    });
  };
  const auto tell = [&](const Progress& progress) {
    if (on_progress.is_none()) return;
    callbacks.run([&] { on_progress(progress.loaded_bytes, progress.planned_bytes); });
  };
  WarmReport report;
  try {
    report = interpreter->released([&] { return warm(checkpoint, request, tell); });
  } catch (const Error&) {
    callbacks.rethrow();
    throw;
  }
  callbacks.rethrow();
  return nb::make_tuple(report.planned_bytes, report.resident_bytes, report.read_bytes, report.left_bytes,
                        report.seconds);
}

void bind_entries(nb::module_& module) {
  nb::class_<TensorEntry>(module, "TensorInfo", "One tensor of a checkpoint: what its header says.")
      .def_prop_ro("name", [](const TensorEntry& self) { return to_str(self.info.name); })
      .def_prop_ro("dtype", [](const TensorEntry& self) { return dtype_name(self.info.dtype); })
      .def_prop_ro("shape", [](const TensorEntry& self) { return to_tuple(self.shape); })
      .def_prop_ro("nbytes", [](const TensorEntry& self) { return self.size_bytes; })
      .def_prop_ro("file", [](const TensorEntry& self) { return to_str(self.file()); })
      .def_prop_ro("offset", [](const TensorEntry& self) { return self.info.offset; })
      .def("__repr__", [](const TensorEntry& self) {
        return nb::str("<inrush.TensorInfo {!r} {} {} {} bytes>")
            .attr("format")(to_str(self.info.name), dtype_name(self.info.dtype), to_tuple(self.shape),
                            self.size_bytes);
      });
  nb::class_<CheckpointFile>(module, "CheckpointFile", "One file of a checkpoint.")
      .def_prop_ro("path", [](const CheckpointFile& self) { return to_str(self.path); })
      .def_prop_ro("nbytes", [](const CheckpointFile& self) { return self.identity.size_bytes; })
      .def_prop_ro("data_offset", [](const CheckpointFile& self) { return self.data_offset; })
      .def_prop_ro("metadata", [](const CheckpointFile& self) { return to_dict(self.metadata); })
      .def("__repr__", [](const CheckpointFile& self) {
        return nb::str("<inrush.CheckpointFile {!r} {} bytes>")
            .attr("format")(to_str(self.path), self.identity.size_bytes);
      });
}

void bind_functions(nb::module_& module, const std::shared_ptr<Interpreter>& interpreter) {
  module.def(
      "open",
      [interpreter](const nb::bytes& path, bool ignore_index) {
        return open_checkpoint(path, ignore_index, interpreter);
      },
      nb::arg("path"), nb::arg("ignore_index") = false);
  module.def(
      "describe_checkpoint",
      [interpreter](const nb::bytes& path, const std::vector<nb::bytes>& files,
                    std::vector<PlaceTuple> tensors) {
        return describe(path, files, std::move(tensors), *interpreter);
      },
      nb::arg("path"), nb::arg("files"), nb::arg("tensors"));
  module.def(
      "warm",
      [interpreter](const Checkpoint& checkpoint, const Patterns& only, const SliceMap& slices,
                    const nb::object& on_progress) {
        return warm_up(checkpoint, make_request(only, slices), on_progress, interpreter);
      },
      nb::arg("checkpoint"), nb::arg("only").none() = nb::none(), nb::arg("slices") = SliceMap(),
      nb::arg("on_progress").none() = nb::none());
}

}  // namespace

void bind_checkpoint(nb::module_& module, const std::shared_ptr<Interpreter>& interpreter) {
  bind_entries(module);
  nb::class_<Checkpoint>(
      module, "Checkpoint",
      "The files and tensors of a checkpoint, a mapping from names to TensorInfo. Keeps no file open.")
      .def_prop_ro("path", [](const Checkpoint& self) { return to_str(self.path()); })
      .def_prop_ro("files", files_of)
      .def_prop_ro("dtypes", dtypes_of)
      .def_prop_ro("metadata", metadata_of)
      .def_prop_ro("nbytes", &Checkpoint::size_bytes)
      .def_prop_ro("notes", [](const Checkpoint& self) { return to_list(self.notes()); })
      .def("__len__", &Checkpoint::tensor_count)
      .def(
          "__contains__",
          [](const Checkpoint& self, nb::handle name) { return find(self, name).has_value(); },
          nb::arg().none())
      .def(
          "__getitem__",
          [](const Checkpoint& self, nb::handle name) {
            const std::optional<std::size_t> index = find(self, name);
            if (index) return entry_of(self, *index);
            const nb::object error = nb::handle(PyExc_KeyError)(name);
            PyErr_SetObject(PyExc_KeyError, error.ptr());
            nb::raise_python_error();
          },
          nb::arg().none())
      .def(
          "get",
          [](const Checkpoint& self, nb::handle name, nb::object otherwise) {
            const std::optional<std::size_t> index = find(self, name);
            return index ? nb::cast(entry_of(self, *index)) : otherwise;
          },
          nb::arg("name").none(), nb::arg("default").none() = nb::none())
      .def("__iter__", [](const Checkpoint& self) { return nb::iter(names_of(self)); })
      .def("keys", names_of)
      .def("values",
           [](const Checkpoint& self) {
             nb::list entries;
             for (std::size_t i = 0; i < self.tensor_count(); ++i) entries.append(entry_of(self, i));
             return entries;
           })
      .def("items",
           [](const Checkpoint& self) {
             nb::list items;
             for (std::size_t i = 0; i < self.tensor_count(); ++i) {
               items.append(nb::make_tuple(to_str(self.tensor(i).name), entry_of(self, i)));
             }
             return items;
           })
      .def("selection", selection, nb::arg("only").none() = nb::none(), nb::arg("slices") = SliceMap())
      .def("__repr__", [](const Checkpoint& self) {
        return nb::str("<inrush.Checkpoint {!r}: {} tensors, {}, {} files>")
            .attr("format")(to_str(self.path()), self.tensor_count(), format_bytes(self.size_bytes()),
                            self.files().size());
      });
  bind_functions(module, interpreter);
}

}  // namespace inrush::python
