#include "fakes/fake_cuda_fixture.hpp"
#include "gpu/cuda_table.hpp"
#include "gpu/gpu.hpp"

#include <inrush/error.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <span>
#include <thread>

namespace inrush::engine {
namespace {

class CudaCopyStreamTest : public fakes::FakeCudaTest {
 protected:
  static Copy run(std::span<const std::byte> source, void* target) {
    return {.source = source.data(), .target = target, .row_bytes = source.size()};
  }
  static void copy_one(CopyStream& stream, const Copy& copy) { stream.copy(std::span(&copy, 1)); }
};

// The caller's own stream, as torch would have one, on the same device.
class CallersStream {
 public:
  explicit CallersStream(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {
    EXPECT_EQ(table().primary_ctx_retain(&context_, 0), CuResult::success);
    bound([this] { EXPECT_EQ(table().stream_create(&stream_, cu_stream_non_blocking), CuResult::success); });
  }
  ~CallersStream() {
    bound([this] {
      EXPECT_EQ(table().stream_synchronize(stream_), CuResult::success);
      EXPECT_EQ(table().stream_destroy(stream_), CuResult::success);
    });
    EXPECT_EQ(table().primary_ctx_release(0), CuResult::success);
  }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;

  // What a kernel that still uses a block looks like: it writes when it gets its turn.
  void use_block(CuStream stream, void* block, std::span<const std::byte> bytes) {
    bound([&] {
      EXPECT_EQ(table().memcpy_htod_async(reinterpret_cast<std::uintptr_t>(block), bytes.data(), bytes.size(),
                                          stream),
                CuResult::success);
    });
  }
  void synchronize(CuStream stream) {
    bound([&] { EXPECT_EQ(table().stream_synchronize(stream), CuResult::success); });
  }
  template <typename Call>
  void bound(Call&& call) {
    EXPECT_EQ(table().ctx_push_current(context_), CuResult::success);
    call();
    CuContext popped = nullptr;
    EXPECT_EQ(table().ctx_pop_current(&popped), CuResult::success);
  }
  [[nodiscard]] CuStream stream() const { return stream_; }

 private:
  [[nodiscard]] const CudaTable& table() const { return driver_->table(); }

  std::shared_ptr<const CudaDriver> driver_;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
};

TEST_F(CudaCopyStreamTest, TicketsGrowByOneAndAreReachedInOrder) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(1 << 16, 256);
  const std::vector<std::byte> source(1 << 16, std::byte{7});
  const auto stream = gpu->open_stream();
  EXPECT_EQ(stream->reached(), 0U);
  for (std::uint64_t ticket = 1; ticket <= 40; ++ticket) {
    copy_one(*stream, run(source, block.get()));
    EXPECT_EQ(stream->record(), ticket);
    EXPECT_LE(stream->reached(), ticket);
  }
  stream->wait(17);
  EXPECT_GE(stream->reached(), 17U);
  stream->wait(40);
  EXPECT_EQ(stream->reached(), 40U);
  stream->wait(3);
  EXPECT_THROW(stream->wait(41), Error);
}

TEST_F(CudaCopyStreamTest, EventsAreUsedAgain) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4096, 256);
  const std::vector<std::byte> source(4096);
  const auto stream = gpu->open_stream();
  for (int i = 0; i < 100; ++i) {
    copy_one(*stream, run(source, block.get()));
    stream->wait(stream->record());
  }
  EXPECT_EQ(cuda_->live().events, 2U);  // one ticket at a time, and that of order_after()
}

// The reason for tickets, shown by breaking the rule: a source that changes before its ticket is what
// arrives.
TEST_F(CudaCopyStreamTest, SourceIsReadLate) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4096, 256);
  std::vector<std::byte> slot(4096, std::byte{1});
  const auto stream = gpu->open_stream();
  copy_one(*stream, run(slot, block.get()));
  cuda_->settle();
  EXPECT_EQ(read_back(*gpu, block.get(), 1).front(), std::byte{0xA5});
  std::fill(slot.begin(), slot.end(), std::byte{2});
  stream->wait(stream->record());
  EXPECT_EQ(read_back(*gpu, block.get(), 4096), slot);
}

TEST_F(CudaCopyStreamTest, DestroyingWaitsForItsCopies) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4096, 256);
  std::vector<std::byte> source(4096, std::byte{1});
  {
    const auto stream = gpu->open_stream();
    copy_one(*stream, run(source, block.get()));
  }
  const std::vector<std::byte> expected = source;
  std::fill(source.begin(), source.end(), std::byte{2});
  EXPECT_EQ(read_back(*gpu, block.get(), 4096), expected);
}

TEST_F(CudaCopyStreamTest, CopiesComeAfterWhatTheCallerHadQueued) {
  const auto driver = open_driver();
  const auto gpu = open_cuda_gpu(driver, parse_device("0"));
  const auto block = gpu->allocate(4096, 256);
  const std::vector<std::byte> theirs(4096, std::byte{0xEE});
  const std::vector<std::byte> ours(4096, std::byte{0x11});
  CallersStream caller(driver);
  const auto stream = gpu->open_stream();
  for (CuStream used : {caller.stream(), CuStream{nullptr}}) {
    caller.bound([&] { cuda_->hold(used); });
    caller.use_block(used, block.get(), theirs);
    std::thread([&] { stream->order_after(used); }).join();
    copy_one(*stream, run(ours, block.get()));
    const std::uint64_t ticket = stream->record();
    cuda_->settle();  // whoever did not wait has written by now, and is overwritten next
    EXPECT_LT(stream->reached(), ticket);
    caller.bound([&] { cuda_->let_go(used); });
    stream->wait(ticket);
    caller.synchronize(used);
    EXPECT_EQ(read_back(*gpu, block.get(), 4096), ours);
  }
}

TEST_F(CudaCopyStreamTest, ContiguousRowsAreOnePlainCopy) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4096, 256);
  std::vector<std::byte> source(4096, std::byte{5});
  const auto stream = gpu->open_stream();
  cuda_->fail_from("cuMemcpy2DAsync", 1, CuResult::invalid_value);
  copy_one(*stream, {source.data(), 64, block.get(), 64, 64, 64});
  copy_one(*stream, {source.data(), 9, block.get(), 1, 64, 1});
  copy_one(*stream, {source.data(), 64, block.get(), 64, 0, 64});
  copy_one(*stream, {source.data(), 64, block.get(), 64, 64, 0});
  EXPECT_EQ(cuda_->copy_count(), 2U);
  stream->wait(stream->record());
  EXPECT_EQ(read_back(*gpu, block.get(), 4096), source);
}

// Memory of the caller's may touch memory of another allocation, and the driver takes no copy across the
// border.
TEST_F(CudaCopyStreamTest, ARunAcrossAllocationsIsCutAtTheirBorders) {
  const auto gpu = open_gpu();
  cuda_->pack_allocations();
  std::vector<std::shared_ptr<void>> blocks;
  for (const std::uint64_t bytes : {512U, 256U, 1024U}) blocks.push_back(gpu->allocate(bytes, 256));
  const std::vector<std::byte> source(1000, std::byte{3});
  const auto stream = gpu->open_stream();
  copy_one(*stream, run(source, static_cast<std::byte*>(blocks[0].get()) + 101));
  EXPECT_EQ(cuda_->copy_count(), 3U);
  stream->wait(stream->record());
  EXPECT_EQ(read_back(*gpu, blocks[0].get(), 512).at(100), std::byte{0xA5});
  EXPECT_EQ(read_back(*gpu, blocks[0].get(), 512).at(101), std::byte{3});
  EXPECT_EQ(read_back(*gpu, blocks[1].get(), 256), std::vector<std::byte>(256, std::byte{3}));
  EXPECT_EQ(read_back(*gpu, blocks[2].get(), 1024).at(1000 - 256 - 411 - 1), std::byte{3});
  EXPECT_EQ(read_back(*gpu, blocks[2].get(), 1024).at(1000 - 256 - 411), std::byte{0xA5});
}

TEST_F(CudaCopyStreamTest, ARefusalWithinOneAllocationStays) {
  const auto gpu = open_gpu();
  const auto block = gpu->allocate(4096, 256);
  const std::vector<std::byte> source(4096);
  const auto stream = gpu->open_stream();
  for (const char* also_fails : {"", "cuMemGetAddressRange"}) {
    cuda_->fail("cuMemcpyHtoDAsync", 1, CuResult::invalid_value);
    cuda_->fail(also_fails, 1, CuResult::invalid_value);
    EXPECT_THROW(copy_one(*stream, run(source, block.get())), Error);
    EXPECT_EQ(cuda_->copy_count(), 0U);
    cuda_->reset();
  }
}

// Beyond the largest pitch of a device the rows go one by one. The source is address space with two pages in
// it.
TEST_F(CudaCopyStreamTest, RowsFurtherApartThanADeviceCanStepStillArrive) {
  constexpr std::uint64_t pitch = (1ULL << 31) + 4096;
  void* sparse = ::mmap(nullptr, pitch + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(sparse, MAP_FAILED);
  auto* const rows = static_cast<std::byte*>(sparse);
  std::fill_n(rows, 64, std::byte{1});
  std::fill_n(rows + pitch, 64, std::byte{2});
  {
    const auto gpu = open_gpu();
    const auto block = gpu->allocate(256, 256);
    const auto stream = gpu->open_stream();
    copy_one(*stream, {rows, pitch, block.get(), 128, 64, 2});
    stream->wait(stream->record());
    const auto bytes = read_back(*gpu, block.get(), 256);
    EXPECT_EQ(bytes.at(0), std::byte{1});
    EXPECT_EQ(bytes.at(64), std::byte{0xA5});
    EXPECT_EQ(bytes.at(128), std::byte{2});
  }
  ::munmap(sparse, pitch + 4096);
}

TEST_F(CudaCopyStreamTest, CopyThatFailsOnTheDeviceIsFoundByWaitAndByReached) {
  const std::vector<std::byte> source(4096);
  for (const bool by_wait : {true, false}) {
    const auto gpu = open_gpu();
    const auto block = gpu->allocate(4096, 256);
    const auto stream = gpu->open_stream();
    cuda_->fail_copy(2, CuResult::launch_failed);
    copy_one(*stream, run(source, block.get()));
    copy_one(*stream, run(source, block.get()));
    const std::uint64_t ticket = stream->record();
    const auto finish = [&] {
      if (by_wait) stream->wait(ticket);
      while (stream->reached() < ticket) std::this_thread::yield();
    };
    try {
      finish();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failed);
      EXPECT_NE(std::string(error.what()).find("after copies: CUDA_ERROR_LAUNCH_FAILED"), std::string::npos)
          << error.what();
    }
    EXPECT_THROW(copy_one(*stream, run(source, block.get())), Error);
  }
}

// The pattern of staging: two slots, each refilled only when its ticket is reached, over many seeds of
// lateness.
TEST_F(CudaCopyStreamTest, RingOfTwoSlotsArrivesWholeWhateverTheDelays) {
  constexpr std::size_t slot_bytes = 4096;
  constexpr std::size_t piece_count = 24;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    cuda_->set_seed(seed);
    const auto gpu = open_gpu();
    const auto block = gpu->allocate(slot_bytes * piece_count, 256);
    std::vector<std::vector<std::byte>> slots(2, std::vector<std::byte>(slot_bytes));
    std::vector<std::uint64_t> tickets(2, 0);
    const auto stream = gpu->open_stream();
    for (std::size_t piece = 0; piece < piece_count; ++piece) {
      stream->wait(tickets.at(piece % 2));
      std::fill(slots.at(piece % 2).begin(), slots.at(piece % 2).end(), static_cast<std::byte>(piece + 1));
      copy_one(*stream, run(slots.at(piece % 2), static_cast<std::byte*>(block.get()) + piece * slot_bytes));
      tickets.at(piece % 2) = stream->record();
    }
    stream->wait(tickets.at((piece_count - 1) % 2));
    const auto bytes = read_back(*gpu, block.get(), slot_bytes * piece_count);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      ASSERT_EQ(bytes[i], static_cast<std::byte>(i / slot_bytes + 1)) << seed;
  }
}

}  // namespace
}  // namespace inrush::engine
