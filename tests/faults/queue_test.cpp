// StagedPath over a queue that goes wrong by a seed: short, interrupted, refused, failing, reordered, slow
// completions, and some that never come; hundreds of schedules on each device.
#include "transfer/staged_path.hpp"

#include "fakes/faulty_queue.hpp"
#include "fakes/plan_sink.hpp"
#include "faults/fault_fixture.hpp"
#include "gpu/cuda_driver.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

namespace inrush::faults {
namespace {

using namespace engine;
using namespace fakes;
using namespace std::chrono_literals;

constexpr std::uint64_t schedule_count = 300;

class QueueFaultTest : public DeviceFaultTest {
 protected:
  QueueFaultTest() {
    write_model(2, 200 * kib);
    device_gpu_ = device_.kind == DeviceKind::cpu
                      ? open_host_gpu()
                      : open_cuda_gpu(CudaDriver::open(INRUSH_FAKE_CUDA), device_);
  }

  Plan make(PageCachePolicy policy) const {
    LoadRequest request{.device = device_gpu_->device(), .page_cache = policy};
    Machine machine;
    machine.devices = {device_gpu_->device()};
    machine.cpu_count = 4;
    machine.host_free_bytes = 1ULL << 30;
    machine.piece_bytes_max = 24 * kib;
    machine.slab_bytes_max = 100 * kib;
    machine.staging_bytes_max = 400 * kib;
    machine.paths = {{"staged", true, "test", 0}};
    return make_plan(checkpoint_, request, machine);
  }

  // Of everything a little, or one kind that must end the load.
  Faults draw(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    const auto chance = [&](double most) {
      return random() % 3 == 0 ? 0.0 : most * static_cast<double>(random() % 100) / 100;
    };
    Faults faults{.seed = seed,
                  .short_chance = chance(0.5),
                  .unaligned_short_chance = chance(0.3),
                  .eintr_chance = chance(0.3),
                  .eagain_chance = chance(0.3),
                  .direct_einval_chance = chance(0.2),
                  .late_chance = chance(0.5),
                  .reorder = random() % 2 == 0};
    if (random() % 4 == 0) {
      faults.slow_every = 1 + random() % 8;
      faults.slow_time = std::chrono::microseconds(random() % 3000);
    }
    const CheckpointFile& file = checkpoint_.files()[random() % checkpoint_.files().size()];
    const std::uint64_t at = file.data_offset + random() % (file.identity.size_bytes - file.data_offset);
    if (seed % 8 == 5) faults.eio_at[file.path] = at;
    if (seed % 8 == 6) faults.end_at[file.path] = at;
    if (seed % 8 == 7) faults.never_from = 1 + random() % 20;
    return faults;
  }

  static ErrorCode expected_code(std::uint64_t seed) {
    return seed % 8 == 5   ? ErrorCode::storage_failed
           : seed % 8 == 6 ? ErrorCode::corrupt_checkpoint
                           : ErrorCode::timed_out;
  }

  struct Run {
    std::optional<Error> error;
    std::uint64_t wrong_tensors = 0;
    std::uint64_t injected = 0;
  };

  Run run_schedule(std::uint64_t seed) {
    const Plan plan = make(seed % 2 == 0 ? PageCachePolicy::keep : PageCachePolicy::bypass);
    std::vector<std::shared_ptr<const File>> files;
    for (const CheckpointFile& file : checkpoint_.files()) files.push_back(LocalStore().open(file.path));
    PlanSink sink(plan, *device_gpu_, files);
    FaultyQueue queue(std::make_unique<LocalQueue>(
                          LocalQueueOptions{.reader_count = 3,
                                            .io_uring = seed % 3 == 0 ? IoUring::off : IoUring::automatic,
                                            .staging = {},
                                            .fallbacks = {}}),
                      draw(seed));
    const auto ring = std::make_shared<Ring>(RingShape{plan.slot_bytes, plan.slot_count});
    const std::unique_ptr<CopyStream> stream = device_gpu_->open_stream();
    const StopSignal stop(seed % 8 == 7 ? Clock::now() + 30ms : Clock::time_point::max());
    Fallbacks fallbacks;
    Run run;
    SystemRules cold;
    cold.is_cold = seed % 5 != 0;
    const SystemFaults rules(cold);
    try {
      StagedPath({*device_gpu_, *stream, queue, ring, fallbacks, stop, [] {}}).run(plan, sink);
      for (const Placement& placement : plan.placements) {
        const std::string name(checkpoint_.tensor(placement.tensor).name);
        run.wrong_tensors += sink.placed(placement) == contents_.at(name) ? 0U : 1U;
      }
    } catch (const Error& error) {
      run.error = error;
    }
    EXPECT_EQ(stream->record() - 1, stream->reached()) << "copies in flight after run()";
    EXPECT_TRUE(sink.orphan_count > 0 || queue.in_flight_count() == 0) << "reads in flight after run()";
    run.injected = queue.counts().total();
    return run;
  }

  std::shared_ptr<Gpu> device_gpu_;
};

TEST_P(QueueFaultTest, SchedulesBySeed) {
  for (std::uint64_t seed = 0; seed < schedule_count; ++seed) {
    if (!is_chosen("queue schedule", seed)) continue;
    const std::string repeat = repeat_text("queue schedule", seed);
    const HangGuard guard(repeat);
    const ProcessCounts before = process_counts();
    const Run run = run_schedule(seed);
    const bool must_fail = seed % 8 >= 5;
    const bool is_right =
        run.wrong_tensors == 0 && (run.error ? must_fail && run.error->code() == expected_code(seed) : true);
    EXPECT_TRUE(is_right) << run.wrong_tensors << " tensors are wrong; "
                          << (run.error ? run.error->what() : "no error") << "\n"
                          << repeat;
    // A read that never came is known only where the queue got so far.
    EXPECT_TRUE(run.error || !must_fail || seed % 8 == 7) << "it loaded, and cannot have\n" << repeat;
    const bool leaks = !returns_to(before);
    EXPECT_FALSE(leaks) << "descriptors or threads left behind\n" << repeat;
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse() << "\n" << repeat;
    if (run.injected == 0) continue;
    count("faults queue schedule",
          {1, run.injected, run.error ? 0U : 1U, run.error ? 1U : 0U, is_right ? 0U : 1U, leaks ? 1U : 0U});
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, QueueFaultTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

}  // namespace
}  // namespace inrush::faults
