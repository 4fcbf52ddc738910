#include "cli/cufile_environment.hpp"

#include <inrush/error.hpp>
#include <inrush/loader.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace inrush::engine {

namespace {

constexpr const char* variable = "CUFILE_ENV_PATH_JSON";

std::string scratch_folder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();
}

}  // namespace

void set_cufile_environment(PathPreference path) {
  if (path == PathPreference::staged) return;
  const std::string text = cufile_configuration(path, scratch_folder());
  // In memory: nothing is left behind, however the command ends.
  const int fd = ::memfd_create("cufile.json", MFD_CLOEXEC);
  if (fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::setenv(variable, fmt::format("/proc/self/fd/{}", fd).c_str(), 0) == 0)  // 0: what is set stays
    return;
  const int error = errno;
  throw Error(ErrorCode::storage_failed,
              fmt::format("a private cufile.json in memory: {}; set {} to one of your own",
                          std::generic_category().message(error), variable),
              error);
}

}  // namespace inrush::engine
