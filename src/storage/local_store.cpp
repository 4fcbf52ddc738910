#include "storage/local_store.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "storage/beneath.hpp"
#include "storage/local_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace inrush::engine {

namespace {

// Empty for a regular file.
std::string_view odd_kind(mode_t mode) {
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

[[noreturn]] void throw_odd_kind(const std::string& path, std::string_view kind) {
  throw Error(
      ErrorCode::invalid_request,
      fmt::format("{}: this is {}, not a regular file; name a .safetensors file, a folder or an index.json",
                  printable(path), kind));
}

ErrorCode code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
      return ErrorCode::not_found;
    case ENAMETOOLONG:
      return ErrorCode::invalid_request;
    case ENOMEM:
      return ErrorCode::out_of_memory;
    default:
      return ErrorCode::storage_failed;
  }
}

std::string_view advice_of(int error) {
  switch (error) {
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case ENFILE:
      return "; the system has no more open files to give (fs.file-max)";
    case ESTALE:
      return "; the network file system replaced the file: try again, or mount it again";
    case ENOENT:
    case ENOTDIR:
      return "; check the path, or finish the download";
    case EACCES:
      return "; check the permissions of the file and of the folders above it";
    case ELOOP:
      return "; the links lead in a circle";
    default:
      return {};
  }
}

[[noreturn]] void throw_open_error(const std::string& path, int error) {
  struct stat status = {};
  // A socket, or a device without a driver, refuses the open itself.
  if ((error == ENXIO || error == ENODEV) && ::stat(path.c_str(), &status) == 0) {
    if (const std::string_view kind = odd_kind(status.st_mode); !kind.empty()) throw_odd_kind(path, kind);
  }
  const bool is_dangling = error == ENOENT && ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  throw Error(code_of(error),
              fmt::format("{}: open: {}{}{}", printable(path), errno_text(error),
                          is_dangling ? "; it is a link and its target is missing" : "", advice_of(error)),
              error);
}

void require_path(const std::string& path) {
  if (path.empty()) throw Error(ErrorCode::invalid_request, "the path is empty");
  if (path.find('\0') != std::string::npos) {
    throw Error(ErrorCode::invalid_request, fmt::format("{}: the path holds a NUL byte", printable(path)));
  }
}

bool has_parent_step(std::string_view name) {
  while (!name.empty()) {
    const std::size_t length = std::min(name.find('/'), name.size());
    if (name.substr(0, length) == "..") return true;
    name.remove_prefix(std::min(length + 1, name.size()));
  }
  return false;
}

void require_name_beneath(const std::string& folder, const std::string& name) {
  require_path(name);
  if (!name.starts_with('/') && !has_parent_step(name)) return;
  throw Error(ErrorCode::invalid_request,
              fmt::format("{}: the name {} leads out of the folder", printable(folder), printable(name)));
}

[[noreturn]] void throw_leaving_link(const std::string& path) {
  throw Error(
      ErrorCode::invalid_request,
      fmt::format(
          "{}: the link leads out of the folder and not into the blobs of the same Hugging Face cache entry; "
          "allow it with the link policy \"follow\" (--follow-links) if you trust this folder",
          printable(path)),
      EXDEV);
}

std::shared_ptr<File> as_regular_file(std::string path, UniqueFd fd,
                                      const std::shared_ptr<Populator>& populator) {
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) throw_open_error(path, errno);
  if (const std::string_view kind = odd_kind(status.st_mode); !kind.empty()) throw_odd_kind(path, kind);
  // O_NONBLOCK has done its work; io_uring would take it as "fail with EAGAIN rather than wait for the disk".
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) throw_open_error(path, errno);
  return std::make_shared<LocalFile>(std::move(path), std::move(fd), populator);
}

std::string joined(const std::string& folder, const std::string& name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

class OpenFolder {
 public:
  explicit OpenFolder(const std::string& path) : path_(path), stream_(::opendir(path.c_str())) {
    if (stream_ == nullptr) fail(errno);
  }
  ~OpenFolder() { ::closedir(stream_); }
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

  // Null at the end.
  [[nodiscard]] const dirent* next() const {
    errno = 0;
    const dirent* const entry = ::readdir(stream_);
    if (entry == nullptr && errno != 0) fail(errno);
    return entry;
  }

  [[nodiscard]] bool is_folder(const dirent& entry) const {
    if (entry.d_type != DT_UNKNOWN && entry.d_type != DT_LNK) return entry.d_type == DT_DIR;
    struct stat status = {};
    return ::fstatat(::dirfd(stream_), entry.d_name, &status, 0) == 0 && S_ISDIR(status.st_mode);
  }

 private:
  [[noreturn]] void fail(int error) const {
    throw Error(
        code_of(error),
        fmt::format("{}: list the folder: {}{}", printable(path_), errno_text(error), advice_of(error)),
        error);
  }

  const std::string& path_;
  DIR* const stream_;
};

}  // namespace

std::vector<ListedFile> LocalStore::list(const std::string& folder) const {
  require_path(folder);
  const OpenFolder open_folder(folder);
  std::vector<ListedFile> files;
  while (const dirent* const entry = open_folder.next()) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") files.push_back({std::string(name), open_folder.is_folder(*entry)});
  }
  std::sort(files.begin(), files.end(),
            [](const ListedFile& a, const ListedFile& b) { return a.name < b.name; });
  return files;
}

std::shared_ptr<File> LocalStore::open(const std::string& path) const {
  require_path(path);
  UniqueFd fd(::open(path.c_str(), read_open_flags));
  if (!fd.is_open()) throw_open_error(path, errno);
  return as_regular_file(path, std::move(fd), populator_);
}

std::shared_ptr<File> LocalStore::open_beneath(const std::string& folder, const std::string& name,
                                               LinkPolicy links) const {
  require_path(folder);
  require_name_beneath(folder, name);
  std::string path = joined(folder, name);
  if (links == LinkPolicy::follow) return open(path);
  OpenOutcome opened = open_inside_folder(folder, name);
  if (opened.error == EXDEV) opened = open_inside_cache_entry(folder, name);
  if (opened.error == EXDEV) throw_leaving_link(path);
  if (opened.error != 0) throw_open_error(path, opened.error);
  return as_regular_file(std::move(path), std::move(opened.fd), populator_);
}

}  // namespace inrush::engine
