// What the command writes: whole results to stdout at the end, single lines to stderr at any time. One
// thread.
#pragma once

#include <inrush/error.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {

// Exit codes that no ErrorCode stands for.
inline constexpr int exit_usage = 2;
inline constexpr int exit_signal_base = 128;  // plus the signal, as shells report it

// The exit code of a failure; docs/cli.md lists them.
[[nodiscard]] int exit_code(ErrorCode code) noexcept;
// Throws storage_failed where stdout does not take all of it (a full disk).
void write_stdout(std::string_view text);
// One line on stderr, whatever `message` contains. Failures to write are ignored: there is nowhere left to
// say so.
void write_stderr_line(std::string_view message) noexcept;
// Raw bytes to stderr, for the progress bar.
void write_stderr(std::string_view text) noexcept;

enum class Align { left, right };

// Rows of cells in columns as wide as their widest cell, two blanks apart, each line indented by two.
class Table {
 public:
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "1 tensor", "1,234 tensors".
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);
[[nodiscard]] std::string grouped(std::uint64_t number);
// A path as JSON may hold it: paths are any bytes, JSON is UTF-8, so a path that is not comes escaped.
[[nodiscard]] std::string json_path(const std::string& path);

}  // namespace inrush::engine
