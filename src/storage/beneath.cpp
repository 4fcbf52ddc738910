#include "storage/beneath.hpp"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

constexpr int link_count_max = 40;  // as the kernel's own limit

UniqueFd open_folder(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

OpenOutcome openat2_beneath(int folder_fd, const std::string& name) {
  open_how how = {};
  how.flags = static_cast<std::uint64_t>(read_open_flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something was renamed meanwhile and the kernel cannot vouch for the result.
  constexpr int attempt_count_max = 8;
  for (int attempt = 0; attempt < attempt_count_max; ++attempt) {
    const auto fd = static_cast<int>(::syscall(SYS_openat2, folder_fd, name.c_str(), &how, sizeof how));
    if (fd >= 0) return {UniqueFd(fd), 0};
    if (errno != EAGAIN && errno != EINTR) break;
  }
  return {{}, errno};
}

// Components in front of what is still to be walked. False for an absolute path.
bool prepend(std::deque<std::string>& components, std::string_view path) {
  if (path.starts_with('/')) return false;
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::size_t length = std::min(path.find('/'), path.size());
    if (length > 0) parts.emplace_back(path.substr(0, length));
    path.remove_prefix(std::min(length + 1, path.size()));
  }
  components.insert(components.begin(), parts.begin(), parts.end());
  return true;
}

// One walk: the folders from the root to where it stands, and the components ahead.
class Walk {
 public:
  explicit Walk(int root_fd) : root_fd_(root_fd) {}

  WalkOutcome run(std::string_view path) {
    if (!prepend(ahead_, path)) return {{}, EXDEV, {}};
    while (!ahead_.empty()) {
      const std::string component = std::move(ahead_.front());
      ahead_.pop_front();
      const int error = component == ".." ? step_up() : component == "." ? 0 : step_into(component);
      if (error != 0) return {{}, error, {}};
      if (found_.is_open()) return {std::move(found_), 0, std::move(place_)};
    }
    return {{}, EISDIR, {}};
  }

 private:
  [[nodiscard]] int here() const { return folders_.empty() ? root_fd_ : folders_.back().get(); }

  int step_up() {
    if (folders_.empty()) return EXDEV;
    folders_.pop_back();
    place_.pop_back();
    return 0;
  }

  int step_into(const std::string& component) {
    UniqueFd entry(::openat(here(), component.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (!entry.is_open() || ::fstat(entry.get(), &status) != 0) return errno;
    if (S_ISLNK(status.st_mode)) return follow(entry.get());
    if (S_ISDIR(status.st_mode) && !ahead_.empty()) {
      folders_.push_back(std::move(entry));
    } else {
      if (!ahead_.empty()) return ENOTDIR;
      found_ = UniqueFd(::openat(here(), component.c_str(), read_open_flags | O_NOFOLLOW));
      if (!found_.is_open()) return errno;
    }
    place_.push_back(component);
    return 0;
  }

  int follow(int link_fd) {
    if (++link_count_ > link_count_max) return ELOOP;
    std::array<char, PATH_MAX> target = {};
    const ssize_t length = ::readlinkat(link_fd, "", target.data(), target.size());
    if (length < 0) return errno;
    return prepend(ahead_, {target.data(), static_cast<std::size_t>(length)}) ? 0 : EXDEV;
  }

  const int root_fd_;
  std::deque<std::string> ahead_;
  std::vector<UniqueFd> folders_;
  std::vector<std::string> place_;
  UniqueFd found_;
  int link_count_ = 0;
};

struct CacheSnapshot {
  std::string entry;         // ".../models--org--name"
  std::string inside_entry;  // "snapshots/<commit>" and what follows
};

// Nothing where the folder is no snapshot of a cache, or with `error`.
std::optional<CacheSnapshot> cache_snapshot(const std::string& folder, std::error_code& error) {
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  if (error) return std::nullopt;
  std::filesystem::path inside_entry;
  for (std::filesystem::path place = real; place.has_relative_path(); place = place.parent_path()) {
    const bool is_entry = place.filename().native().starts_with("models--");
    if (is_entry && !inside_entry.empty() && *inside_entry.begin() == "snapshots") {
      return CacheSnapshot{place.native(), inside_entry.native()};
    }
    inside_entry = inside_entry.empty() ? place.filename() : place.filename() / inside_entry;
  }
  return std::nullopt;
}

}  // namespace

WalkOutcome walk_beneath(int root_fd, std::string_view path) { return Walk(root_fd).run(path); }

OpenOutcome open_inside_folder(const std::string& folder, const std::string& name) {
  const UniqueFd folder_fd = open_folder(folder);
  if (!folder_fd.is_open()) return {{}, errno};
  OpenOutcome outcome = openat2_beneath(folder_fd.get(), name);
  // ENOSYS: before Linux 5.6. EPERM: older seccomp profiles. Where EPERM is about the file, the walk meets it
  // again.
  const bool refused = outcome.error == ENOSYS || outcome.error == EPERM || outcome.error == EAGAIN;
  if (!refused) return outcome;
  WalkOutcome walked = walk_beneath(folder_fd.get(), name);
  return {std::move(walked.fd), walked.error};
}

OpenOutcome open_inside_cache_entry(const std::string& folder, const std::string& name) {
  std::error_code error;
  const std::optional<CacheSnapshot> snapshot = cache_snapshot(folder, error);
  if (!snapshot) return {{}, error ? error.value() : EXDEV};
  const UniqueFd entry_fd = open_folder(snapshot->entry);
  if (!entry_fd.is_open()) return {{}, errno};
  WalkOutcome walked = walk_beneath(entry_fd.get(), snapshot->inside_entry + "/" + name);
  if (walked.error == 0 && walked.place.front() != "blobs") return {{}, EXDEV};
  return {std::move(walked.fd), walked.error};
}

}  // namespace inrush::engine
