// What a load reads before the device is ready: while its context is being made, and while the first memory
// is being allocated.
#include "base/unique_fd.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "storage/residency.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace inrush::tests {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 20s;

class ReadAheadTest : public LoaderTest {
 protected:
  static engine::UniqueFd open(const CheckpointFile& file) {
    return engine::UniqueFd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  }

  static void drop_page_cache(const Checkpoint& checkpoint) {
    for (const CheckpointFile& file : checkpoint.files()) {
      const engine::UniqueFd fd = open(file);
      ASSERT_EQ(::fdatasync(fd.get()), 0);
      ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    }
  }

  static bool is_resident(const Checkpoint& checkpoint) {
    for (const CheckpointFile& file : checkpoint.files()) {
      if (!engine::is_range_resident(open(file).get(),
                                     {file.data_offset, file.identity.size_bytes - file.data_offset}))
        return false;
    }
    return true;
  }

  template <typename Condition>
  static bool comes_true(Condition&& condition) {
    for (const auto end = std::chrono::steady_clock::now() + patience; !condition();) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }

  // Starts a load whose context is made only once `ready` holds, or the patience is at its end.
  template <typename Condition>
  std::unique_ptr<Load> start_slowly(Loader& loader, const Checkpoint& checkpoint, const LoadRequest& asked,
                                     Condition&& ready) {
    cuda_->hold_contexts();
    auto load = std::async(std::launch::async, [&] {
      started_on_ = std::this_thread::get_id();
      return loader.start(checkpoint, asked);
    });
    was_ready_ = comes_true(ready);
    cuda_->let_contexts_go();
    return load.get();
  }

  bool was_ready_ = false;
  std::thread::id started_on_;
};

TEST_P(ReadAheadTest, ReadsWhileTheContextIsBeingMade) {
  const Checkpoint checkpoint = write(24 * mib);
  drop_page_cache(checkpoint);
  ASSERT_FALSE(is_resident(checkpoint));
  Loader loader(options());
  const auto load = start_slowly(loader, checkpoint, request(), [&] { return is_resident(checkpoint); });
  EXPECT_TRUE(was_ready_) << "nothing was read before the context was there";
  const std::vector<Tensor> tensors = take_all(*load);
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  expect_equal(loader, tensors);
  const Report report = load->report();
  EXPECT_GT(report.read_ahead_bytes, 0U);
  EXPECT_LE(report.read_ahead_bytes, report.read_bytes);
}

// The page cache stays as it was; the caller's predicate is asked on the caller's thread only.
TEST_P(ReadAheadTest, NotWhereTheLoadGoesPastThePageCacheOrAsksTheCaller) {
  const Checkpoint checkpoint = write(4 * mib);
  LoadRequest bypass = request();
  bypass.page_cache = PageCachePolicy::bypass;
  LoadRequest gds = request();
  gds.path = PathPreference::gds;
  LoadRequest compat = request();
  compat.path = PathPreference::cufile_compat;
  LoadRequest select = request();
  std::thread::id asked_on;
  select.select = [&](const TensorInfo&) {
    asked_on = std::this_thread::get_id();
    return true;
  };
  for (const LoadRequest& asked : {bypass, gds, compat, select}) {
    drop_page_cache(checkpoint);
    Loader loader(options());
    bool has_thread = true;
    try {
      const auto load = start_slowly(loader, checkpoint, asked, [&] {
        if (cuda_->waiting_contexts() == 0) return false;  // until then it may still begin
        has_thread = fakes::has_thread("inrush-ahead");
        return true;
      });
      expect_equal(loader, take_all(*load));
      EXPECT_EQ(load->report().read_ahead_bytes, 0U);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit) << error.what();
      EXPECT_NE(asked.path, PathPreference::automatic) << "there is no cuFile, and nobody asked for it";
    }
    EXPECT_TRUE(was_ready_);
    EXPECT_FALSE(has_thread);
  }
  EXPECT_EQ(asked_on, started_on_);
}

TEST_P(ReadAheadTest, AContextThatFailsLeavesNothingBehind) {
  const Checkpoint checkpoint = write(4 * mib);
  drop_page_cache(checkpoint);
  cuda_->fail("cuDevicePrimaryCtxRetain", 1, engine::CuResult::out_of_memory);
  Loader loader(options());
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first one
  const fakes::ProcessCounts before = fakes::process_counts();
  EXPECT_EQ(code_of([&] {
              static_cast<void>(start_slowly(loader, checkpoint, request(), [&] {
                return fakes::has_thread("inrush-ahead") && is_resident(checkpoint);
              }));
            }),
            ErrorCode::out_of_memory);
  EXPECT_TRUE(was_ready_);
  EXPECT_TRUE(fakes::returns_to(before));
  expect_equal(loader, take_all(*loader.start(checkpoint, request())));
}

// A read fills its slot of the ring, and the slot is pinned, before there is memory to copy to.
TEST_P(ReadAheadTest, ReadsWhileTheFirstMemoryIsBeingAllocated) {
  const Checkpoint checkpoint = write(4 * mib);
  const auto gpu = engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device());
  for (const bool comes_in_the_end : {true, false}) {
    Loader loader(options());
    LoadRequest slow = request();
    std::size_t count = 0;
    slow.allocate = [&](const Device&, std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
      if (count++ == 0) was_ready_ = comes_true([&] { return cuda_->live().registrations > 0; });
      if (!comes_in_the_end) throw Error(ErrorCode::out_of_memory, "no memory after all");
      const std::shared_ptr<void> block = gpu->allocate(size_bytes, alignment_bytes);
      return Allocation{.pointer = block.get(), .owner = block};
    };
    if (comes_in_the_end) {
      expect_equal(loader, take_all(*loader.start(checkpoint, slow)));
    } else {
      EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, slow)); }),
                ErrorCode::out_of_memory);
    }
    EXPECT_TRUE(std::exchange(was_ready_, false)) << "nothing was read before the memory was there";
  }
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

INSTANTIATE_TEST_SUITE_P(Gpu, ReadAheadTest, testing::Values(DeviceKind::cuda));

}  // namespace
}  // namespace inrush::tests
