// What every ReadQueue does, whatever it reads with.
#include "storage/read_queue.hpp"

#include "base/host_pages.hpp"
#include "fakes/faulty_queue.hpp"
#include "fakes/memory_store.hpp"
#include "fakes/slow_file.hpp"
#include "fakes/temp_folder.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <future>
#include <map>
#include <thread>

namespace inrush::engine {
namespace {

using fakes::FaultyQueue;
using fakes::patterned_bytes;
using fakes::SlowFile;
using fakes::TempFolder;
using namespace std::chrono_literals;

constexpr auto forever = Clock::time_point::max();
constexpr std::uint64_t file_bytes = (1 << 20) + 777;

struct QueueKind {
  std::string name;
  std::unique_ptr<ReadQueue> (*make)();
};
std::ostream& operator<<(std::ostream& out, const QueueKind& kind) { return out << kind.name; }

std::unique_ptr<ReadQueue> make_local(IoUring io_uring, bool waiter_reads = false) {
  LocalQueueOptions options;
  options.io_uring = io_uring;
  options.waiter_reads = waiter_reads;
  options.ring_depth = 8;  // fewer than some tests have in flight
  return std::make_unique<LocalQueue>(std::move(options));
}

const std::vector<QueueKind> queue_kinds = {
    {"Threads", [] { return make_local(IoUring::off); }},
    {"IoUring", [] { return make_local(IoUring::automatic); }},
    {"WaiterReads", [] { return make_local(IoUring::automatic, true); }},
    {"FaultyWithoutFaults",
     []() -> std::unique_ptr<ReadQueue> {
       return std::make_unique<FaultyQueue>(make_local(IoUring::automatic), fakes::Faults{});
     }},
};

std::size_t entry_count(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// A thread that was joined may stand in /proc for a moment more, also when `count` was taken.
bool thread_count_returns_to(std::size_t count) {
  const auto deadline = Clock::now() + 10s;
  while (entry_count("/proc/self/task") > count) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class ReadQueueConformance : public testing::TestWithParam<QueueKind> {
 protected:
  void SetUp() override {
    bytes_ = patterned_bytes(file_bytes);
    file_ = store_.open(folder_.write("data.bin", bytes_));
  }

  [[nodiscard]] static std::unique_ptr<ReadQueue> make_queue() { return GetParam().make(); }

  // Waits for `count` completions, by tag.
  static std::map<std::uint64_t, Completion> wait_for(ReadQueue& queue, std::size_t count) {
    std::map<std::uint64_t, Completion> done;
    std::array<Completion, 16> completions;
    while (done.size() < count) {
      const std::size_t arrived = queue.wait(completions, forever);
      EXPECT_GT(arrived, 0U);
      if (arrived == 0) break;
      for (std::size_t i = 0; i < arrived; ++i) {
        EXPECT_TRUE(done.emplace(completions[i].tag, completions[i]).second)
            << "tag twice: " << completions[i].tag;
      }
    }
    return done;
  }

  Completion read_one(ReadMode mode, std::uint64_t offset, std::span<std::byte> target) {
    const auto queue = make_queue();
    queue->submit({42, file_, mode, offset, target, nullptr});
    return wait_for(*queue, 1)[42];
  }

  void expect_bytes(std::span<const std::byte> got, std::uint64_t offset) {
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset)));
  }

  TempFolder folder_;
  LocalStore store_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<File> file_;
};

TEST_P(ReadQueueConformance, ReadsWhatIsThere) {
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::populate}) {
    std::vector<std::byte> target(70'001);
    EXPECT_EQ(read_one(mode, 4097, target), (Completion{42, target.size(), 0}));
    expect_bytes(target, 4097);
  }
}

TEST_P(ReadQueueConformance, ReadsFilesThatHaveNoDescriptor) {
  fakes::MemoryStore memory_store;
  memory_store.set("/data.bin", std::string(reinterpret_cast<const char*>(bytes_.data()), bytes_.size()));
  file_ = memory_store.open("/data.bin");
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::populate}) {
    std::vector<std::byte> target(70'001);
    EXPECT_EQ(read_one(mode, 4097, target), (Completion{42, target.size(), 0}));
    expect_bytes(target, 4097);
    EXPECT_EQ(read_one(mode, file_bytes - 1, target), (Completion{42, 1, 0}));
    EXPECT_EQ(read_one(mode, file_bytes, target), (Completion{42, 0, 0}));
  }
}

TEST_P(ReadQueueConformance, ReadsDirectlyWhatIsAligned) {
  const std::uint32_t alignment = file_->direct_alignment_bytes();
  ASSERT_NE(alignment, 0U) << file_->direct_refusal();
  HostPages memory(1 << 20);
  const auto target = memory.bytes().first(std::uint64_t{alignment} * 16);
  EXPECT_EQ(read_one(ReadMode::direct, alignment, target), (Completion{42, target.size(), 0}));
  expect_bytes(target, alignment);
}

TEST_P(ReadQueueConformance, IsShortAtTheEndAndEmptyPastIt) {
  HostPages memory(1 << 20);
  const std::uint64_t last_page = round_down(file_bytes, 4096);
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::populate, ReadMode::direct}) {
    EXPECT_EQ(read_one(mode, last_page, memory.bytes().first(8192)),
              (Completion{42, file_bytes - last_page, 0}));
    expect_bytes(memory.bytes().first(file_bytes - last_page), last_page);
    EXPECT_EQ(read_one(mode, last_page + 4096, memory.bytes().first(4096)), (Completion{42, 0, 0}));
  }
}

TEST_P(ReadQueueConformance, ErrorsComeBackAsCompletions) {
  // An address that is not ours.
  const std::span<std::byte> nowhere(reinterpret_cast<std::byte*>(std::uintptr_t{4096}), 4096);
  EXPECT_EQ(read_one(ReadMode::buffered, 0, nowhere), (Completion{42, 0, EFAULT}));
  EXPECT_EQ(read_one(ReadMode::direct, 0, nowhere), (Completion{42, 0, EFAULT}));
}

TEST_P(ReadQueueConformance, ManyInFlightEachComesBackOnce) {
  const auto queue = make_queue();
  constexpr std::uint64_t piece_bytes = 4096;
  constexpr std::uint64_t piece_count = 200;
  HostPages memory(piece_bytes * piece_count);
  for (std::uint64_t tag = 0; tag < piece_count; ++tag) {
    const ReadMode mode = tag % 2 == 0   ? ReadMode::direct
                          : tag % 3 == 0 ? ReadMode::populate
                                         : ReadMode::buffered;
    queue->submit({tag, file_, mode, tag * piece_bytes,
                   memory.bytes().subspan(tag * piece_bytes, piece_bytes), nullptr});
  }
  EXPECT_EQ(queue->in_flight_count(), piece_count);
  for (const auto& [tag, completion] : wait_for(*queue, piece_count)) {
    EXPECT_EQ(completion, (Completion{tag, piece_bytes, 0}));
  }
  EXPECT_EQ(queue->in_flight_count(), 0U);
  expect_bytes(memory.bytes().first(piece_bytes * piece_count), 0);
}

TEST_P(ReadQueueConformance, WaitReturnsWhenThereIsNothingOrTimeIsUp) {
  const auto queue = make_queue();
  Completion completion;
  EXPECT_EQ(queue->wait({&completion, 1}, forever), 0U) << "nothing in flight";
  const auto slow = std::make_shared<SlowFile>(patterned_bytes(100));
  std::vector<std::byte> target(100);
  queue->submit({1, slow, ReadMode::buffered, 0, target, nullptr});
  slow->wait_until_blocked(1);
  EXPECT_EQ(queue->wait({&completion, 1}, Clock::now()), 0U);
  EXPECT_EQ(queue->wait({&completion, 1}, Clock::now() + 2ms), 0U);
  EXPECT_EQ(queue->in_flight_count(), 1U);
  slow->release();
  EXPECT_EQ(queue->wait({&completion, 1}, forever), 1U);
  EXPECT_EQ(completion, (Completion{1, 100, 0}));
  EXPECT_EQ(queue->in_flight_count(), 0U);
}

TEST_P(ReadQueueConformance, LetsGoOfFileAndTargetBeforeTheCompletion) {
  const auto queue = make_queue();
  HostPages memory(1 << 20);
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
    auto owner = std::make_shared<int>(0);
    queue->submit({1, file_, mode, 0, memory.bytes().first(4096), owner});
    EXPECT_EQ(wait_for(*queue, 1).at(1).moved_bytes, 4096U);
    EXPECT_EQ(owner.use_count(), 1);
    EXPECT_EQ(file_.use_count(), 1);
  }
}

TEST_P(ReadQueueConformance, EndsWhileReadsAreStuckAndKeepsTheirTarget) {
  const auto slow = std::make_shared<SlowFile>(patterned_bytes(100));
  std::promise<std::vector<std::byte>> released;
  {
    auto queue = make_queue();
    // The target is seen for the last time by its owner's deleter, after the read.
    const std::shared_ptr<std::vector<std::byte>> owner(new std::vector<std::byte>(100),
                                                        [&](std::vector<std::byte>* target) {
                                                          released.set_value(std::move(*target));
                                                          delete target;
                                                        });
    queue->submit({1, slow, ReadMode::buffered, 0, *owner, owner});
    slow->wait_until_blocked(1);
    queue.reset();
  }
  auto target = released.get_future();
  EXPECT_EQ(target.wait_for(0s), std::future_status::timeout)
      << "the target went while the read was in flight";
  slow->release();
  EXPECT_EQ(target.get(), patterned_bytes(100));
}

TEST_P(ReadQueueConformance, RequestsThatNeverBeganAreDropped) {
  constexpr std::uint64_t request_count = 20;  // more than there are threads
  const auto slow = std::make_shared<SlowFile>(patterned_bytes(100));
  const auto owner = std::make_shared<std::array<std::byte, 100 * request_count>>();
  auto queue = make_queue();
  for (std::uint64_t tag = 0; tag < request_count; ++tag) {
    queue->submit({tag, slow, ReadMode::buffered, 0, std::span(*owner).subspan(tag * 100, 100), owner});
  }
  slow->wait_until_blocked(4);
  EXPECT_EQ(owner.use_count(), 1 + static_cast<long>(request_count));
  queue.reset();
  EXPECT_EQ(owner.use_count(), 1 + 4);
  slow->release();
}

TEST_P(ReadQueueConformance, AnIdleQueueLeavesNothing) {
  HostPages memory(1 << 20);
  ASSERT_NE(file_->direct_alignment_bytes(), 0U);
  make_queue().reset();  // ThreadSanitizer starts a thread of its own with the first of ours
  const std::size_t thread_count = entry_count("/proc/self/task");
  const std::size_t fd_count = entry_count("/proc/self/fd");
  for (int round = 0; round < 20; ++round) {
    const auto queue = make_queue();
    queue->submit({1, file_, ReadMode::buffered, 0, memory.bytes().first(4096), nullptr});
    queue->submit({2, file_, ReadMode::direct, 4096, memory.bytes().subspan(4096, 4096), nullptr});
    EXPECT_EQ(wait_for(*queue, 2).size(), 2U);
  }
  EXPECT_EQ(entry_count("/proc/self/fd"), fd_count);
  EXPECT_TRUE(thread_count_returns_to(thread_count));
}

INSTANTIATE_TEST_SUITE_P(Queues, ReadQueueConformance, testing::ValuesIn(queue_kinds),
                         [](const testing::TestParamInfo<QueueKind>& kind) { return kind.param.name; });

}  // namespace
}  // namespace inrush::engine
