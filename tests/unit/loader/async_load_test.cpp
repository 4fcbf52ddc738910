// Loads whose tensors are used before they have arrived: what a stream sees after it waited, and what
// everybody sees where the load fails.
#include "loader/async_load.hpp"

#include "gpu/cuda_driver.hpp"
#include "gpu/cuda_table.hpp"
#include "loader_fixture.hpp"
#include "storage/local_store.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using namespace std::chrono_literals;
using engine::CuAddress;
using engine::CudaTable;
using engine::CuResult;
using tests::LoaderTest;
using tests::mib;

constexpr char poison = '\xA5';    // what the fake driver fills new memory with
constexpr char unfilled = '\xFF';  // what a load that failed leaves

// A stream of the caller's, on the second fake device, and what "kernels" on it saw: copies to memory of
// theirs.
class CallersStream {
 public:
  CallersStream()
      : table_(engine::load_cuda_table(::dlopen(INRUSH_FAKE_CUDA, RTLD_NOW | RTLD_NOLOAD), "fake")) {
    engine::CuDevice device = 0;
    engine::CuContext context = nullptr;
    EXPECT_EQ(table_.init(0), CuResult::success);
    EXPECT_EQ(table_.device_get(&device, 1), CuResult::success);
    EXPECT_EQ(table_.primary_ctx_retain(&context, device), CuResult::success);
    EXPECT_EQ(table_.ctx_push_current(context), CuResult::success);
    EXPECT_EQ(table_.stream_create(&stream_, engine::cu_stream_non_blocking), CuResult::success);
    EXPECT_EQ(table_.event_create(&event_, engine::cu_event_no_timing), CuResult::success);
  }
  ~CallersStream() {
    table_.stream_synchronize(stream_);
    for (const auto& [name, seen] : seen_) table_.mem_free(seen.address);
    table_.event_destroy(event_);
    table_.stream_destroy(stream_);
    engine::CuContext context = nullptr;
    table_.ctx_pop_current(&context);
    table_.primary_ctx_release(1);
  }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;

  [[nodiscard]] void* handle() const { return stream_; }

  // Queues what reads the tensor. The event behind it makes the fake run it at once.
  void read(const Tensor& tensor) {
    if (tensor.size_bytes == 0) return;
    Seen& seen = seen_[tensor.name];
    seen.size_bytes = tensor.size_bytes;
    if (seen.address == 0) {
      EXPECT_EQ(table_.mem_alloc(&seen.address, tensor.size_bytes), CuResult::success);
    }
    const auto source = reinterpret_cast<CuAddress>(tensor.data);
    EXPECT_EQ(table_.memcpy_dtod_async(seen.address, source, tensor.size_bytes, stream_), CuResult::success);
    EXPECT_EQ(table_.event_record(event_, stream_), CuResult::success);
  }

  // Waits for all of it. By name, what was seen.
  [[nodiscard]] TestBytes seen() {
    EXPECT_EQ(table_.stream_synchronize(stream_), CuResult::success);
    TestBytes bytes;
    for (const auto& [name, seen] : seen_) {
      bytes[name].resize(seen.size_bytes);
      EXPECT_EQ(table_.memcpy_dtoh(bytes[name].data(), seen.address, seen.size_bytes), CuResult::success);
    }
    return bytes;
  }

 private:
  struct Seen {
    CuAddress address = 0;
    std::uint64_t size_bytes = 0;
  };

  const CudaTable table_;
  engine::CuStream stream_ = nullptr;
  engine::CuEvent event_ = nullptr;
  std::map<std::string, Seen> seen_;
};

class AsyncLoadTest : public LoaderTest {
 protected:
  // One reader, 4 KiB at a time: slow enough to be met on its way.
  LoaderOptions slow() {
    LoaderOptions slow = options();
    slow.reader_count_max = 1;
    slow.piece_bytes_max = 4096;
    slow.io_uring = IoUring::off;
    return slow;
  }

  void expect_all(const TestBytes& seen) {
    std::size_t wrong = 0;
    for (const auto& [name, bytes] : seen) wrong += bytes != contents_.at(name);
    EXPECT_EQ(wrong, 0U) << "of " << seen.size();
  }

  // So slow, on the fake GPU, that no stall of this machine lets it end before a test has done its next step.
  void make_copies_slow() { cuda_->set_delay_max(3000); }
  void let_copies_go() { cuda_->set_delay_max(0); }

  // Nothing that was there before the load: right bytes, or 0xFF as a whole.
  void expect_right_or_unfilled(const TestBytes& seen) {
    for (const auto& [name, bytes] : seen) {
      if (bytes == contents_.at(name)) continue;
      ++unfilled_count_;
      EXPECT_EQ(bytes, std::string(bytes.size(), unfilled)) << name;
    }
  }

  std::uint64_t unfilled_count_ = 0;
};

class AsyncLoadOnGpuTest : public AsyncLoadTest {};

TEST_P(AsyncLoadTest, EveryTensorIsThereAtOnceAndRightAfterItsWait) {
  write();
  Loader loader(options());
  const auto load = loader.load_async(discover(folder_.path()), request());
  ASSERT_EQ(load->tensors().size(), contents_.size());
  for (const Tensor& tensor : load->tensors()) load->wait(tensor.name, nullptr);
  load->finish();
  EXPECT_TRUE(load->done());
  EXPECT_TRUE(load->report().complete);
  expect_equal(loader, load->tensors());
}

TEST_P(AsyncLoadTest, TensorsOutliveTheLoad) {
  write();
  Loader loader(options());
  std::vector<Tensor> tensors;
  {
    const auto load = loader.load_async(discover(folder_.path()), request());
    load->finish();
    tensors = load->tensors();
  }
  expect_equal(loader, tensors);
}

TEST_P(AsyncLoadTest, WhatItRefuses) {
  write();
  Loader loader(options());
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib;
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.load_async(discover(folder_.path()), bounded)); }),
            ErrorCode::invalid_request);
  const auto load = loader.load_async(discover(folder_.path()), request());
  EXPECT_EQ(code_of([&] { load->wait("absent", nullptr); }), ErrorCode::invalid_request);
  if (GetParam() == DeviceKind::cuda) return;
  EXPECT_EQ(
      code_of([&] {
        static_cast<void>(loader.load_async(discover(folder_.path()), request(), StreamWait::wait_value));
      }),
      ErrorCode::environment_unfit);
}

TEST_P(AsyncLoadTest, OneQueueOfTheDeviceRefusesStreamsThatWaitForValues) {
  write(mib);
  const Checkpoint checkpoint = discover(folder_.path());
  Loader loader(options());
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_EQ(
      code_of([&] { static_cast<void>(loader.load_async(checkpoint, request(), StreamWait::wait_value)); }),
      ErrorCode::environment_unfit);
  const auto load = loader.load_async(checkpoint, request());
  load->finish();
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_P(AsyncLoadTest, TensorsWithoutBytes) {
  contents_ = write_safetensors(folder_ / "m.safetensors", {{"none", DType::f32, {0, 3}}}, 1);
  Loader loader(options());
  const auto load = loader.load_async(discover(folder_.path()), request());
  load->wait("none", nullptr);
  load->wait_all(nullptr);
  load->finish();
  EXPECT_TRUE(load->done());
}

TEST_P(AsyncLoadTest, AnInterruptionEndsAWait) {
  write(16 * mib);
  Loader loader(slow());
  LoadRequest interruptible = request();
  std::atomic<bool> interrupted = false;
  interruptible.interrupted = [&] { return interrupted.load(); };
  const auto load = loader.load_async(discover(folder_.path()), interruptible);
  interrupted = true;
  EXPECT_EQ(code_of([&] { load->finish(); }), ErrorCode::cancelled);
}

TEST_P(AsyncLoadTest, AFailedLoadLeavesNoOldMemory) {
  write(64 * mib, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  make_copies_slow();
  Loader loader(slow());
  const auto load = loader.load_async(checkpoint, request());
  const std::string path = folder_ / "m0.safetensors";
  ASSERT_EQ(::truncate(path.c_str(), 40 << 20), 0);
  let_copies_go();
  EXPECT_EQ(code_of([&] { load->finish(); }), ErrorCode::corrupt_checkpoint);
  EXPECT_EQ(code_of([&] { load->wait_all(nullptr); }), ErrorCode::corrupt_checkpoint);
  TestBytes seen;
  for (const Tensor& tensor : load->tensors()) seen[tensor.name] = bytes_of(loader, tensor);
  expect_right_or_unfilled(seen);
  EXPECT_GT(unfilled_count_, 0U);
}

TEST_P(AsyncLoadTest, AForkedChildCanDropIt) {
  write(8 * mib);
  Loader loader(slow());
  auto load = loader.load_async(discover(folder_.path()), request(),
                                GetParam() == DeviceKind::cuda ? StreamWait::wait_value : StreamWait::event);
  const pid_t child = ::fork();
  if (child == 0) {
    load.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  load->finish();
  expect_equal(loader, load->tensors());
}

// The test can fail: without a wait, a stream sees what was there before.
TEST_P(AsyncLoadOnGpuTest, WithoutAWaitAStreamSeesOldMemory) {
  write(8 * mib);
  make_copies_slow();
  Loader loader(slow());
  const auto load = loader.load_async(discover(folder_.path()), request());
  CallersStream stream;
  const Tensor& last = load->tensors().back();
  stream.read(last);
  EXPECT_EQ(stream.seen().at(last.name), std::string(last.size_bytes, poison));
}

TEST_P(AsyncLoadOnGpuTest, AThousandTimesAStreamSeesTheBytesThatItWaitedFor) {
  cuda_->set_delay_max(500);
  write(mib);
  const Checkpoint checkpoint = discover(folder_.path());
  std::uint64_t tries = 0;
  Loader loader(options());
  while (tries < 1000) {
    for (const StreamWait wait : {StreamWait::event, StreamWait::wait_value}) {
      CallersStream stream;
      const auto load = loader.load_async(checkpoint, request(), wait);
      for (const Tensor& tensor : load->tensors()) {
        load->wait(tensor.name, stream.handle());
        stream.read(tensor);
        ++tries;
      }
      expect_all(stream.seen());
      load->finish();
    }
  }
}

// Reads begin before the memory is there: what fails then could not be filled, so nobody may get it.
TEST_P(AsyncLoadOnGpuTest, AFailureBeforeTheMemoryIsThereIsThrown) {
  const Checkpoint checkpoint = write(4 * mib, 1);
  const std::string path = folder_ / "m0.safetensors";
  const auto gpu = engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device());
  for (const StreamWait wait : {StreamWait::event, StreamWait::wait_value}) {
    Loader loader(options());
    std::filesystem::resize_file(path, checkpoint.files()[0].identity.size_bytes);
    const Checkpoint again = discover(folder_.path());
    LoadRequest asked = request();
    asked.allocate = [&](const Device&, std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
      std::filesystem::resize_file(path, again.files()[0].data_offset);
      while (has_thread("inrush-path")) std::this_thread::sleep_for(1ms);
      const std::shared_ptr<void> block = gpu->allocate(size_bytes, alignment_bytes);
      return Allocation{.pointer = block.get(), .owner = block};
    };
    EXPECT_EQ(code_of([&] { static_cast<void>(loader.load_async(again, asked, wait)); }),
              ErrorCode::corrupt_checkpoint);
  }
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

TEST_P(AsyncLoadOnGpuTest, AWaitByValueNeverBlocks) {
  write(8 * mib);
  make_copies_slow();
  Loader loader(slow());
  CallersStream stream;
  const auto load = loader.load_async(discover(folder_.path()), request(), StreamWait::wait_value);
  for (const Tensor& tensor : load->tensors()) {
    load->wait(tensor.name, stream.handle());
    stream.read(tensor);
  }
  EXPECT_FALSE(load->done()) << "the load was too fast to show anything";
  let_copies_go();
  expect_all(stream.seen());
}

// Half of the eight queues that a device has, whichever load the streams wait for.
TEST_P(AsyncLoadOnGpuTest, MoreStreamsAreRefusedThanMayWaitAtOnce) {
  write(4 * mib);
  const Checkpoint checkpoint = discover(folder_.path());
  Loader loader(slow());
  std::vector<std::unique_ptr<CallersStream>> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(std::make_unique<CallersStream>());
  make_copies_slow();
  const auto one = loader.load_async(checkpoint, request(), StreamWait::wait_value);
  const auto other = loader.load_async(checkpoint, request(), StreamWait::wait_value);
  for (int i = 0; i < 4; ++i) (i % 2 == 0 ? one : other)->wait_all(streams[i]->handle());
  EXPECT_EQ(code_of([&] { one->wait_all(streams[4]->handle()); }), ErrorCode::invalid_request);
  other->wait(other->tensors()[0].name, streams[0]->handle());  // waits already
  let_copies_go();
  one->finish();
  other->finish();
  for (const auto& stream : streams) static_cast<void>(stream->seen());
  one->wait_all(streams[4]->handle());
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// What waits for the whole device would wait for the stream, and hold up the copies that it waits for.
TEST_P(AsyncLoadOnGpuTest, NothingThatWaitsForTheDeviceIsDoneMeanwhile) {
  write(4 * mib);
  const Checkpoint checkpoint = discover(folder_.path());
  Loader loader(slow());
  std::vector<Tensor> old = take_all(*loader.start(checkpoint, request()));
  const auto calls = [this] {
    return std::array{cuda_->entry_count("cuMemFree"), cuda_->entry_count("cuMemHostUnregister"),
                      cuda_->entry_count("cuModuleLoadData")};
  };
  CallersStream stream;
  make_copies_slow();
  const auto load = loader.load_async(checkpoint, request(), StreamWait::wait_value);
  load->wait_all(stream.handle());
  const auto before = calls();
  old.clear();  // memory of another load goes
  const auto small = loader.start(checkpoint, [&] {
    LoadRequest some = request();
    some.only = {load->tensors()[0].name};
    return some;
  }());
  EXPECT_FALSE(load->done()) << "the load was too fast to show anything";
  EXPECT_EQ(calls(), before);
  let_copies_go();
  while (small->next()) {
  }
  load->finish();
  static_cast<void>(stream.seen());
  const FakeCudaLive during = cuda_->live();
  load->close();
  { const auto next = loader.load_async(checkpoint, request(), StreamWait::wait_value); }
  EXPECT_LT(cuda_->live().allocated_bytes, during.allocated_bytes) << "what was kept is freed";
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

TEST_P(AsyncLoadOnGpuTest, WaitAllIsForAllOfThem) {
  write(4 * mib);
  for (const StreamWait wait : {StreamWait::event, StreamWait::wait_value}) {
    Loader loader(options());
    CallersStream stream;
    const auto load = loader.load_async(discover(folder_.path()), request(), wait);
    load->wait_all(stream.handle());
    for (const Tensor& tensor : load->tensors()) stream.read(tensor);
    expect_all(stream.seen());
  }
}

TEST_P(AsyncLoadOnGpuTest, StreamsGoOnWhereALoadFailsAndSeeNoOldMemory) {
  write(16 * mib, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  make_copies_slow();
  Loader loader(slow());
  CallersStream stream;
  const auto load = loader.load_async(checkpoint, request(), StreamWait::wait_value);
  for (const Tensor& tensor : load->tensors()) {
    load->wait(tensor.name, stream.handle());
    stream.read(tensor);
  }
  const std::string path = folder_ / "m0.safetensors";
  ASSERT_EQ(::truncate(path.c_str(), 9 << 20), 0);
  let_copies_go();
  expect_right_or_unfilled(stream.seen());
  EXPECT_GT(unfilled_count_, 0U);
  EXPECT_EQ(code_of([&] { load->finish(); }), ErrorCode::corrupt_checkpoint);
  EXPECT_EQ(code_of([&] { load->wait_all(stream.handle()); }), ErrorCode::corrupt_checkpoint);
}

TEST_P(AsyncLoadOnGpuTest, DestroyedEarlyItLetsStreamsGo) {
  write(16 * mib);
  make_copies_slow();
  Loader loader(slow());
  std::vector<Tensor> tensors;  // kept for as long as the stream reads them
  CallersStream stream;
  {
    const auto load = loader.load_async(discover(folder_.path()), request(), StreamWait::wait_value);
    load->wait_all(stream.handle());
    tensors = load->tensors();
    for (const Tensor& tensor : tensors) stream.read(tensor);
  }
  expect_right_or_unfilled(stream.seen());
  EXPECT_GT(unfilled_count_, 0U);
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

TEST_P(AsyncLoadOnGpuTest, ADeviceThatIsLostEndsIt) {
  write(4 * mib);
  for (const StreamWait wait : {StreamWait::event, StreamWait::wait_value}) {
    Loader loader(slow());
    const auto load = loader.load_async(discover(folder_.path()), request(), wait);
    cuda_->fail_from(nullptr, 1, CuResult::launch_failed);
    EXPECT_EQ(code_of([&] { load->finish(); }), ErrorCode::device_failed);
    cuda_->reset();
  }
}

TEST_P(AsyncLoadOnGpuTest, NothingIsLeft) {
  write();
  const FakeCudaLive before = cuda_->live();
  {
    Loader loader(options());
    CallersStream stream;
    const auto load = loader.load_async(discover(folder_.path()), request(), StreamWait::wait_value);
    load->wait_all(stream.handle());
    load->finish();
  }
  EXPECT_EQ(cuda_->live(), before);
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// A store whose files after the first ones do not open until they are let go, as on a mount that died.
class DeadMount final : public engine::Store {
 public:
  [[nodiscard]] std::vector<engine::ListedFile> list(const std::string& folder) const override {
    return local_.list(folder);
  }
  [[nodiscard]] std::shared_ptr<engine::File> open(const std::string& path) const override {
    wait_if_dead();
    return local_.open(path);
  }
  [[nodiscard]] std::shared_ptr<engine::File> open_beneath(const std::string& folder, const std::string& name,
                                                           LinkPolicy links) const override {
    wait_if_dead();
    return local_.open_beneath(folder, name, links);
  }
  void revive() {
    const std::lock_guard lock(mutex_);
    is_dead_ = false;
    changed_.notify_all();
  }

 private:
  void wait_if_dead() const {
    std::unique_lock lock(mutex_);
    if (++open_count_ > 50) changed_.wait(lock, [this] { return !is_dead_; });
  }

  const engine::LocalStore local_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::uint64_t open_count_ = 0;
  bool is_dead_ = true;
};

TEST_P(AsyncLoadOnGpuTest, TheWatchdogFreesStreamsWhereThePathIsStuckInAnOpen) {
  write(60 * 4096, 60);
  const Checkpoint checkpoint = discover(folder_.path());
  const auto driver = engine::CudaDriver::open(INRUSH_FAKE_CUDA);
  const std::shared_ptr<engine::Gpu> gpu = engine::open_cuda_gpu(driver, device());
  const auto store = std::make_shared<DeadMount>();
  LoadRequest limited = engine::async_request(request(), StreamWait::wait_value);
  EXPECT_GT(limited.deadline.count(), 0);
  limited.device = gpu->device();
  limited.deadline = 1s;  // begun by then, and stuck
  Loader loader(options());
  auto load = engine::start_async_load({.checkpoint = checkpoint,
                                        .request = limited,
                                        .plan = make_plan(checkpoint, limited, loader.machine(device())),
                                        .gpu = gpu,
                                        .store = store,
                                        .pool = std::make_shared<engine::StagingPool>(64 * mib),
                                        .log = {},
                                        .start = engine::Clock::now()},
                                       StreamWait::wait_value);
  CallersStream stream;
  load->wait_all(stream.handle());
  for (const Tensor& tensor : load->tensors()) stream.read(tensor);
  expect_right_or_unfilled(stream.seen());
  EXPECT_GT(unfilled_count_, 0U);
  EXPECT_EQ(code_of([&] { load->finish(); }), ErrorCode::timed_out);
  store->revive();
}

std::string device_of(const testing::TestParamInfo<DeviceKind>& info) {
  return info.param == DeviceKind::cpu ? "Cpu" : "FakeCuda";
}

INSTANTIATE_TEST_SUITE_P(Devices, AsyncLoadTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_of);
INSTANTIATE_TEST_SUITE_P(Devices, AsyncLoadOnGpuTest, testing::Values(DeviceKind::cuda), device_of);

}  // namespace
}  // namespace inrush
