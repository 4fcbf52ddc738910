#include "loader/config_file.hpp"

#include "base/text.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <cerrno>
#include <climits>

namespace inrush::engine {

namespace {

constexpr std::uint64_t config_bytes_max = 1ULL << 20;

std::string read_text(const std::string& path) {
  // O_NONBLOCK: a FIFO in its place must not hang the program at its start.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) throw config_file_error(path, "open", errno);
  struct stat facts = {};
  if (::fstat(file.get(), &facts) != 0) throw config_file_error(path, "fstat", errno);
  if (!S_ISREG(facts.st_mode)) throw config_file_error(path, "not a regular file", 0);
  std::string text(config_bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw config_file_error(path, "read", errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > config_bytes_max)
    throw config_file_error(path, fmt::format("longer than {} bytes", config_bytes_max), 0);
  text.resize(size);
  return text;
}

}  // namespace

boost::json::object read_config_file(const std::string& path) {
  boost::json::parse_options options;
  options.allow_comments = true;
  options.allow_trailing_commas = true;
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(read_text(path), error, {}, options);
  if (error)
    throw config_file_error(path, fmt::format("not JSON ({}); comments are allowed", error.message()), 0);
  if (!value.is_object()) throw config_file_error(path, "not a JSON object, as in {\"readers\": 8}", 0);
  return value.as_object();
}

Error config_file_error(const std::string& path, std::string_view cause, int error) {
  const ErrorCode code = error == ENOENT || error == EACCES ? ErrorCode::not_found
                         : error != 0                       ? ErrorCode::storage_failed
                                                            : ErrorCode::invalid_request;
  const std::string reason =
      error != 0 ? fmt::format("{}: {}", cause, errno_text(error)) : std::string(cause);
  return {code, fmt::format("configuration file {}: {}", printable(path, PATH_MAX), reason), error};
}

}  // namespace inrush::engine
