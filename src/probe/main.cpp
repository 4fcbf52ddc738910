// inrush-probe: measures one path from one file into one device and writes one line of JSON. Started by
// Loader::probe() as a process of its own, since the drivers of some paths hang or crash.
//
// usage: inrush-probe FILE PATH DEVICE BYTES CUDA_LIBRARY CUFILE_LIBRARY
#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>
#include <inrush/loader.hpp>
#include <inrush/report.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace inrush::engine {

namespace {

// The first load opens the device and the libraries, and is not timed.
constexpr std::uint64_t first_bytes_max = 16ULL << 20;
// Large enough that pieces are never cut short by their tensor; small enough for any allocator.
constexpr std::uint64_t tensor_bytes_max = 64ULL << 20;
// Of a read by O_DIRECT: enough on every file system that we know.
constexpr std::uint64_t block_bytes = 4096;
constexpr std::uint64_t chunk_bytes = 8ULL << 20;

struct Words {
  std::string file;
  std::string path;
  std::string device;
  std::uint64_t bytes = 0;
  std::string cuda_library;
  std::string cufile_library;
};

struct Range {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// One line of output. The fields of ProbeCandidate, and two for its reader.
struct Result {
  bool usable = false;
  bool wrong_bytes = false;
  std::string reason;
  std::string way;
  double bytes_per_second = 0;
  double cpu_seconds_per_gb = 0;
  std::uint64_t timed_bytes = 0;
  std::string error_code;
};

std::string error_text(int error) { return std::generic_category().message(error); }

Error file_failure(const std::string& file, const std::string& what, int error) {
  return {error == ENOENT || error == EACCES ? ErrorCode::not_found : ErrorCode::storage_failed,
          fmt::format("{}: {}: {}", escape_text(file, PATH_MAX), what, error_text(error)), error};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

// The file as plain reads see it, past the page cache where that can be.
class SourceFile {
 public:
  explicit SourceFile(const std::string& path)
      : path_(path),
        plain_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
        direct_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)),
        memory_(static_cast<std::byte*>(std::aligned_alloc(block_bytes, chunk_bytes + 2 * block_bytes))) {
    if (plain_.get() < 0) throw file_failure(path, "open", errno);
    if (memory_ == nullptr) throw std::bad_alloc();
  }

  [[nodiscard]] std::uint64_t size_bytes() const {
    struct stat status = {};
    if (::fstat(plain_.get(), &status) != 0) throw file_failure(path_, "fstat", errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  // Takes the range out of the page cache. What others have mapped stays there.
  void drop(const Range& range) const {
    ::fdatasync(plain_.get());  // pages that are not written yet stay too
    ::posix_fadvise(plain_.get(), static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes),
                    POSIX_FADV_DONTNEED);
  }

  // At most chunk_bytes; valid until the next call.
  std::span<const std::byte> read(const Range& range) {
    const std::uint64_t start = range.offset / block_bytes * block_bytes;
    const std::uint64_t head = range.offset - start;
    const std::uint64_t wanted = head + range.size_bytes;
    const std::uint64_t rounded = (wanted + block_bytes - 1) / block_bytes * block_bytes;
    std::uint64_t filled = 0;
    int fd = direct_.get() >= 0 ? direct_.get() : plain_.get();
    while (filled < wanted) {
      const ssize_t count =
          ::pread(fd, memory_.get() + filled, rounded - filled, static_cast<off_t>(start + filled));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EINVAL && fd != plain_.get()) {
        fd = plain_.get();  // larger blocks, or a short read that ended inside of one
        continue;
      }
      if (count < 0) throw file_failure(path_, "pread", errno);
      if (count == 0)
        throw Error(ErrorCode::corrupt_checkpoint,
                    fmt::format("{}: ends at byte {}", escape_text(path_, PATH_MAX), start + filled));
      filled += static_cast<std::uint64_t>(count);
    }
    return std::span(memory_.get() + head, range.size_bytes);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::string path_;
  Descriptor plain_;
  Descriptor direct_;
  std::unique_ptr<std::byte, Free> memory_;
};

double cpu_seconds() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string joined_ways(const Report& report) {
  std::vector<std::string> ways;
  for (const PathBytes& way : report.bytes_by_path) ways.push_back(way.path);
  return fmt::format("{}", fmt::join(ways, " + "));
}

// What the load has to say of how it went.
std::string remarks(const Report& report) {
  std::vector<std::string> texts = report.notes;
  for (const Fallback& fallback : report.fallbacks)
    texts.push_back(fmt::format("without {}: {}", fallback.what, fallback.reason));
  for (const PathBytes& way : report.bytes_by_path) {
    if (way.path.starts_with("page cache"))
      texts.push_back(
          fmt::format("{} of {} could not be taken out of the page cache: not the storage's speed",
                      format_bytes(way.bytes), format_bytes(report.loaded_bytes)));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

class Measuring {
 public:
  explicit Measuring(const Words& words)
      : words_(words), source_(words.file), loader_(loader_options(words)) {
    request_.device = parse_device(words.device);
    request_.page_cache = PageCachePolicy::bypass;
    request_.path = words.path == "gds"             ? PathPreference::gds
                    : words.path == "cufile-compat" ? PathPreference::cufile_compat
                                                    : PathPreference::staged;
  }

  Result run() {
    const std::uint64_t bytes = std::min(source_.size_bytes(), words_.bytes);
    if (bytes == 0) throw Error(ErrorCode::invalid_request, "there are no bytes to read");
    // Of a small file one half is left to be timed.
    const std::uint64_t first_bytes = std::min(first_bytes_max, (bytes + 1) / 2);
    const Range rest = bytes > first_bytes ? Range{first_bytes, bytes - first_bytes} : Range{0, bytes};
    // The second tensor begins at an odd byte, as tensors may.
    const std::uint64_t odd = first_bytes / 2 | 1;
    std::vector<Range> first = {{0, std::min(odd, first_bytes)}};
    if (odd < first_bytes) first.push_back({odd, first_bytes - odd});
    if (!load_and_compare(first)) return result_;
    std::vector<Range> timed;
    for (std::uint64_t done = 0; done < rest.size_bytes; done += tensor_bytes_max)
      timed.push_back({rest.offset + done, std::min(tensor_bytes_max, rest.size_bytes - done)});
    const bool is_right = load_and_compare(timed);
    source_.drop({0, bytes});
    if (!is_right) return result_;
    result_.usable = true;
    return result_;
  }

 private:
  static LoaderOptions loader_options(const Words& words) {
    LoaderOptions options;
    if (!words.cuda_library.empty()) options.cuda_library = words.cuda_library;
    options.cufile_library = words.cufile_library;
    // Only for cuFile's log: Loader::probe() gives us a folder of our own, and removes it.
    std::error_code error;
    options.state_folder = std::filesystem::current_path(error).string();
    return options;
  }

  Checkpoint describe(const std::vector<Range>& ranges) const {
    std::vector<TensorPlace> places;
    for (const Range& range : ranges) {
      places.push_back({.name = std::to_string(range.offset),
                        .dtype = DType::u8,
                        .shape = {range.size_bytes},
                        .file = 0,
                        .offset = range.offset});
    }
    return describe_checkpoint(words_.file, std::span(&words_.file, 1), std::move(places));
  }

  // Sets the figures of result_; false where the path cannot be used, with the reason there.
  bool load_and_compare(const std::vector<Range>& ranges) {
    const Checkpoint checkpoint = describe(ranges);
    for (const Range& range : ranges) source_.drop(range);
    const double cpu_before = cpu_seconds();
    const std::unique_ptr<Load> load = loader_.start(checkpoint, request_);
    std::vector<Tensor> tensors;
    while (std::optional<Tensor> tensor = load->next()) tensors.push_back(std::move(*tensor));
    load->close();
    const double cpu_used = cpu_seconds() - cpu_before;
    const Report report = load->report();
    result_.way = joined_ways(report);
    result_.timed_bytes = report.loaded_bytes;
    result_.bytes_per_second = report.bytes_per_second;
    result_.cpu_seconds_per_gb = cpu_used / (static_cast<double>(report.loaded_bytes) * 1e-9);
    for (const Tensor& tensor : tensors) {
      if (!is_equal(tensor)) return false;
    }
    return judge(report);
  }

  // What happened decides, not what was asked for.
  bool judge(const Report& report) {
    std::string seen = remarks(report);
    const auto is_cufile = [](const PathBytes& way) { return way.path.find("cuFile") != std::string::npos; };
    const bool is_mixed = std::ranges::any_of(report.bytes_by_path, is_cufile) &&
                          !std::ranges::all_of(report.bytes_by_path, is_cufile);
    if (words_.path != "staged" && is_mixed) {
      result_.reason =
          fmt::format("only a part came by cuFile ({}){}", result_.way, seen.empty() ? "" : "; " + seen);
      return false;
    }
    if (words_.path == "gds" && !report.path.starts_with("gds")) {
      result_.reason = fmt::format("the bytes did not go straight: the load reports \"{}\" ({}){}",
                                   report.path, result_.way, seen.empty() ? "" : "; " + seen);
      return false;
    }
    if (words_.path == "cufile-compat" && report.path == "staged") {
      result_.reason =
          fmt::format("cuFile read nothing ({}){}", result_.way, seen.empty() ? "" : "; " + seen);
      return false;
    }
    result_.reason = report.path == words_.path
                         ? "every byte equal"
                         : fmt::format("every byte equal; the load reports \"{}\"", report.path);
    if (!seen.empty()) result_.reason += "; " + seen;
    return true;
  }

  bool is_equal(const Tensor& tensor) {
    const std::uint64_t start = std::stoull(std::string(tensor.name));
    std::vector<std::byte> actual(std::min(chunk_bytes, tensor.size_bytes));
    for (std::uint64_t offset = 0; offset < tensor.size_bytes; offset += chunk_bytes) {
      const std::uint64_t size_bytes = std::min(chunk_bytes, tensor.size_bytes - offset);
      const std::span<const std::byte> expected = source_.read({start + offset, size_bytes});
      const std::span<std::byte> copied = std::span(actual).first(size_bytes);
      // A copy that silently moves nothing must not meet the right bytes.
      std::transform(expected.begin(), expected.end(), copied.begin(), [](std::byte byte) { return ~byte; });
      loader_.copy_to_host(tensor, offset, copied);
      if (std::memcmp(expected.data(), copied.data(), size_bytes) == 0) continue;
      const auto at = static_cast<std::size_t>(
          std::mismatch(expected.begin(), expected.end(), copied.begin()).first - expected.begin());
      result_.wrong_bytes = true;
      result_.reason = fmt::format(
          "WRONG BYTES at offset {} of the file: 0x{:02x} on the device, 0x{:02x} in the file ({})",
          start + offset + at, std::to_integer<unsigned>(copied[at]), std::to_integer<unsigned>(expected[at]),
          result_.way);
      return false;
    }
    return true;
  }

  const Words& words_;
  SourceFile source_;
  Loader loader_;
  LoadRequest request_;
  Result result_;
};

Result failed(ErrorCode code, const std::string& reason) {
  Result result;
  result.reason = reason;
  result.error_code = error_code_name(code);
  return result;
}

Result measure(const Words& words) {
  try {
    return Measuring(words).run();
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::out_of_memory, "out of host memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::internal, error.what());
  }
}

std::string line_of(const Words& words, const Result& result) {
  // Only what was used to the end has figures.
  const boost::json::object object = {{"path", words.path},
                                      {"usable", result.usable},
                                      {"wrong_bytes", result.wrong_bytes},
                                      {"reason", result.reason},
                                      {"way", result.way},
                                      {"bytes_per_second", result.usable ? result.bytes_per_second : 0.0},
                                      {"cpu_seconds_per_gb", result.usable ? result.cpu_seconds_per_gb : 0.0},
                                      {"timed_bytes", result.timed_bytes},
                                      {"error_code", result.error_code}};
  return boost::json::serialize(object) + "\n";
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

int run(std::span<char*> arguments) {
  constexpr int exit_failure = 1;
  constexpr int exit_usage = 2;
  if (arguments.size() != 7) {
    write_all(STDERR_FILENO,
              "inrush-probe is a part of inrush: run `inrush probe PATH`\n"
              "usage: inrush-probe FILE PATH DEVICE BYTES CUDA_LIBRARY CUFILE_LIBRARY\n");
    return exit_usage;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);       // whoever asked is gone: nobody would read the answer
  ::syscall(SYS_close_range, 3, ~0U, 0);    // the host program's files are no business of ours
  const int answer = ::dup(STDOUT_FILENO);  // libraries were seen to print
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  const Words words{arguments[1], arguments[2], arguments[3], std::strtoull(arguments[4], nullptr, 10),
                    arguments[5], arguments[6]};
  return write_all(answer, line_of(words, measure(words))) ? 0 : exit_failure;
}

}  // namespace

}  // namespace inrush::engine

int main(int argument_count, char** arguments) {
  return inrush::engine::run(std::span(arguments, static_cast<std::size_t>(argument_count)));
}
