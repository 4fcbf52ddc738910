// The Loader: opens devices when they are asked for, keeps staging between loads, and starts loads.
#include <inrush/loader.hpp>

#include "base/text.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "loader/host_facts.hpp"
#include "loader/load_impl.hpp"
#include "loader/staging_pool.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace inrush::inline v0 {

using namespace engine;

namespace {

LogFunction one_at_a_time(LogFunction log) {
  if (!log) return log;
  return [log = std::move(log), mutex = std::make_shared<std::mutex>()](LogLevel level,
                                                                        std::string_view message) {
    const std::lock_guard lock(*mutex);
    log(level, message);
  };
}

// The kernel grants more memory than there is, and kills somebody once it is touched.
void require_host_memory(const Plan& plan, const LoadRequest& request, const Machine& facts) {
  const std::uint64_t held_bytes = request.window_bytes_max == 0
                                       ? plan.loaded_bytes
                                       : std::min(plan.loaded_bytes, request.window_bytes_max);
  if (held_bytes <= facts.host_free_bytes) return;
  throw Error(
      ErrorCode::out_of_memory,
      fmt::format("the tensors take {} of host memory and {} are free (least of the host and its cgroups); "
                  "load fewer tensors, take them through a window, or load to a GPU",
                  bytes_text(held_bytes), bytes_text(facts.host_free_bytes)));
}

}  // namespace

class Loader::Impl {
 public:
  explicit Impl(LoaderOptions options)
      : options_(std::move(options)),
        pool_(std::make_shared<StagingPool>(options_.staging_bytes_max)),
        log_(one_at_a_time(options_.log)) {}

  std::vector<Device> devices();
  Machine machine(const Device& device);
  std::unique_ptr<Load> start(const Checkpoint& checkpoint, const LoadRequest& request);
  void require_own_process() const;
  std::shared_ptr<Gpu> gpu_of(const Device& device);
  void release_idle() { pool_->release_idle(); }
  [[nodiscard]] bool is_own_process() const { return ::getpid() == pid_; }

 private:
  std::shared_ptr<const CudaDriver> driver_locked();

  const pid_t pid_ = ::getpid();
  const LoaderOptions options_;
  const std::shared_ptr<const Store> store_ = std::make_shared<LocalStore>();
  const std::shared_ptr<StagingPool> pool_;
  const LogFunction log_;
  std::mutex mutex_;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<Device, std::shared_ptr<Gpu>> gpus_;
};

std::shared_ptr<const CudaDriver> Loader::Impl::driver_locked() {
  if (driver_ == nullptr) driver_ = CudaDriver::open(options_.cuda_library);
  return driver_;
}

std::vector<Device> Loader::Impl::devices() {
  const std::lock_guard lock(mutex_);
  std::vector<Device> devices;
  try {
    devices = driver_locked()->devices();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::environment_unfit) throw;  // no driver or no GPU: the CPU is left
  }
  devices.push_back({});
  return devices;
}

std::shared_ptr<Gpu> Loader::Impl::gpu_of(const Device& device) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Gpu>& gpu = gpus_[device];
  if (gpu != nullptr) return gpu;
  try {
    gpu = device.kind == DeviceKind::cpu ? open_host_gpu() : open_cuda_gpu(driver_locked(), device);
  } catch (const Error& error) {
    throw error.code() == ErrorCode::environment_unfit ? error.within(device_name(device)) : error;
  }
  return gpu;
}

Machine Loader::Impl::machine(const Device& device) {
  const std::shared_ptr<Gpu> gpu = gpu_of(device);
  const HostFacts host = read_host_facts();
  const std::string name = device_name(gpu->device());
  Machine machine;
  machine.devices = {gpu->device()};
  machine.cpu_count = host.cpu_count;
  machine.loading_process_count = options_.loading_process_count;
  machine.host_free_bytes = host.free_bytes;
  machine.staging_bytes_max = pool_->available_bytes();
  machine.reader_count_max = options_.reader_count_max;
  machine.piece_bytes_max = options_.piece_bytes_max;
  machine.paths = {
      {.name = "staged",
       .usable = true,
       .reason = gpu->is_host() ? "storage -> host memory" : "storage -> pinned host ring -> " + name},
      {.name = "gds", .usable = false, .reason = "not built: this version has no GPUDirect Storage path"}};
  return machine;
}

std::unique_ptr<Load> Loader::Impl::start(const Checkpoint& checkpoint, const LoadRequest& request) {
  const Clock::time_point begin = Clock::now();
  const std::shared_ptr<Gpu> gpu = gpu_of(request.device);
  LoadRequest bound = request;
  bound.device = gpu->device();  // with its UUID, as the plan knows it
  const Machine facts = machine(bound.device);
  Plan plan = make_plan(checkpoint, bound, facts);
  if (gpu->is_host() && !request.allocate) require_host_memory(plan, request, facts);
  auto load = std::make_unique<LoadImpl>(LoadParts{.checkpoint = checkpoint,
                                                   .request = std::move(bound),
                                                   .plan = std::move(plan),
                                                   .gpu = gpu,
                                                   .store = store_,
                                                   .pool = pool_,
                                                   .io_uring = options_.io_uring,
                                                   .log = log_,
                                                   .start = begin,
                                                   .plan_seconds = seconds_between(begin, Clock::now())});
  load->begin();
  return load;
}

void Loader::Impl::require_own_process() const {
  if (!is_own_process()) {
    throw Error(ErrorCode::invalid_request,
                "this Loader belongs to the parent process; a forked child needs a Loader of its own "
                "(with Python's multiprocessing: use spawn)");
  }
}

Loader::Loader(LoaderOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Loader::~Loader() {
  // In a forked child the threads exist only in the parent and the driver may not be touched: left to the end
  // of the process.
  if (!impl_->is_own_process()) static_cast<void>(impl_.release());
}

Machine Loader::machine(const Device& device) {
  impl_->require_own_process();
  return impl_->machine(device);
}

std::vector<Device> Loader::devices() {
  impl_->require_own_process();
  return impl_->devices();
}

std::unique_ptr<Load> Loader::start(const Checkpoint& checkpoint, const LoadRequest& request) {
  impl_->require_own_process();
  try {
    return impl_->start(checkpoint, request);
  } catch (const Error& error) {
    throw error.within("load " + engine::printable(checkpoint.path()));
  }
}

void Loader::copy_to_host(const Tensor& tensor, std::uint64_t offset, std::span<std::byte> target) {
  impl_->require_own_process();
  if (offset > tensor.size_bytes || target.size() > tensor.size_bytes - offset) {
    throw Error(ErrorCode::invalid_request, "copy_to_host: the range is outside the tensor");
  }
  if (target.empty()) return;
  impl_->gpu_of(tensor.device)->copy_to_host(static_cast<const std::byte*>(tensor.data) + offset, target);
}

void Loader::release_idle() {
  impl_->require_own_process();
  impl_->release_idle();
}

}  // namespace inrush::inline v0
