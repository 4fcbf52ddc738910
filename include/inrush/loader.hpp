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
  std::uint64_t staging_bytes_max = 512ULL << 20;  // host memory for all loads of this Loader together
  std::uint32_t loading_process_count = 1;         // processes of this node that load at the same time
  IoUring io_uring = IoUring::automatic;
  std::string cuda_library =
      "libcuda.so.1";    // what dlopen is asked for; opened when a GPU is first asked for
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

// Destroying it cancels, drains and frees. next() and get() are for one consumer thread; the rest may be
// called from any.
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
  // The tensor of that name, read before all others. It may exceed the window by its slab and never waits for
  // others to be taken. Throws invalid_request if it is not part of the load or was already taken.
  [[nodiscard]] virtual Tensor get(std::string_view name) = 0;
  // Whether every tensor was handed out.
  [[nodiscard]] virtual bool done() const = 0;
  // Makes the load end with `cancelled` soon. Returns at once. Safe from any thread, not from a signal
  // handler.
  virtual void cancel() noexcept = 0;
  [[nodiscard]] virtual Progress progress() const = 0;
  [[nodiscard]] virtual Report report() const = 0;
  [[nodiscard]] virtual const Plan& plan() const noexcept = 0;

 protected:
  Load() = default;
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
  [[nodiscard]] Machine machine(const Device& device);
  // The GPUs that the process sees, in the driver's order and with their UUIDs, then the CPU. Touches the
  // driver.
  [[nodiscard]] std::vector<Device> devices();
  // Opens the files, allocates on this thread, and returns while bytes move. Throws before anything is half
  // done.
  [[nodiscard]] std::unique_ptr<Load> start(const Checkpoint& checkpoint, const LoadRequest& request);
  // Copies bytes [offset, offset + target.size()) of a tensor to host memory. Blocks.
  void copy_to_host(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> target);
  // Frees the rings and threads that no load is using.
  void release_idle();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inrush::inline v0
