#include "gpu/cufile_library.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>

namespace inrush::engine {

namespace {

namespace fs = std::filesystem;

constexpr const char* soname = "libcufile.so.0";
// Of nvidia-cufile (CUDA 13 and later) and of nvidia-cufile-cu12.
constexpr std::string_view wheel_folders[] = {"nvidia/cu13/lib", "nvidia/cufile/lib"};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The folders that Python packages of this module or program lie in: those that it is in itself, and for a
// command in bin/ the ones beside it.
std::vector<fs::path> package_folders(const fs::path& module) {
  std::vector<fs::path> folders;
  for (fs::path folder = module.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder.filename() == "site-packages" || folder.filename() == "dist-packages")
      folders.push_back(folder);
  }
  std::error_code ignored;
  const fs::path beside = module.parent_path().parent_path() / "lib";
  for (fs::directory_iterator entry(beside, ignored), end; entry != end; entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with("python3"))
      folders.push_back(entry->path() / "site-packages");
  }
  return folders;
}

std::string path_of(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  std::error_code ignored;
  // Of a program it is the word that it was started by.
  const bool is_program = std::string_view(info.dli_fname).find('/') == std::string_view::npos;
  const fs::path path = fs::canonical(is_program ? "/proc/self/exe" : info.dli_fname, ignored);
  return path.empty() ? info.dli_fname : path.string();
}

CufileLibrary library_of(void* handle, const std::string& name) {
  CufileLibrary library{load_cufile_table(handle, name), name};
  const std::string path = path_of(reinterpret_cast<const void*>(library.table.driver_open));
  if (!path.empty()) library.path = path;
  return library;
}

std::string last_dl_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

std::vector<std::string> cufile_candidates(const std::string& module_path) {
  std::vector<std::string> candidates;
  for (const fs::path& packages : package_folders(module_path)) {
    for (const std::string_view folder : wheel_folders) {
      const fs::path candidate = packages / folder / soname;
      if (is_there(candidate)) candidates.push_back(candidate);
    }
  }
  candidates.emplace_back(soname);  // where the dynamic linker looks
  const fs::path toolkit = fs::path("/usr/local/cuda/lib64") / soname;
  if (is_there(toolkit)) candidates.push_back(toolkit);
  return candidates;
}

CufileLibrary open_cufile_library(const std::string& wanted) {
  // Two copies in one process would each think that they own the driver's state.
  if (void* loaded = wanted.empty() ? ::dlopen(soname, RTLD_NOW | RTLD_NOLOAD) : nullptr)
    return library_of(loaded, soname);
  const std::vector<std::string> candidates =
      wanted.empty() ? cufile_candidates(path_of(reinterpret_cast<const void*>(&open_cufile_library)))
                     : std::vector<std::string>{wanted};
  std::string reason;
  for (const std::string& candidate : candidates) {
    if (void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL))
      return library_of(handle, candidate);
    reason = last_dl_error();
  }
  throw Error(
      ErrorCode::environment_unfit,
      fmt::format("no libcufile: {}; install nvidia-cufile from PyPI, or a CUDA toolkit", printable(reason)));
}

}  // namespace inrush::engine
