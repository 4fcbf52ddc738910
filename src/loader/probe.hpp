// Measures each path from storage to a device in a child process of its own (inrush-probe, src/probe), which
// may hang or crash without harm. Called by Loader::probe(), on the caller's thread; no child outlives the
// call, unless the kernel does not let it die.
#pragma once

#include <inrush/loader.hpp>

#include <string>
#include <vector>

namespace inrush::engine {

// What a Loader knows of the probe that is asked for.
struct ProbeTask {
  std::string path;    // a file or folder, as the user named it
  Device device;       // with its UUID
  std::string driver;  // ProbeKey::driver, less the kernel module
  std::string cuda_library;
  std::string cufile_library;
  std::string state_folder;
};

// As Loader::probe().
[[nodiscard]] ProbeReport run_probe(const ProbeTask& task, const ProbeOptions& options);

// Where inrush-probe may lie for a program, library or Python module at `module_path`, in the order of
// looking. Looks at folders for the last of them.
[[nodiscard]] std::vector<std::string> probe_program_places(const std::string& module_path);

}  // namespace inrush::engine
