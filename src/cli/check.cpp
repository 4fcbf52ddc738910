#include "cli/check.hpp"

#include <inrush/report.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <unordered_set>
#include <vector>

namespace inrush::engine {

namespace {

// Two of these are all the host memory that a check takes, whatever the model's size.
constexpr std::uint64_t chunk_bytes = 8ULL << 20;

class SourceFile {
 public:
  explicit SourceFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ >= 0) return;
    const ErrorCode code =
        errno == ENOENT || errno == EACCES ? ErrorCode::not_found : ErrorCode::storage_failed;
    throw failure(code, "open", errno);
  }
  ~SourceFile() { ::close(fd_); }
  SourceFile(const SourceFile&) = delete;
  SourceFile& operator=(const SourceFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  void read(std::uint64_t offset, std::span<std::byte> target) const {
    while (!target.empty()) {
      const ssize_t count = ::pread(fd_, target.data(), target.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw failure(ErrorCode::storage_failed, fmt::format("pread at {}", offset), errno);
      if (count == 0) {
        throw failure(ErrorCode::corrupt_checkpoint, fmt::format("ends at byte {}; it was cut short", offset),
                      0);
      }
      offset += static_cast<std::uint64_t>(count);
      target = target.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  [[nodiscard]] Error failure(ErrorCode code, const std::string& cause, int error) const {
    const std::string reason = error == 0 ? "" : ": " + std::generic_category().message(error);
    return {code, fmt::format("check: {}: {}{}", escape_text(path_, PATH_MAX), cause, reason), error};
  }

  std::string path_;
  int fd_;
};

// Where the bytes of a tensor or of its slice stand in the file: `count` rows of `row_bytes`, `pitch_bytes`
// apart.
struct Rows {
  std::uint64_t offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t pitch_bytes = 0;
  std::uint64_t count = 1;

  [[nodiscard]] std::uint64_t size_bytes() const { return row_bytes * count; }
};

// Example: F32 of shape [10, 4, 6], slice 1:1:2. One step along dimension 1 is 6 * 4 = 24 bytes, so there are
// 10 rows of 2 * 24 bytes, 4 * 24 apart, and the first starts 1 * 24 into the tensor.
Rows rows_of(const TensorInfo& info, const std::optional<Slice>& slice) {
  if (!slice) return {info.offset, info.size_bytes, info.size_bytes, 1};
  std::uint64_t step_bits = dtype_bits(info.dtype);
  for (std::size_t i = slice->dimension + 1; i < info.shape.size(); ++i) step_bits *= info.shape[i];
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < slice->dimension; ++i) count *= info.shape[i];
  const std::uint64_t pitch_bytes = info.shape[slice->dimension] * step_bits / 8;
  return {info.offset + slice->start * step_bits / 8, slice->length * step_bits / 8, pitch_bytes, count};
}

// Fills `target` with bytes [offset, ...) of the rows laid end to end.
void read_rows(const SourceFile& file, const Rows& rows, std::uint64_t offset, std::span<std::byte> target) {
  while (!target.empty()) {
    const std::uint64_t row = offset / rows.row_bytes;
    const std::uint64_t column = offset % rows.row_bytes;
    const std::uint64_t size = std::min<std::uint64_t>(rows.row_bytes - column, target.size());
    file.read(rows.offset + row * rows.pitch_bytes + column, target.first(size));
    offset += size;
    target = target.subspan(size);
  }
}

class Check {
 public:
  Check(Loader& loader, const CheckSubject& subject, const std::function<void(const Progress&)>& progress)
      : loader_(loader),
        subject_(subject),
        progress_(progress),
        expected_(chunk_bytes),
        actual_(chunk_bytes) {
    for (const Tensor& tensor : subject.tensors) planned_bytes_ += tensor.size_bytes;
  }

  CheckResult run() {
    for (const Tensor& tensor : subject_.tensors) {
      if (!seen_.insert(tensor.name).second) throw mismatch(tensor, "it was handed out twice");
      check_tensor(tensor);
    }
    return {subject_.tensors.size(), checked_bytes_, seconds()};
  }

 private:
  void check_tensor(const Tensor& tensor) {
    const auto index = subject_.checkpoint.find(tensor.name);
    if (!index) throw mismatch(tensor, "the checkpoint has no such tensor");
    const TensorInfo info = subject_.checkpoint.tensor(*index);
    const auto slice = subject_.slices.find(tensor.name);
    const Rows rows =
        rows_of(info, slice == subject_.slices.end() ? std::nullopt : std::optional(slice->second));
    if (tensor.size_bytes != rows.size_bytes() || tensor.dtype != info.dtype) {
      throw mismatch(tensor,
                     fmt::format("{} bytes of {} came, the file has {} of {}", tensor.size_bytes,
                                 dtype_name(tensor.dtype), rows.size_bytes(), dtype_name(info.dtype)));
    }
    const std::string& path = subject_.checkpoint.files()[info.file].path;
    if (!file_ || file_->path() != path) file_.emplace(path);
    for (std::uint64_t offset = 0; offset < tensor.size_bytes; offset += chunk_bytes) {
      compare_chunk(tensor, rows, offset);
    }
  }

  void compare_chunk(const Tensor& tensor, const Rows& rows, std::uint64_t offset) {
    const std::uint64_t size = std::min(chunk_bytes, tensor.size_bytes - offset);
    const std::span expected = std::span(expected_).first(size);
    const std::span actual = std::span(actual_).first(size);
    read_rows(*file_, rows, offset, expected);
    // A copy that silently moves nothing must not meet the right bytes of the last chunk.
    std::ranges::transform(expected, actual.begin(), [](std::byte byte) { return ~byte; });
    loader_.copy_to_host(tensor, offset, actual);
    if (std::memcmp(expected.data(), actual.data(), size) != 0) {
      const auto place = std::ranges::mismatch(expected, actual).in1 - expected.begin();
      const auto at = static_cast<std::size_t>(place);
      const std::uint64_t byte = offset + at;
      const std::uint64_t in_file =
          rows.offset + byte / rows.row_bytes * rows.pitch_bytes + byte % rows.row_bytes;
      throw mismatch(
          tensor,
          fmt::format("byte {} is 0x{:02x}, and 0x{:02x} at {} of {}: load it again; if it "
                      "differs again, suspect memory, device or disk",
                      byte, std::to_integer<unsigned>(actual[at]), std::to_integer<unsigned>(expected[at]),
                      in_file, escape_text(file_->path(), PATH_MAX)));
    }
    checked_bytes_ += size;
    progress_({checked_bytes_, planned_bytes_, seconds()});
  }

  [[nodiscard]] static Error mismatch(const Tensor& tensor, const std::string& what) {
    return {ErrorCode::corrupt_checkpoint,
            fmt::format("check: tensor {}: {}", escape_text(tensor.name), what)};
  }

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  Loader& loader_;
  const CheckSubject& subject_;
  const std::function<void(const Progress&)>& progress_;
  std::vector<std::byte> expected_;
  std::vector<std::byte> actual_;
  std::optional<SourceFile> file_;
  std::unordered_set<std::string> seen_;
  std::uint64_t planned_bytes_ = 0;
  std::uint64_t checked_bytes_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

CheckResult check_tensors(Loader& loader, const CheckSubject& subject,
                          const std::function<void(const Progress&)>& progress) {
  return Check(loader, subject, progress).run();
}

}  // namespace inrush::engine
