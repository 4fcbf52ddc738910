// The configuration that libcufile finds in the environment of the command: set before the first thread
// starts, and only where the user has not named one.
#pragma once

#include <inrush/request.hpp>

namespace inrush::engine {

// $CUFILE_ENV_PATH_JSON names a file in memory, for the life of the process, that allows the path (for
// PathPreference::automatic: GDS) and no other. Nothing for the staged path, and where the user has set the
// variable. What P2PDMA needs of this file has no parameter in cuFile's API. Throws storage_failed.
void set_cufile_environment(PathPreference path);

}  // namespace inrush::engine
