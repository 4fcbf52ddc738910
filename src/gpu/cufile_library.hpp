// Which libcufile this process uses: the one that it has loaded already, else one of a wheel beside ours,
// else the system's.
#pragma once

#include "gpu/cufile_table.hpp"

#include <string>
#include <vector>

namespace inrush::engine {

struct CufileLibrary {
  CufileTable table;
  std::string path;  // of the file, as the dynamic linker has it
};

// Where a libcufile may lie for a program or module at `module_path`, in the order of trying. Looks at
// folders, opens nothing.
[[nodiscard]] std::vector<std::string> cufile_candidates(const std::string& module_path);

// `wanted`: a path or a name for dlopen; empty: as above. Calls nothing of the library. Throws
// environment_unfit: none found, or one that is too old.
[[nodiscard]] CufileLibrary open_cufile_library(const std::string& wanted);

}  // namespace inrush::engine
