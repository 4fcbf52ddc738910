// Reads the statistics of nvidia-fs from where the module shows them.
#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include "base/text.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

namespace inrush::inline v0 {

namespace {

// Sixteen GPUs take 4 KiB; a file that does not end is none of the driver's.
constexpr std::size_t text_bytes_max = std::size_t{1} << 20;

Error unreadable(const std::string& path, const std::string& reason, int system_error = 0) {
  return {ErrorCode::storage_failed, engine::printable(path, PATH_MAX) + ": " + reason, system_error};
}

std::string read_all(int fd, const std::string& path) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw unreadable(path, "read: " + engine::errno_text(errno), errno);
    if (count == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
    if (text.size() > text_bytes_max) throw unreadable(path, "larger than any statistics of nvidia-fs");
  }
}

}  // namespace

std::optional<GdsDriverStats> read_gds_driver_stats(const std::string& path) {
  // A FIFO is not waited for.
  const engine::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw unreadable(path, "open: " + engine::errno_text(errno), errno);
  }
  return parse_gds_driver_stats(read_all(file.get(), path));
}

}  // namespace inrush::inline v0
