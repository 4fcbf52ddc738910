#include "gpu/cufile_table.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace inrush::engine {

namespace {

template <typename Function>
void find(Function& entry, void* library, const char* symbol) {
  entry = reinterpret_cast<Function>(::dlsym(library, symbol));
}

}  // namespace

CufileTable load_cufile_table(void* library, const std::string& name) {
  const auto require = [&](auto& entry, const char* symbol) {
    find(entry, library, symbol);
    if (entry != nullptr) return;
    throw Error(ErrorCode::environment_unfit,
                fmt::format("{} has no {}: it is no libcufile, or one older than ours knows; install "
                            "nvidia-cufile of CUDA 12 or newer",
                            printable(name), symbol));
  };
  CufileTable table{};
  require(table.driver_open, "cuFileDriverOpen");
  // cufile.h renames cuFileDriverClose; the plain symbol is that of libraries before 1.7.
  require(table.driver_close, "cuFileDriverClose_v2");
  require(table.use_count, "cuFileUseCount");
  require(table.driver_get_properties, "cuFileDriverGetProperties");
  require(table.get_version, "cuFileGetVersion");
  require(table.handle_register, "cuFileHandleRegister");
  require(table.handle_deregister, "cuFileHandleDeregister");
  require(table.buf_register, "cuFileBufRegister");
  require(table.buf_deregister, "cuFileBufDeregister");
  require(table.read, "cuFileRead");
  require(table.write, "cuFileWrite");
  find(table.set_parameter_size, library, "cuFileSetParameterSizeT");
  find(table.set_parameter_bool, library, "cuFileSetParameterBool");
  find(table.set_parameter_string, library, "cuFileSetParameterString");
  find(table.get_parameter_bool, library, "cuFileGetParameterBool");
  find(table.set_stats_level, library, "cuFileSetStatsLevel");
  find(table.get_stats_level, library, "cuFileGetStatsLevel");
  find(table.stats_start, library, "cuFileStatsStart");
  find(table.get_stats_3, library, "cuFileGetStatsL3");
  find(table.get_p2p_flags, library, "cuFileDriverGetP2PFlags");
  find(table.readv, library, "cuFileReadv");
  return table;
}

}  // namespace inrush::engine
