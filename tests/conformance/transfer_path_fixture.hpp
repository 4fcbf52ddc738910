// A test of a TransferPath: a checkpoint of two files with odd data starts, the machine that its plan is for,
// and what must hold however a run ends.
#pragma once

#include "transfer/gds_path.hpp"
#include "transfer/gds_reads.hpp"
#include "transfer/staged_path.hpp"
#include "transfer/window_reads.hpp"

#include <inrush/error.hpp>

#include "fakes/fake_cuda.hpp"
#include "fakes/fake_cufile.hpp"
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

#include <array>
#include <cerrno>
#include <optional>
#include <tuple>

namespace inrush::fakes {

using namespace engine;

inline constexpr std::uint64_t kib = 1024;

enum class PathKind { host, windows, cuda, p2pdma, nvfs, mute, silent, compat };
enum class Queue { threads, uring };
using Case = std::tuple<PathKind, Queue, PageCachePolicy>;

class TransferPathTest : public testing::TestWithParam<Case> {
 protected:
  TransferPathTest() : cuda_(INRUSH_FAKE_CUDA) {
    cuda_->set_delay_max(300);
    const auto kind = std::get<PathKind>(GetParam());
    if (kind > PathKind::cuda) set_up_cufile(kind);
    if (kind == PathKind::host) {
      gpu_ = open_host_gpu();
    } else {
      const std::shared_ptr<const CudaDriver> driver = CudaDriver::open(INRUSH_CUDA_LIBRARY);
      gpu_ = open_cuda_gpu(driver, driver->devices().back());
    }
  }

  void set_up_cufile(PathKind kind) {
    cufile_.emplace(INRUSH_FAKE_CUFILE_19);
    (*cufile_)->set_delay_max(200);
    (*cufile_)->set_personality(kind == PathKind::p2pdma   ? CufilePersonality::p2pdma
                                : kind == PathKind::nvfs   ? CufilePersonality::nvfs
                                : kind == PathKind::mute   ? CufilePersonality::mute
                                : kind == PathKind::silent ? CufilePersonality::silent
                                                           : CufilePersonality::compat);
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
      run_path({*gpu_, *stream, queue, ring, *fallbacks_, *stop_, [] {}}, plan, sink);
    } catch (const Error& error) {
      failure = error;
    }
    if (sink.orphan_count == 0) {
      EXPECT_EQ(queue.in_flight_count(), 0U);
    }
    EXPECT_EQ(stream->record() - 1, stream->reached()) << "copies in flight after run()";
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
    if (cufile_) {
      EXPECT_EQ((*cufile_)->misuse_count(), 0U) << (*cufile_)->last_misuse();
      EXPECT_EQ((*cufile_)->live(), FakeCufileLive{}) << "cuFile is not left as it was found";
    }
    return failure;
  }

  void run_path(StagedParts parts, const Plan& plan, PlanSink& sink) {
    if (std::get<PathKind>(GetParam()) == PathKind::windows) return run_windows(std::move(parts), plan, sink);
    if (!cufile_) return StagedPath(std::move(parts)).run(plan, sink);
    const bool is_compat = std::get<PathKind>(GetParam()) == PathKind::compat;
    const auto driver = gpu_->open_cufile(
        {is_compat ? CufileMode::compat : CufileMode::direct, INRUSH_FAKE_CUFILE_19, folder_.path()});
    const auto ring =
        std::make_shared<const DeviceRing>(*gpu_, driver, RingShape{plan.slot_bytes, plan.slot_count});
    GdsReads reads(ring);
    const auto judge = [&] { proof_ = reads.proof(); };
    try {
      GdsPath(std::move(parts),
              {.reads = [&] { return &reads; }, .ranges = OwnSlotRanges::all, .name = "GDS"})
          .run(plan, sink);
    } catch (...) {
      judge();
      throw;
    }
    judge();
  }

  void run_windows(StagedParts parts, const Plan& plan, PlanSink& sink) {
    WindowReads windows(gpu_, {plan.slot_bytes, 3}, Populate::missing);
    const OwnSlots slots{
        .reads = [&] { return &windows; }, .ranges = OwnSlotRanges::resident, .name = "page cache windows"};
    try {
      StagedPath(std::move(parts), slots).run(plan, sink);
    } catch (...) {
      window_peak_bytes_ = windows.peak_bytes();
      throw;
    }
    window_peak_bytes_ = windows.peak_bytes();
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
  std::optional<FakeCufile> cufile_;
  GdsProof proof_;
  std::uint64_t window_peak_bytes_ = 0;
  TempFolder folder_;
  std::shared_ptr<Gpu> gpu_;
  TestBytes contents_;
  Checkpoint checkpoint_;
  std::optional<Fallbacks> fallbacks_{std::in_place};
  std::shared_ptr<Fallbacks> setup_fallbacks_ = std::make_shared<Fallbacks>();
  std::optional<StopSignal> stop_{std::in_place};
  std::uint64_t faults_total_ = 0;
};

}  // namespace inrush::fakes
