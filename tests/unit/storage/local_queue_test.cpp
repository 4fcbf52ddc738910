// What LocalQueue does where the machine refuses something.
#include "storage/local_queue.hpp"

#include "base/host_pages.hpp"
#include "base/unique_fd.hpp"
#include "fakes/aliased_memory.hpp"
#include "fakes/child_process.hpp"
#include "fakes/slow_file.hpp"
#include "fakes/temp_folder.hpp"
#include "storage/local_store.hpp"
#include "storage/residency.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <future>

namespace inrush::engine {
namespace {

using fakes::forbid_system_calls;
using fakes::patterned_bytes;
using fakes::run_in_child;
using fakes::TempFolder;

constexpr auto forever = Clock::time_point::max();

// Reads the whole file directly in pieces of 64 KiB into `memory`, and says what went wrong.
std::string read_directly(LocalQueue& queue, const std::shared_ptr<File>& file, std::span<std::byte> memory) {
  constexpr std::uint64_t piece_bytes = 64 << 10;
  const std::uint64_t size_bytes = file->status().size_bytes;
  for (std::uint64_t offset = 0; offset < size_bytes; offset += piece_bytes) {
    queue.submit({offset, file, ReadMode::direct, offset, memory.subspan(offset, piece_bytes), nullptr});
  }
  std::array<Completion, 8> completions;
  while (const std::size_t count = queue.wait(completions, forever)) {
    for (std::size_t i = 0; i < count; ++i) {
      const Completion& done = completions[i];
      if (done.error != 0) return "read: error " + std::to_string(done.error);
      if (done.moved_bytes != std::min(piece_bytes, size_bytes - done.tag)) return "read: short";
    }
  }
  std::vector<std::byte> expected(size_bytes);
  read_fully(*file, 0, expected);
  return std::equal(expected.begin(), expected.end(), memory.begin()) ? "" : "other bytes";
}

// "io_uring: io_uring_setup: Operation not permitted ...", one line each.
std::string fallback_text(const Fallbacks& fallbacks) {
  std::string text;
  for (const Fallback& fallback : fallbacks.list()) text += fallback.what + ": " + fallback.reason + "\n";
  return text;
}

struct Outcome {
  std::string failure;
  std::string fallbacks;
};

class LocalQueueTest : public testing::Test {
 protected:
  LocalQueueTest() : file_(store_.open(folder_.write("data.bin", patterned_bytes(1'000'001)))) {}

  Outcome read_all() { return read_all(std::make_shared<HostPages>(2 << 20)); }

  // A direct read of everything by a queue with `memory` as a fixed buffer.
  template <typename Memory>
  Outcome read_all(const std::shared_ptr<Memory>& memory) {
    const auto fallbacks = std::make_shared<Fallbacks>();
    LocalQueueOptions options;
    options.fallbacks = fallbacks;
    options.staging = {memory->bytes(), memory};
    LocalQueue queue(std::move(options));
    std::string failure = read_directly(queue, file_, memory->bytes());
    return {failure, fallback_text(*fallbacks)};
  }

  TempFolder folder_;
  LocalStore store_;
  std::shared_ptr<File> file_;
};

TEST_F(LocalQueueTest, FixedBuffersAreUsedWithoutAFallback) {
  const Outcome outcome = read_all();
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.fallbacks, "");
}

TEST_F(LocalQueueTest, StagingMayGrowWhileTheQueueLives) {
  const auto fallbacks = std::make_shared<Fallbacks>();
  LocalQueueOptions options;
  options.fallbacks = fallbacks;
  LocalQueue queue(std::move(options));
  for (int round = 0; round < 5; ++round) {
    const auto memory = std::make_shared<HostPages>(2 << 20);
    queue.register_staging({memory->bytes(), memory});
    EXPECT_EQ(read_directly(queue, file_, memory->bytes()), "");
    EXPECT_GT(memory.use_count(), 1) << "registered memory must not be unmapped under the ring";
  }
  EXPECT_EQ(fallback_text(*fallbacks), "");
}

TEST_F(LocalQueueTest, StagingIsReleasedWithTheQueue) {
  auto memory = std::make_shared<HostPages>(2 << 20);
  LocalQueueOptions options;
  options.staging = {memory->bytes(), memory};
  { const LocalQueue queue(std::move(options)); }
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(LocalQueueTest, BuffersAboveOneGibAreSplit) {
  const Outcome outcome = read_all(std::make_shared<fakes::AliasedMemory>((1ULL << 30) + (64 << 20)));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.fallbacks, "");
}

// The only reader is held up by a file that does not answer, so whoever reads the rest is the one that waits.
TEST_F(LocalQueueTest, TheOneThatWaitsReadsWhatIsInMemory) {
  const auto slow = std::make_shared<fakes::SlowFile>(patterned_bytes(4096));
  LocalQueueOptions options;
  options.reader_count = 1;
  options.waiter_reads = true;
  LocalQueue queue(std::move(options));
  std::vector<std::byte> memory(64 << 10);
  const std::span<std::byte> target(memory);
  queue.submit({0, slow, ReadMode::buffered, 0, target.first(100), nullptr});
  slow->wait_until_blocked(1);
  for (std::uint64_t tag = 1; tag <= 10; ++tag)
    queue.submit({tag, file_, ReadMode::buffered, tag * 4096, target.subspan(tag * 4096, 4096), nullptr});
  std::array<Completion, 16> completions;
  const auto soon = [] { return Clock::now() + std::chrono::seconds(30); };
  for (std::uint64_t tag = 1; tag <= 10; ++tag) {
    ASSERT_EQ(queue.wait(completions, soon()), 1U) << "does this file system know RWF_NOWAIT?";
    EXPECT_EQ(completions[0], (Completion{tag, 4096, 0}));
  }
  std::vector<std::byte> expected(10 * 4096);
  read_fully(*file_, 4096, expected);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory.begin() + 4096));
  // A file without a descriptor is for the reader.
  queue.submit({11, slow, ReadMode::buffered, 0, target.first(100), nullptr});
  EXPECT_EQ(queue.wait(completions, Clock::now() + std::chrono::milliseconds(20)), 0U);
  slow->release();
  std::size_t done = 0;
  while (const std::size_t count = queue.wait(completions, forever)) done += count;
  EXPECT_EQ(done, 2U);
}

// What its descriptor leads to has nothing to give without a wait, and reads by others say on which thread
// they came.
class SilentFile final : public File {
 public:
  SilentFile() {
    std::array<int, 2> ends = {-1, -1};
    EXPECT_EQ(::pipe(ends.data()), 0);
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
  }
  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] FileStatus status() const override { return {}; }
  [[nodiscard]] ReadOutcome read(ReadMode /*mode*/, std::uint64_t /*offset*/,
                                 std::span<std::byte> target) const noexcept override {
    reader_ = ::gettid();
    return {target.size(), 0};
  }
  [[nodiscard]] int descriptor(ReadMode /*mode*/) const noexcept override { return out_.get(); }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override { return 0; }
  [[nodiscard]] std::string direct_refusal() const override { return "a pipe"; }
  [[nodiscard]] bool is_resident(ByteRange /*range*/) const noexcept override { return true; }
  [[nodiscard]] pid_t reader() const { return reader_; }

 private:
  const std::string path_ = "pipe";
  UniqueFd out_;
  UniqueFd in_;
  mutable std::atomic<pid_t> reader_ = 0;
};

TEST_F(LocalQueueTest, TheOneThatWaitsNeverWaitsForStorage) {
  const auto pipe = std::make_shared<SilentFile>();
  LocalQueueOptions options;
  options.waiter_reads = true;
  LocalQueue queue(std::move(options));
  std::vector<std::byte> memory(4096);
  queue.submit({1, pipe, ReadMode::buffered, 0, memory, nullptr});
  std::array<Completion, 4> completions;
  ASSERT_EQ(queue.wait(completions, forever), 1U);
  EXPECT_EQ(completions[0], (Completion{1, 4096, 0}));
  EXPECT_NE(pipe->reader(), ::gettid());
}

TEST_F(LocalQueueTest, OnlyWhatIsInMemoryIsReadWithoutAWait) {
  const int fd = file_->descriptor(ReadMode::buffered);
  std::vector<std::byte> memory(4096);
  std::vector<std::byte> expected(4096);
  read_fully(*file_, 8192, expected);
  if (read_resident(fd, 8192, memory) == 4096) {  // tmpfs before Linux 6.6 cannot be asked
    EXPECT_EQ(memory, expected);
  }
  EXPECT_EQ(read_resident(fd, file_->status().size_bytes, memory), 0U) << "the end of the file";
  EXPECT_EQ(read_resident(-1, 0, memory), 0U);
}

// Each system call of io_uring, refused as containers and old kernels refuse it.
class IoUringRefused : public LocalQueueTest, public testing::WithParamInterface<std::pair<long, int>> {};

TEST_P(IoUringRefused, ThreadsReadAndTheReasonIsRecorded) {
  const auto [number, error] = GetParam();
  ASSERT_NE(file_->direct_alignment_bytes(), 0U);
  const std::string text = run_in_child([&, call = number, refusal = error] {
    forbid_system_calls({call}, refusal);
    const Outcome outcome = read_all();
    return outcome.failure + "|" + outcome.fallbacks;
  });
  EXPECT_TRUE(text.starts_with("|io_uring: ") || text.starts_with("|fixed buffers: ")) << text;
  if (number == SYS_io_uring_setup || number == SYS_io_uring_enter) {
    const std::string advice = error == ENOMEM ? "ulimit -l" : "seccomp profile";
    EXPECT_NE(text.find(advice), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(SystemCalls, IoUringRefused,
                         testing::Values(std::pair<long, int>{SYS_io_uring_setup, EPERM},
                                         std::pair<long, int>{SYS_io_uring_setup, ENOSYS},
                                         std::pair<long, int>{SYS_io_uring_setup, ENOMEM},
                                         std::pair<long, int>{SYS_io_uring_enter, EPERM},
                                         std::pair<long, int>{SYS_io_uring_register, EPERM},
                                         std::pair<long, int>{SYS_eventfd2, ENOSYS}));

TEST_F(LocalQueueTest, EnterRefusedDuringALoadGoesToThreads) {
  ASSERT_NE(file_->direct_alignment_bytes(), 0U);
  const std::string text = run_in_child([&] {
    const auto fallbacks = std::make_shared<Fallbacks>();
    LocalQueueOptions options;
    options.fallbacks = fallbacks;
    LocalQueue queue(std::move(options));
    HostPages memory(2 << 20);
    std::string failure = read_directly(queue, file_, memory.bytes());
    forbid_system_calls({SYS_io_uring_enter}, EPERM);
    for (int round = 0; round < 3; ++round) failure += read_directly(queue, file_, memory.bytes());
    return failure + "|" + fallback_text(*fallbacks);
  });
  EXPECT_EQ(text, "|io_uring: io_uring_enter during a load: Operation not permitted\n");
}

TEST_F(LocalQueueTest, FixedBuffersAboveTheLockedMemoryLimitFallBackToPlainReads) {
  ASSERT_NE(file_->direct_alignment_bytes(), 0U);
  const std::string text = run_in_child([&] {
    const rlimit limit{64 << 10, 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return std::string("setrlimit");
    // Root bypasses the limit.
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0 && ::setuid(nobody) != 0) return std::string("setuid");
    const Outcome outcome = read_all();
    return outcome.failure + "|" + outcome.fallbacks;
  });
  EXPECT_TRUE(text.starts_with("|fixed buffers: register 2.10 MB as a fixed buffer: Cannot allocate memory"))
      << text;
}

// A "file" whose direct descriptor is a pipe: io_uring has the read in flight until somebody writes.
class PipeFile final : public File {
 public:
  PipeFile() {
    std::array<int, 2> ends = {};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    read_end_ = UniqueFd(ends[0]);
    write_end_ = UniqueFd(ends[1]);
  }
  void write_byte() const { EXPECT_EQ(::write(write_end_.get(), "x", 1), 1); }

  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] FileStatus status() const override { return {}; }
  [[nodiscard]] ReadOutcome read(ReadMode, std::uint64_t, std::span<std::byte>) const noexcept override {
    return {0, EIO};
  }
  [[nodiscard]] int descriptor(ReadMode) const noexcept override { return read_end_.get(); }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override { return 512; }
  [[nodiscard]] std::string direct_refusal() const override { return {}; }
  [[nodiscard]] bool is_resident(ByteRange) const noexcept override { return false; }

 private:
  const std::string path_ = "pipe";
  UniqueFd read_end_;
  UniqueFd write_end_;
};

TEST_F(LocalQueueTest, ReadsOfIoUringThatAreStuckOutliveTheQueue) {
  const auto pipe = std::make_shared<PipeFile>();
  std::promise<std::byte> released;
  auto queue = std::make_unique<LocalQueue>(LocalQueueOptions{});
  ASSERT_TRUE(queue->has_io_uring());
  {
    const std::shared_ptr<std::byte> owner(new std::byte{}, [&](std::byte* target) {
      released.set_value(*target);
      delete target;
    });
    queue->submit({1, pipe, ReadMode::direct, 0, {owner.get(), 1}, owner});
  }
  Completion completion;
  // A second read proves that the ring took the first: both are on the ring's thread, in order.
  HostPages memory(4096);
  queue->submit({2, file_, ReadMode::direct, 0, memory.bytes().first(4096), nullptr});
  ASSERT_EQ(queue->wait({&completion, 1}, forever), 1U);
  EXPECT_EQ(completion, (Completion{2, 4096, 0}));
  EXPECT_EQ(queue->in_flight_count(), 1U);
  queue.reset();
  auto target = released.get_future();
  EXPECT_EQ(target.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  pipe->write_byte();
  EXPECT_EQ(target.get(), std::byte{'x'});
}

}  // namespace
}  // namespace inrush::engine
