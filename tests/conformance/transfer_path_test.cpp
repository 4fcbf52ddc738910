// What every TransferPath must do, over every device and every queue that this machine can run: the same
// bytes as a plain read, whatever the storage does on the way, or one typed error and nothing in flight.
#include "conformance/transfer_path_fixture.hpp"

#include <array>

namespace inrush::engine {
namespace {

using namespace fakes;
using namespace std::chrono_literals;

TEST_P(TransferPathTest, BringsEveryByteWarmAndCold) {
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

TEST_P(TransferPathTest, ReadsBeforeThereIsMemoryToCopyTo) {
  write_checkpoint();
  for (const std::uint64_t questions : {1U, 7U, 300U}) {
    const Plan plan = make();
    PlanSink sink(plan, *gpu_, open_files());
    sink.slab_questions = questions;
    const auto queue = open_queue();
    const std::optional<Error> failure = run(plan, sink, *queue);
    ASSERT_FALSE(failure) << failure->what();
    expect_bytes(plan, sink);
  }
}

TEST_P(TransferPathTest, ALoadThatEndsBeforeItsMemoryCameLeavesNothing) {
  write_checkpoint();
  const Plan plan = make();
  PlanSink sink(plan, *gpu_, open_files());
  if (gpu_->is_host()) return expect_load({});  // reads land in the slab itself there
  sink.slab_questions = UINT64_MAX;
  stop_.emplace(Clock::now() + 100ms);
  const auto queue = open_queue();
  const std::optional<Error> failure = run(plan, sink, *queue);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::timed_out);
  EXPECT_EQ(sink.arrived_count(), 0U);
}

TEST_P(TransferPathTest, ShortReadsAndInterruptionsChangeNothing) {
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
  for (const Fallback& fallback : fallbacks_->list()) {
    EXPECT_EQ(fallback.reason.find("Invalid argument"), std::string::npos)
        << "a direct read went on from where no direct read may: " << fallback.reason;
  }
}

TEST_P(TransferPathTest, DirectReadsThatAreRefusedComeAnotherWay) {
  write_checkpoint();
  drop_page_cache();
  expect_load({.seed = 3, .direct_einval_chance = 1});
  if (std::get<PageCachePolicy>(GetParam()) == PageCachePolicy::bypass && faults_total_ > 0) {
    EXPECT_FALSE(fallbacks_->list().empty());
    EXPECT_EQ(fallbacks_->list()[0].what, "O_DIRECT");
  }
}

TEST_P(TransferPathTest, AnErrorOfTheStorageEndsTheLoadAndIsNamed) {
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

TEST_P(TransferPathTest, AFileThatEndsInsideATensorIsCorrupt) {
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

TEST_P(TransferPathTest, CancelAtEachStepLeavesNothingInFlight) {
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

TEST_P(TransferPathTest, AReadThatNeverReturnsIsLeftBehindAfterTheDeadline) {
  contents_ = write_safetensors(folder_ / "a.safetensors", {{"t", DType::u8, {200 * kib}}}, 4);
  checkpoint_ = discover(folder_.path());
  const Plan plan = make();
  const auto slow = std::make_shared<SlowFile>(std::vector<std::byte>(400 * kib));
  // cuFile is opened within run(), which a machine under load takes its time for.
  stop_.emplace(Clock::now() + (cufile_ ? 1000ms : 50ms));
  PlanSink sink(plan, *gpu_, {slow});
  auto queue = open_queue();
  const std::optional<Error> failure = run(plan, sink, *queue);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::timed_out);
  EXPECT_GT(sink.orphan_count, 0U);
  queue.reset();    // does not wait for the reads
  slow->release();  // they return into memory that is still there
}

TEST_P(TransferPathTest, SlicesAndSubsetsBringTheirBytesOnly) {
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

TEST_P(TransferPathTest, TensorsOfNoneOneAndManyPieces) {
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
  static constexpr std::array names = {"Host", "Windows", "Cuda",   "P2pdma",
                                       "Nvfs", "Mute",    "Silent", "Compat"};
  return std::string(names.at(static_cast<std::size_t>(std::get<PathKind>(info.param)))) +
         (std::get<Queue>(info.param) == Queue::threads ? "Threads" : "IoUring") +
         (std::get<PageCachePolicy>(info.param) == PageCachePolicy::keep ? "Keep" : "Bypass");
}

#ifndef INRUSH_REAL_GPU
// Faults of the device: the first error wins, and its own copies are over before the ring goes.
class GpuTransferPathTest : public TransferPathTest {};

TEST_P(GpuTransferPathTest, ACopyThatFailsEndsTheLoad) {
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

TEST_P(GpuTransferPathTest, PinnedMemoryRefusedIsSlowerNotWrong) {
  write_checkpoint();
  cuda_->set_pinned_bytes_max(64 * kib);
  expect_load({.seed = 1});
  ASSERT_FALSE(fallbacks_->list().empty());
  EXPECT_EQ(fallbacks_->list()[0].what, "pinned memory");
}

#endif

constexpr auto queues = [] { return testing::Values(Queue::threads, Queue::uring); };
constexpr auto policies = [] { return testing::Values(PageCachePolicy::keep, PageCachePolicy::bypass); };

INSTANTIATE_TEST_SUITE_P(Cuda, TransferPathTest,
                         testing::Combine(testing::Values(PathKind::cuda, PathKind::windows), queues(),
                                          policies()),
                         case_name);
#ifndef INRUSH_REAL_GPU  // tests/gpu runs this file once more, against the driver of the machine
INSTANTIATE_TEST_SUITE_P(Cpu, TransferPathTest,
                         testing::Combine(testing::Values(PathKind::host), queues(), policies()), case_name);
INSTANTIATE_TEST_SUITE_P(Cufile, TransferPathTest,
                         testing::Combine(testing::Values(PathKind::p2pdma, PathKind::nvfs, PathKind::mute,
                                                          PathKind::silent, PathKind::compat),
                                          testing::Values(Queue::uring),
                                          testing::Values(PageCachePolicy::bypass)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GpuTransferPathTest,
                         testing::Combine(testing::Values(PathKind::cuda), queues(), policies()), case_name);
#endif

}  // namespace
}  // namespace inrush::engine
