// The way in. A Loader owns what is dear to set up (driver, ring, pinned memory, reader threads) and is meant
// to be kept; a Load is one load in progress.
//
//   inrush::Loader loader;
//   inrush::Checkpoint checkpoint = inrush::discover("/models/llama");
//   auto load = loader.start(checkpoint, {.device = inrush::parse_device("cuda:0")});
//   while (std::optional<inrush::Tensor> tensor = load->next()) use(*tensor);
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>
#include <inrush/plan.hpp>
#include <inrush/report.hpp>
#include <inrush/request.hpp>
#include <inrush/tensor.hpp>
#include <inrush/version.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::inline v0 {

enum class LogLevel : std::uint8_t { debug, info, warning };
// Called from any thread, one call at a time. It must not throw.
using LogFunction = std::function<void(LogLevel level, std::string_view message)>;

enum class IoUring : std::uint8_t { automatic, off };

struct LoaderOptions {
  std::uint32_t reader_count_max = 12;
  std::uint64_t piece_bytes_max = 4ULL << 20;
  // Host memory for all loads of this Loader together. Windows over the page cache, up to 96 MiB of a load
  // with one or two CPUs, are not memory of the process and count apart: Report::window_peak_bytes.
  std::uint64_t staging_bytes_max = 512ULL << 20;
  std::uint32_t loading_process_count = 1;  // processes of this node that load at the same time
  IoUring io_uring = IoUring::automatic;
  std::string cuda_library =
      "libcuda.so.1";  // what dlopen is asked for; opened when a GPU is first asked for
  // Path of a libcufile.so.0. Empty: the one that the process has loaded, a wheel's, the system's.
  std::string cufile_library = {};
  // Where results of probe() are kept and cuFile writes its log. Empty: results are not kept, and the log
  // goes to the folder for temporary files.
  std::string state_folder = {};
  LogFunction log = {};  // none: silent
};

// One setting as `inrush env` shows it.
struct Setting {
  std::string name;
  std::string value;
  std::string source;  // "default", "environment INRUSH_READERS", "file /etc/inrush/config.json"
  std::string help;
};

// LoaderOptions as the environment (INRUSH_*) and the configuration file set them. Throws invalid_request for
// a value or a key that is not understood, naming where it stands.
[[nodiscard]] INRUSH_API LoaderOptions options_from_environment();
[[nodiscard]] INRUSH_API std::vector<Setting> settings_from_environment();
// "8388608", "8MiB", "8M" (powers of 1024) or "8MB" (powers of 1000), in any case. Pure. Throws
// invalid_request.
[[nodiscard]] INRUSH_API std::uint64_t parse_bytes(std::string_view spelling);

class Loader;

struct Progress {
  std::uint64_t loaded_bytes = 0;
  std::uint64_t planned_bytes = 0;
  double seconds = 0;  // since start()
};

// Where a take() ends although more has arrived; it has at least one tensor.
struct TakeLimits {
  std::uint64_t bytes_max = UINT64_MAX;  // reached or passed by the last tensor
  std::size_t count_max = SIZE_MAX;
};

// Destroying it cancels, drains and frees. next(), take() and get() are for one consumer thread; the rest may
// be called from any.
class INRUSH_API Load {
 public:
  virtual ~Load() = default;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // The next complete tensor in order of arrival; nothing when all were handed out. Blocks.
  // Throws what ended the load; tensors that were handed out before stay valid.
  [[nodiscard]] virtual std::optional<Tensor> next() = 0;
  // As above, but comes back with nothing once `wait_max` has passed; done() tells the two apart.
  [[nodiscard]] virtual std::optional<Tensor> next_for(std::chrono::nanoseconds wait_max) = 0;
  // As next(), but all that has arrived within `limits`; nothing when all were handed out. For many small
  // tensors: 0.1 to 0.15 us each, where next() takes 0.37.
  [[nodiscard]] virtual std::vector<Tensor> take(const TakeLimits& limits) = 0;
  // The tensor of that name, read before all others. It may exceed the window by its slab and never waits for
  // others to be taken. Throws invalid_request if it is not part of the load or was already taken.
  [[nodiscard]] virtual Tensor get(std::string_view name) = 0;
  // Whether every tensor was handed out.
  [[nodiscard]] virtual bool done() const = 0;
  // Makes the load end with `cancelled` soon. Returns at once. Safe from any thread, not from a signal
  // handler.
  virtual void cancel() noexcept = 0;
  // Cancels what is left, drains and frees, as destroying does; report() is final from then on. For the
  // consumer thread.
  virtual void close() noexcept = 0;
  [[nodiscard]] virtual Progress progress() const = 0;
  [[nodiscard]] virtual Report report() const = 0;
  [[nodiscard]] virtual const Plan& plan() const noexcept = 0;

 protected:
  Load() = default;
};

// How a stream comes to wait for a tensor that is still on its way.
enum class StreamWait : std::uint8_t {
  // wait() blocks the host until the tensor's last copy is queued; from there on the stream waits by itself.
  event,
  // wait() blocks for no tensor: the stream waits for a word in host memory that the load sets. For streams
  // of a GPU whose driver can do it, at most half as many at once as the device has queues
  // (CUDA_DEVICE_MAX_CONNECTIONS, else 8). Such a load has an end: without a deadline it gets one of ten
  // minutes. Until then the process must not free device memory, unregister host memory or load code on that
  // device, nor use another Loader there: CUDA waits for all streams then, and copies stand still
  // (docs/gds.md).
  wait_value,
};

// A load whose tensors are there at once, with memory that is filled in the background. Their bytes mean
// nothing on a stream before it waited for them. Where the load fails, or is destroyed early, each
// destination that is not complete is set to 0xFF (NaN in every floating type) before any stream goes on, and
// the error comes from the next call that can throw. For one thread at a time, cancel() for any.
class INRUSH_API AsyncLoad {
 public:
  // Cancels what is not complete and frees what the load needs, not the tensors. With StreamWait::wait_value
  // it waits until every stream has passed its waits.
  virtual ~AsyncLoad() = default;
  AsyncLoad(const AsyncLoad&) = delete;
  AsyncLoad& operator=(const AsyncLoad&) = delete;

  // All of the load, in the order in which they are read (those without bytes first).
  [[nodiscard]] virtual const std::vector<Tensor>& tensors() const noexcept = 0;
  // What is queued on `stream` (a CUstream of the load's device; null: the legacy default stream) after this
  // call sees the tensor's bytes. On the CPU it blocks until they are there. Throws invalid_request (no such
  // tensor; too many streams that wait for values) and what ended the load.
  virtual void wait(std::string_view name, void* stream) = 0;
  // The same for all tensors.
  virtual void wait_all(void* stream) = 0;
  // Blocks until every tensor is complete and the files were found unchanged. Throws what ended the load.
  virtual void finish() = 0;
  // Whether the load has ended, well or not. Never blocks.
  [[nodiscard]] virtual bool done() const = 0;
  virtual void cancel() noexcept = 0;
  // Cancels what is not complete, drains, and gives back what the load needs but the words that streams wait
  // for; report() is final from then on. finish() does so too where it returns.
  virtual void close() noexcept = 0;
  [[nodiscard]] virtual Progress progress() const = 0;
  [[nodiscard]] virtual Report report() const = 0;
  [[nodiscard]] virtual const Plan& plan() const noexcept = 0;

 protected:
  AsyncLoad() = default;
};

struct ProbeOptions {
  std::uint64_t bytes = 1ULL << 30;  // of the file, at most, for each path; also taken of the device's memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  // of each path; its child is then killed
  std::string program = {};  // inrush-probe; empty: the one that is installed with this library
  // Asked on this thread at least every 50 ms. True ends the call with `cancelled`; it may throw.
  std::function<bool()> interrupted = {};
};

// What came of one path.
struct ProbeCandidate {
  std::string path;  // "staged", "gds", "cufile-compat"
  bool usable = false;
  // The bytes on the device were not those of the file: the path must never be used on this machine.
  bool wrong_bytes = false;
  std::string reason = {};  // why it is not usable, or what was seen
  std::string way = {};     // as Report::bytes_by_path names it, from what happened; " + " between several
  double bytes_per_second = 0;
  double cpu_seconds_per_gb = 0;

  bool operator==(const ProbeCandidate&) const = default;
};

struct ProbeReport {
  std::string file;  // what was read
  Device device;
  std::uint64_t bytes = 0;  // of the file, by each path
  std::string file_system;  // "ext4, device 259:1"
  std::vector<ProbeCandidate> candidates;
  std::string chosen;  // what PathPreference::automatic takes from now on; empty: no path works
  std::string rule;    // why, with the figures
  std::string cached_in;
  std::string why_not_cached;  // where cached_in is empty
};

struct LimitOptions {
  std::chrono::nanoseconds duration = std::chrono::seconds(2);  // of each figure, roughly
  // Asked on this thread every 50 ms or so. True ends the call with `cancelled`; it may throw.
  std::function<bool()> interrupted = {};
};

// One figure of Limits.
struct Limit {
  double bytes_per_second = 0;  // 0: not measured
  std::string how = {};         // "O_DIRECT, reads of 4 MiB, 16 at once, by io_uring"
  std::string reason = {};      // why it was not measured: "O_DIRECT is refused: ..."

  bool operator==(const Limit&) const = default;
};

// What the machine gives, without a load. A cold load to a GPU cannot be faster than the least of storage and
// pinned, a warm one than the least of page_cache and pinned.
struct Limits {
  Device device;
  Limit storage;     // O_DIRECT reads, the best of several sizes and depths
  Limit page_cache;  // resident pages into host memory, by as many readers as a load would have
  Limit pinned;      // pinned host memory to the device; never measured for the CPU

  bool operator==(const Limits&) const = default;
};

// May be shared by threads; several loads at once are legal. It must outlive its Loads, not the tensors.
// A forked child that uses a Loader of its parent gets invalid_request ("use spawn").
class INRUSH_API Loader {
 public:
  explicit Loader(LoaderOptions options = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Facts of this machine; with `device`, those of that device too. Throws environment_unfit if it is absent.
  // With `path`, a file or folder, what probe() measured for its file system counts.
  [[nodiscard]] Machine machine(const Device& device, const std::string& path = {});
  // The GPUs that the process sees, in the driver's order and with their UUIDs, then the CPU. Touches the
  // driver.
  [[nodiscard]] std::vector<Device> devices();
  // The GPU of the CUDA context that is current on the calling thread (as torch and CuPy set it), else the
  // first GPU that the process sees; as in devices(). Throws environment_unfit where there is none.
  [[nodiscard]] Device current_device();
  // Opens the files, allocates on this thread, and returns while bytes move. Throws before anything is half
  // done: no target was written to.
  [[nodiscard]] std::unique_ptr<Load> start(const Checkpoint& checkpoint, const LoadRequest& request);
  // As start(), for tensors that are used before they have arrived. invalid_request for a window: all memory
  // is allocated here, and what ends the load before it is there is thrown here. environment_unfit where
  // streams cannot wait as `wait` says.
  [[nodiscard]] std::unique_ptr<AsyncLoad> load_async(const Checkpoint& checkpoint,
                                                      const LoadRequest& request,
                                                      StreamWait wait = StreamWait::event);
  // Copies bytes [offset, offset + target.size()) of a tensor to host memory. Blocks.
  void copy_to_host(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> target);
  // Measures each path from the file system of `path` (a file, or a folder, of which the largest file of its
  // checkpoint is read) into the device, and compares every byte. Each path runs in a child process, since
  // drivers of the direct ones were seen to hang and to crash. Loads use the result (LoaderOptions::
  // state_folder); they never probe. Blocks for seconds to minutes. That a path cannot be used is an answer.
  // Throws environment_unfit (no such device, no inrush-probe), not_found, invalid_request (no regular file,
  // an empty one), cancelled, and what discover() throws.
  [[nodiscard]] ProbeReport probe(const std::string& path, const Device& device,
                                  const ProbeOptions& options = {});
  // Measures what bounds a load of `checkpoint` to the device; reads up to 16 of its files, the largest. Uses
  // up to 256 MiB of memory, and leaves up to 1 GiB of the files in the page cache where there is room.
  // Blocks for a few times options.duration. Throws environment_unfit (no such device), not_found,
  // invalid_request, device_failed, cancelled; what storage or memory refuses is a Limit's reason.
  [[nodiscard]] Limits measure_limits(const Checkpoint& checkpoint, const Device& device,
                                      const LimitOptions& options = {});
  // Frees the rings and threads that no load is using.
  void release_idle();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A table for people; bytes that are wrong come first.
[[nodiscard]] INRUSH_API std::string probe_to_text(const ProbeReport& report);
[[nodiscard]] INRUSH_API std::string probe_to_json(const ProbeReport& report);
// The text of a cufile.json that allows that path and no other: cufile_compat, else GPUDirect Storage (compat
// mode forbidden, P2PDMA wanted). The library's log goes to `log_folder`. For whoever starts a process, or
// sets its own CUFILE_ENV_PATH_JSON before cuFile is opened; this library never does.
[[nodiscard]] INRUSH_API std::string cufile_configuration(PathPreference path, const std::string& log_folder);

struct WarmReport {
  std::uint64_t planned_bytes = 0;   // what the load would read
  std::uint64_t resident_bytes = 0;  // of that, found in the page cache
  std::uint64_t read_bytes = 0;      // brought there from storage
  std::uint64_t left_bytes = 0;      // left out: there was no room without pushing out pages in use by others
  double seconds = 0;
};

// Reads what a load of `request` would read (its only, select and slices count) into the page cache, in the
// order of the files, by one thread that copies nothing. Uses memory that is free, or that holds pages which
// the kernel counts as not in use; the rest of the checkpoint is left out. A load that runs meanwhile takes
// what is there from the cache; with PageCachePolicy::keep no byte comes from storage twice. One that
// bypasses the cache leaves nothing there, so that what it read directly is read here once more. Blocks.
// on_progress is called on this thread every 16 MiB, with what is resident so far as loaded_bytes. Ends early
// when request.interrupted says so, with `cancelled`; pages that came stay. Throws storage_failed,
// corrupt_checkpoint (the file ends early or is another one), not_found, invalid_request.
INRUSH_API WarmReport warm(const Checkpoint& checkpoint, const LoadRequest& request = {},
                           const std::function<void(const Progress&)>& on_progress = {});

// Bytes of the tensors that are in the page cache now, by stretches of 4 MiB: one counts where all of it is
// there. Some microseconds a stretch. Throws not_found, invalid_request, storage_failed.
[[nodiscard]] INRUSH_API std::uint64_t resident_bytes(const Checkpoint& checkpoint);

}  // namespace inrush::inline v0
