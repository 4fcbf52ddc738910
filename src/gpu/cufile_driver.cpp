#include "gpu/cufile_driver.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace inrush::engine {

namespace {

// cuFileGetVersion: 1000 * major + 10 * minor.
constexpr int version_with_parameters = 1140;
// Reads by the way that they took are counted from this level on.
constexpr int counting_level = 3;

std::string status_text(const CudaTable& cuda, const CufileStatus& status) {
  std::string text = cufile_error_text(status.code);
  if (status.code == cufile_cuda_driver_error) text += ": " + cuda_result_text(cuda, status.cuda);
  const Explanation* const known = explain_cufile_error(status.code);
  return known == nullptr ? text : fmt::format("{}; {}", text, known->remedy);
}

Error unfit(const std::string& message) { return {ErrorCode::environment_unfit, message}; }

// A driver open that failed was seen to close descriptor 0, which is the caller's standard input or some file
// of its. Keeps a second descriptor of it meanwhile and puts it back.
class DescriptorZeroKept {
 public:
  DescriptorZeroKept() : kept_(::fcntl(0, F_DUPFD_CLOEXEC, 3)), flags_(::fcntl(0, F_GETFD)) {}
  ~DescriptorZeroKept() {
    if (!kept_.is_open() || ::fcntl(0, F_GETFD) >= 0 || errno != EBADF) return;
    ::dup3(kept_.get(), 0, (flags_ & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  }
  DescriptorZeroKept(const DescriptorZeroKept&) = delete;
  DescriptorZeroKept& operator=(const DescriptorZeroKept&) = delete;

 private:
  const UniqueFd kept_;
  const int flags_;
};

// A log in the current folder, where libcufile 1.15.1 to 1.20.0 put it whatever its parameters say (seen on
// an H200 machine and without a GPU). Where there was none before, one that is ours goes again; what the
// library writes later goes nowhere.
class CurrentFolderKept {
 public:
  CurrentFolderKept()
      : folder_(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)),
        had_log_(::faccessat(folder_.get(), log_name, F_OK, 0) == 0),
        start_(std::chrono::system_clock::now()) {}
  ~CurrentFolderKept() {
    struct stat log {};
    if (had_log_ || ::fstatat(folder_.get(), log_name, &log, AT_SYMLINK_NOFOLLOW) != 0) return;
    const auto born = std::chrono::system_clock::from_time_t(log.st_ctime + 1);  // whole seconds
    if (log.st_uid == ::geteuid() && born >= start_) ::unlinkat(folder_.get(), log_name, 0);
  }
  CurrentFolderKept(const CurrentFolderKept&) = delete;
  CurrentFolderKept& operator=(const CurrentFolderKept&) = delete;

 private:
  static constexpr const char* log_name = "cufile.log";
  const UniqueFd folder_;
  const bool had_log_;
  const std::chrono::system_clock::time_point start_;
};

template <typename Counters>
std::optional<CufileCounts> counts_of(const CufileTable& table, const std::string& uuid) {
  const auto counters = std::make_unique<Counters>();
  if (table.get_stats_3(counters.get()).code != 0) return std::nullopt;
  const auto gpus =
      std::span(counters->gpus).first(std::min<std::size_t>(counters->gpu_count, counters->gpus.size()));
  const auto is_ours = [&](const CufileGpuCounters& gpu) {
    std::string text;
    for (const char byte : gpu.uuid) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text == uuid;
  };
  // A MIG instance may be counted under its GPU: then all GPUs of the process stand for it.
  const bool is_known = std::ranges::any_of(gpus, is_ours);
  CufileCounts counts;
  for (const CufileGpuCounters& gpu : gpus) {
    if (is_known && !is_ours(gpu)) continue;
    counts.p2p_reads += gpu.p2p_reads;
    counts.nvfs_reads += gpu.nvfs_reads;
    counts.posix_reads += gpu.posix_reads;
  }
  return counts;
}

// "GPU-f4ce..-.." -> the 32 digits.
std::string uuid_digits(const std::string& uuid) {
  std::string digits;
  for (const char letter : uuid.substr(std::min<std::size_t>(uuid.find('-'), uuid.size()))) {
    if (letter != '-') digits += letter;
  }
  return digits;
}

}  // namespace

CufileDriver::CufileDriver(const CufileOptions& options, std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)), library_(open_cufile_library(options.library)) {
  facts_.mode = options.mode;
  facts_.library = library_.path;
  const CudaBinding binding(*context_);  // the driver of cuFile asks for the current context
  int version = 0;
  if (library_.table.get_version(&version).code != 0) version = 0;
  facts_.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  facts_.was_open = library_.table.use_count() > 0;
  if (!facts_.was_open) set_parameters(options);
  open_driver();
  read_facts();
  require_strictness();
  start_counting();
}

CufileDriver::~CufileDriver() { close(); }

// Before the first open only: they are refused afterwards. Never by the environment, which is the host's.
void CufileDriver::set_parameters(const CufileOptions& options) {
  const CufileTable& table = library_.table;
  if (table.set_parameter_bool == nullptr || table.set_parameter_string == nullptr) {
    throw unfit(
        fmt::format("{} is version {}: before {}.{} a program cannot forbid compat mode; install a "
                    "newer nvidia-cufile",
                    printable(facts_.library), facts_.version, version_with_parameters / 1000,
                    version_with_parameters % 1000 / 10));
  }
  const bool is_direct = options.mode == CufileMode::direct;
  if (const CufileStatus status = table.set_parameter_bool(cufile_bool_allow_compat, is_direct ? 0 : 1);
      status.code != 0) {
    throw unfit("cuFileSetParameterBool of allow_compat_mode: " + status_text(context_->table(), status));
  }
  // What is refused here shows in what the driver says once it is open.
  static_cast<void>(table.set_parameter_bool(cufile_bool_use_p2pdma, is_direct ? 1 : 0));
  if (!options.log_folder.empty())
    static_cast<void>(table.set_parameter_string(cufile_string_log_folder, options.log_folder.c_str()));
  if (table.set_stats_level != nullptr) static_cast<void>(table.set_stats_level(counting_level));
}

void CufileDriver::open_driver() const {
  const DescriptorZeroKept kept;
  const CurrentFolderKept clean;
  const CufileStatus status = library_.table.driver_open();
  if (status.code == 0) return;
  // Final: a failed open forgets the parameters, and the next call of any kind would open with compat mode
  // allowed. So none follows.
  throw unfit(fmt::format("cuFileDriverOpen of {} ({}), {}: {}", printable(facts_.library), facts_.version,
                          facts_.mode == CufileMode::direct ? "compat mode forbidden" : "compat mode allowed",
                          status_text(context_->table(), status)));
}

void CufileDriver::read_facts() {
  CufileDriverProperties properties{};
  if (library_.table.driver_get_properties(&properties).code != 0) return;
  allows_compat_ = (properties.control_flags & cufile_control_compat) != 0;
  facts_.is_strict = (properties.control_flags & cufile_control_posix) == 0;
}

// Another opening in this process (a Loader of another device) may have set the parameters anew meanwhile,
// and one that failed has forgotten them.
void CufileDriver::require_strictness() const {
  if (facts_.mode != CufileMode::direct || facts_.was_open || !allows_compat_) return;
  close();
  throw unfit(
      fmt::format("{} ({}) was told to forbid compat mode and says once open that it allows it; another "
                  "part of this process set it otherwise: try again",
                  printable(facts_.library), facts_.version));
}

void CufileDriver::start_counting() {
  const CufileTable& table = library_.table;
  if (table.set_stats_level == nullptr || table.get_stats_level == nullptr || table.stats_start == nullptr ||
      table.get_stats_3 == nullptr)
    return;
  int level = 0;
  if (table.get_stats_level(&level).code != 0) return;
  if (level < counting_level && table.set_stats_level(counting_level).code != 0) return;
  counts_reads_ = table.stats_start().code == 0;
}

void CufileDriver::close() const noexcept {
  // Reference counted: the host's own open, if there is one, stays.
  context_->release([this](const CudaTable&) { static_cast<void>(library_.table.driver_close()); });
}

std::optional<CufileCounts> CufileDriver::counts() const {
  if (!counts_reads_) return std::nullopt;
  const CudaBinding binding(*context_);
  const std::string uuid = uuid_digits(context_->device().uuid);
  return library_.table.readv != nullptr ? counts_of<CufileCounters19>(library_.table, uuid)
                                         : counts_of<CufileCounters15>(library_.table, uuid);
}

std::shared_ptr<void> CufileDriver::register_memory(std::span<std::byte> memory) const {
  const CudaBinding binding(*context_);
  const CufileStatus status = library_.table.buf_register(memory.data(), memory.size(), 0);
  if (status.code != 0) {
    throw unfit(fmt::format("cuFileBufRegister of {} on {}: {}", bytes_text(memory.size()),
                            device_name(context_->device()), status_text(context_->table(), status)));
  }
  return {memory.data(), [driver = shared_from_this()](std::byte* start) noexcept {
            driver->context_->release(
                [&](const CudaTable&) { static_cast<void>(driver->library_.table.buf_deregister(start)); });
          }};
}

CufileFile::CufileFile(std::shared_ptr<const CufileDriver> driver, int descriptor)
    : driver_(std::move(driver)) {
  const CudaBinding binding(*driver_->context_);
  CufileDescriptor file{};
  file.type = cufile_handle_fd;
  file.handle.fd = descriptor;
  const CufileStatus status = driver_->library_.table.handle_register(&handle_, &file);
  if (status.code != 0)
    throw unfit("cuFileHandleRegister: " + status_text(driver_->context_->table(), status));
}

CufileFile::~CufileFile() {
  driver_->context_->release(
      [this](const CudaTable&) { driver_->library_.table.handle_deregister(handle_); });
}

CufileTransfer CufileFile::read(std::uint64_t file_offset, const CufileSpan& target) const noexcept try {
  const CudaBinding binding(*driver_->context_);
  driver_->issued_reads_.fetch_add(1);
  errno = 0;
  const ssize_t result =
      driver_->library_.table.read(handle_, target.registered, target.size_bytes,
                                   static_cast<off_t>(file_offset), static_cast<off_t>(target.offset));
  return decode_cufile_transfer(result, errno, target.size_bytes);
} catch (const Error&) {  // the context cannot be bound: the device is gone
  return {0, cufile_invalid_context};
}

CufileTransfer CufileFile::write(std::uint64_t file_offset, const CufileSpan& source) const noexcept try {
  const CudaBinding binding(*driver_->context_);
  errno = 0;
  const ssize_t result =
      driver_->library_.table.write(handle_, source.registered, source.size_bytes,
                                    static_cast<off_t>(file_offset), static_cast<off_t>(source.offset));
  return decode_cufile_transfer(result, errno, source.size_bytes);
} catch (const Error&) {
  return {0, cufile_invalid_context};
}

}  // namespace inrush::engine
