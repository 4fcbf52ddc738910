// What every TransferPath must do, over every device and every queue that this machine can run: the same
// bytes as a plain read, whatever the storage does on the way, or one typed error and nothing in flight.
#include "transfer/staged_path.hpp"

#include <inrush/error.hpp>

#include "fakes/fake_cuda.hpp"
#include "fakes/faulty_queue.hpp"
#include "fakes/plan_sink.hpp"
#include "fakes/slow_file.hpp"
#include "fakes/test_files.hpp"
#include "gpu/cuda_driver.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <tuple>

namespace inrush::engine {
namespace {

using namespace fakes;
using namespace std::chrono_literals;

constexpr std::uint64_t kib = 1024;

enum class Target { host, cuda };
enum class Queue { threads, uring };
using Case = std::tuple<Target, Queue, PageCachePolicy>;

class StagedPathTest : public testing::TestWithParam<Case> {
 protected:
  StagedPathTest() : cuda_(INRUSH_FAKE_CUDA) {
    cuda_->set_delay_max(300);
    const auto target = std::get<Target>(GetParam());
    if (target == Target::host) {
      gpu_ = open_host_gpu();
    } else {
      const std::shared_ptr<const CudaDriver> driver = CudaDriver::open(INRUSH_CUDA_LIBRARY);
      gpu_ = open_cuda_gpu(driver, driver->devices().back());
    }
  }

  // Two files with odd data starts, so that no read is aligned by luck.
  void write_checkpoint(std::uint64_t bytes = 300 * kib) {
    contents_ = write_safetensors(folder_ / "a.safetensors", mixed_tensors(bytes, 1), 11, 3);
    std::vector<TestTensor> more = mixed_tensors(bytes / 2, 2);
    for (TestTensor& tensor : more) tensor.name += ".more";
    contents_.merge(write_safetensors(folder_ / "b.safetensors", more, 12, 4090));
    checkpoint_ = discover(folder_.path());
  }

  Plan make(LoadRequest request = {}, std::uint64_t piece_bytes = 24 * kib) {
    request.device = gpu_->device();
    request.page_cache = std::get<PageCachePolicy>(GetParam());
    Machine machine;
    machine.devices = {gpu_->device()};
    machine.cpu_count = 4;
    machine.host_free_bytes = 1ULL << 30;
    machine.piece_bytes_max = piece_bytes;
    machine.slab_bytes_max = 100 * kib;
    machine.own_slab_bytes_min = 40 * kib;
    machine.staging_bytes_max = 400 * kib;
    machine.paths = {{"staged", true, "test", 0}};
    return make_plan(checkpoint_, request, machine);
  }

  std::vector<std::shared_ptr<const File>> open_files() {
    std::vector<std::shared_ptr<const File>> files;
    for (const CheckpointFile& file : checkpoint_.files()) files.push_back(LocalStore().open(file.path));
    return files;
  }

  void drop_page_cache() {
    for (const CheckpointFile& file : checkpoint_.files()) {
      const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
      ::fsync(fd);
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }

  std::unique_ptr<ReadQueue> open_queue() {
    const IoUring io_uring = std::get<Queue>(GetParam()) == Queue::uring ? IoUring::automatic : IoUring::off;
    return std::make_unique<LocalQueue>(LocalQueueOptions{
        .reader_count = 3, .io_uring = io_uring, .staging = {}, .fallbacks = setup_fallbacks_});
  }

  std::unique_ptr<FaultyQueue> open_faulty(Faults faults) {
    return std::make_unique<FaultyQueue>(open_queue(), std::move(faults));
  }

  // Runs the plan and requires what must hold however it ends. Returns the error, if there was one.
  std::optional<Error> run(const Plan& plan, PlanSink& sink, ReadQueue& queue) {
    const auto ring = std::make_shared<Ring>(RingShape{plan.slot_bytes, plan.slot_count});
    const std::unique_ptr<CopyStream> stream = gpu_->open_stream();
    std::optional<Error> failure;
    try {
      StagedPath({*gpu_, *stream, queue, ring, fallbacks_, *stop_, [] {}}).run(plan, sink);
    } catch (const Error& error) {
      failure = error;
    }
    if (sink.orphan_count == 0) {
      EXPECT_EQ(queue.in_flight_count(), 0U);
    }
    EXPECT_EQ(stream->record() - 1, stream->reached()) << "copies in flight after run()";
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
    return failure;
  }

  void expect_bytes(const Plan& plan, const PlanSink& sink) {
    EXPECT_EQ(sink.arrived_count(), plan.pieces.size());
    std::size_t wrong = 0;
    for (const Placement& placement : plan.placements) {
      const std::string name(checkpoint_.tensor(placement.tensor).name);
      if (!placement.slice && sink.placed(placement) != contents_.at(name)) ++wrong;
    }
    EXPECT_EQ(wrong, 0U) << "of " << plan.placements.size() << " tensors";
  }

  void expect_load(Faults faults) {
    const Plan plan = make();
    PlanSink sink(plan, *gpu_, open_files());
    const auto queue = open_faulty(std::move(faults));
    SCOPED_TRACE(queue->seed_text());
    const std::optional<Error> failure = run(plan, sink, *queue);
    ASSERT_FALSE(failure) << failure->what();
    expect_bytes(plan, sink);
    faults_total_ += queue->counts().total();
  }

  FakeCuda cuda_;
  TempFolder folder_;
  std::shared_ptr<Gpu> gpu_;
  TestBytes contents_;
  Checkpoint checkpoint_;
  Fallbacks fallbacks_;
  std::shared_ptr<Fallbacks> setup_fallbacks_ = std::make_shared<Fallbacks>();
  std::optional<StopSignal> stop_{std::in_place};
  std::uint64_t faults_total_ = 0;
};

TEST_P(StagedPathTest, BringsEveryByteWarmAndCold) {
  write_checkpoint();
  for (const bool cold : {false, true}) {
    if (cold) drop_page_cache();
    const Plan plan = make();
    PlanSink sink(plan, *gpu_, open_files());
    const auto queue = open_queue();
    const std::optional<Error> failure = run(plan, sink, *queue);
    ASSERT_FALSE(failure) << failure->what();
    expect_bytes(plan, sink);
    EXPECT_EQ(sink.first_byte_count, 1U);
  }
}

TEST_P(StagedPathTest, ShortReadsAndInterruptionsChangeNothing) {
  write_checkpoint();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    drop_page_cache();
    expect_load({.seed = seed,
                 .short_chance = 0.4,
                 .unaligned_short_chance = 0.2,
                 .eintr_chance = 0.1,
                 .eagain_chance = 0.1,
                 .late_chance = 0.2,
                 .reorder = true});
  }
  EXPECT_GT(faults_total_, 50U);
  for (const Fallback& fallback : fallbacks_.list()) {
    EXPECT_EQ(fallback.reason.find("Invalid argument"), std::string::npos)
        << "a direct read went on from where no direct read may: " << fallback.reason;
  }
}

TEST_P(StagedPathTest, DirectReadsThatAreRefusedComeAnotherWay) {
  write_checkpoint();
  drop_page_cache();
  expect_load({.seed = 3, .direct_einval_chance = 1});
  if (std::get<PageCachePolicy>(GetParam()) == PageCachePolicy::bypass && faults_total_ > 0) {
    EXPECT_FALSE(fallbacks_.list().empty());
    EXPECT_EQ(fallbacks_.list()[0].what, "O_DIRECT");
  }
}

TEST_P(StagedPathTest, AnErrorOfTheStorageEndsTheLoadAndIsNamed) {
  write_checkpoint();
  const Plan plan = make();
  for (const std::uint64_t step : {0U, 1U, 5U}) {
    const std::uint64_t at = checkpoint_.files()[0].data_offset + step * 30 * kib + 17;
    PlanSink sink(plan, *gpu_, open_files());
    const auto queue = open_faulty({.seed = 5, .eio_at = {{checkpoint_.files()[0].path, at}}});
    const std::optional<Error> failure = run(plan, sink, *queue);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::storage_failed);
    EXPECT_EQ(failure->system_error(), EIO);
    EXPECT_NE(std::string(failure->what()).find("a.safetensors bytes ["), std::string::npos)
        << failure->what();
    EXPECT_NE(std::string(failure->what()).find("(piece "), std::string::npos) << failure->what();
    EXPECT_LT(sink.arrived_count(), plan.pieces.size());
  }
}

TEST_P(StagedPathTest, AFileThatEndsInsideATensorIsCorrupt) {
  write_checkpoint();
  const Plan plan = make();
  PlanSink sink(plan, *gpu_, open_files());
  const auto queue = open_faulty(
      {.seed = 6, .end_at = {{checkpoint_.files()[1].path, checkpoint_.files()[1].data_offset + 40'001}}});
  const std::optional<Error> failure = run(plan, sink, *queue);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::corrupt_checkpoint);
  EXPECT_NE(std::string(failure->what()).find("b.safetensors"), std::string::npos) << failure->what();
}

TEST_P(StagedPathTest, CancelAtEachStepLeavesNothingInFlight) {
  write_checkpoint();
  const Plan plan = make();
  for (std::uint64_t step = 1; step <= plan.pieces.size(); ++step) {
    PlanSink sink(plan, *gpu_, open_files());
    stop_.emplace();
    sink.on_arrival = [&](std::uint64_t count) {
      if (count == step) stop_->cancel();
    };
    const auto queue = open_queue();
    const std::optional<Error> failure = run(plan, sink, *queue);
    if (failure) {
      EXPECT_EQ(failure->code(), ErrorCode::cancelled);
    } else {
      EXPECT_EQ(sink.arrived_count(), plan.pieces.size());
    }
  }
}

TEST_P(StagedPathTest, AReadThatNeverReturnsIsLeftBehindAfterTheDeadline) {
  contents_ = write_safetensors(folder_ / "a.safetensors", {{"t", DType::u8, {200 * kib}}}, 4);
  checkpoint_ = discover(folder_.path());
  const Plan plan = make();
  const auto slow = std::make_shared<SlowFile>(std::vector<std::byte>(400 * kib));
  stop_.emplace(Clock::now() + 50ms);
  PlanSink sink(plan, *gpu_, {slow});
  auto queue = open_queue();
  const std::optional<Error> failure = run(plan, sink, *queue);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::timed_out);
  EXPECT_GT(sink.orphan_count, 0U);
  queue.reset();    // does not wait for the reads
  slow->release();  // they return into memory that is still there
}

TEST_P(StagedPathTest, SlicesAndSubsetsBringTheirBytesOnly) {
  contents_ = write_safetensors(
      folder_ / "a.safetensors",
      {{"rows", DType::f32, {64, 100}}, {"other", DType::u8, {70'000}}, {"columns", DType::bf16, {300, 70}}},
      9, 5);
  checkpoint_ = discover(folder_.path());
  LoadRequest request;
  request.only = {"rows", "col*"};
  request.slices = {{"rows", {0, 10, 7}}, {"columns", {1, 33, 20}}};
  const Plan plan = make(request);
  PlanSink sink(plan, *gpu_, open_files());
  const auto queue = open_faulty({.seed = 2, .short_chance = 0.5});
  const std::optional<Error> failure = run(plan, sink, *queue);
  ASSERT_FALSE(failure) << failure->what();
  ASSERT_EQ(plan.placements.size(), 2U);
  EXPECT_EQ(sink.placed(plan.placements[0]), contents_["rows"].substr(10 * 400, 7 * 400));
  std::string columns;
  for (std::size_t row = 0; row < 300; ++row) columns += contents_["columns"].substr(row * 140 + 66, 40);
  EXPECT_EQ(sink.placed(plan.placements[1]), columns);
}

TEST_P(StagedPathTest, TensorsOfNoneOneAndManyPieces) {
  contents_ = write_safetensors(folder_ / "a.safetensors",
                                {{"first", DType::f32, {0}},
                                 {"one", DType::u8, {1}},
                                 {"big", DType::u8, {333'333}},
                                 {"scalar", DType::f64, {}},
                                 {"last", DType::i8, {5, 0}}},
                                21, 1);
  checkpoint_ = discover(folder_.path());
  expect_load({.seed = 1, .short_chance = 0.3});
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(std::get<Target>(info.param) == Target::host ? "Host" : "Cuda") +
         (std::get<Queue>(info.param) == Queue::threads ? "Threads" : "IoUring") +
         (std::get<PageCachePolicy>(info.param) == PageCachePolicy::keep ? "Keep" : "Bypass");
}

#ifndef INRUSH_REAL_GPU
// Faults of the device: the first error wins, and its own copies are over before the ring goes.
class GpuStagedPathTest : public StagedPathTest {};

TEST_P(GpuStagedPathTest, ACopyThatFailsEndsTheLoad) {
  write_checkpoint();
  const Plan plan = make();
  for (const std::uint64_t nth : {1U, 2U, 7U}) {
    PlanSink sink(plan, *gpu_, open_files());
    cuda_->fail("cuMemcpyHtoDAsync", nth, CuResult::invalid_value);
    const auto queue = open_queue();
    const std::optional<Error> failure = run(plan, sink, *queue);
    ASSERT_TRUE(failure) << nth;
    EXPECT_EQ(failure->code(), ErrorCode::device_failed);
  }
}

TEST_P(GpuStagedPathTest, PinnedMemoryRefusedIsSlowerNotWrong) {
  write_checkpoint();
  cuda_->set_pinned_bytes_max(64 * kib);
  expect_load({.seed = 1});
  ASSERT_FALSE(fallbacks_.list().empty());
  EXPECT_EQ(fallbacks_.list()[0].what, "pinned memory");
}

#endif

constexpr auto queues = [] { return testing::Values(Queue::threads, Queue::uring); };
constexpr auto policies = [] { return testing::Values(PageCachePolicy::keep, PageCachePolicy::bypass); };

INSTANTIATE_TEST_SUITE_P(Cuda, StagedPathTest,
                         testing::Combine(testing::Values(Target::cuda), queues(), policies()), case_name);
#ifndef INRUSH_REAL_GPU  // tests/gpu runs this file once more, against the driver of the machine
INSTANTIATE_TEST_SUITE_P(Cpu, StagedPathTest,
                         testing::Combine(testing::Values(Target::host), queues(), policies()), case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GpuStagedPathTest,
                         testing::Combine(testing::Values(Target::cuda), queues(), policies()), case_name);
#endif

}  // namespace
}  // namespace inrush::engine
