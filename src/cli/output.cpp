#include "cli/output.hpp"

#include <inrush/report.hpp>

#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace inrush::engine {

namespace {

// Bytes taken, or the errno that stopped it.
int write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

// Characters, not bytes: names may be UTF-8.
std::size_t width_of(std::string_view text) {
  const auto starts_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  return static_cast<std::size_t>(std::ranges::count_if(text, starts_character));
}

}  // namespace

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_request:
      return exit_usage;
    case ErrorCode::environment_unfit:
      return 3;
    case ErrorCode::not_found:
      return 4;
    case ErrorCode::corrupt_checkpoint:
      return 5;
    case ErrorCode::out_of_memory:
      return 6;
    case ErrorCode::timed_out:
    case ErrorCode::cancelled:
      return 7;
    case ErrorCode::storage_failed:
    case ErrorCode::device_failed:
    case ErrorCode::internal:
      break;
  }
  return 1;
}

void write_stdout(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == 0) return;
  throw Error(ErrorCode::storage_failed, "standard output: write: " + std::generic_category().message(error),
              error);
}

void write_stderr(std::string_view text) noexcept { write_all(STDERR_FILENO, text); }

void write_stderr_line(std::string_view message) noexcept {
  // Without allocation, since memory may be what ran out; a line break inside would make two errors of one.
  write_stderr("inrush: ");
  while (!message.empty()) {
    const auto control = std::ranges::find_if(
        message, [](char byte) { return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F; });
    const auto clean = static_cast<std::size_t>(control - message.begin());
    write_stderr(message.substr(0, clean));
    if (clean == message.size()) break;
    write_stderr(" ");
    message.remove_prefix(clean + 1);
  }
  write_stderr("\n");
}

std::string Table::text() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? " " : "  ";
      line += columns_[i] == Align::left ? row[i] + blanks : blanks + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3;) text.insert(place -= 3, 1, ',');
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return grouped(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::string json_path(const std::string& path) {
  // The parser judges: unlike the serializer it refuses bytes that are not UTF-8.
  boost::system::error_code error;
  boost::json::parse(boost::json::serialize(boost::json::string(path)), error);
  return error ? escape_text(path, path.size() * 4) : path;
}

}  // namespace inrush::engine
