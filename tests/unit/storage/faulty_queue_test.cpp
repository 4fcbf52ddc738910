// The fake itself: a caller that does everything right gets the right bytes through every fault, and each
// fault is counted.
#include "fakes/faulty_queue.hpp"

#include "base/host_pages.hpp"
#include "fakes/temp_folder.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <set>
#include <vector>

namespace inrush::engine {
namespace {

using fakes::FaultCounts;
using fakes::Faults;
using fakes::FaultyQueue;
using fakes::patterned_bytes;
using fakes::TempFolder;

constexpr std::uint64_t piece_bytes = 16 << 10;
constexpr std::uint64_t piece_count = 64;
constexpr std::uint64_t file_bytes = piece_bytes * piece_count;

class FaultyQueueTest : public testing::Test {
 protected:
  FaultyQueueTest()
      : bytes_(patterned_bytes(file_bytes)), file_(store_.open(folder_.write("data.bin", bytes_))) {}

  static std::unique_ptr<FaultyQueue> make_queue(Faults faults) {
    return std::make_unique<FaultyQueue>(std::make_unique<LocalQueue>(LocalQueueOptions{}),
                                         std::move(faults));
  }

  // Reads the file in pieces and continues each until it is whole; the errors that were final.
  std::multiset<int> read_all(FaultyQueue& queue, ReadMode mode) {
    struct Piece {
      std::uint64_t done_bytes = 0;
      ReadMode mode = ReadMode::buffered;
    };
    std::vector<Piece> pieces(piece_count, {0, mode});
    std::multiset<int> errors;
    const auto submit = [&](std::uint64_t tag) {
      Piece& piece = pieces[tag];
      // A direct read continues at an aligned offset and reads the overlap again.
      if (piece.mode == ReadMode::direct) {
        piece.done_bytes = round_down(piece.done_bytes, file_->direct_alignment_bytes());
      }
      const std::uint64_t offset = tag * piece_bytes + piece.done_bytes;
      const auto target = memory_.bytes().subspan(offset, piece_bytes - piece.done_bytes);
      queue.submit({tag, file_, piece.mode, offset, target, nullptr});
    };
    for (std::uint64_t tag = 0; tag < piece_count; ++tag) submit(tag);
    std::array<Completion, 7> completions;
    while (const std::size_t count = queue.wait(completions, Clock::time_point::max())) {
      for (std::size_t i = 0; i < count; ++i) {
        const Completion& completion = completions[i];
        Piece& piece = pieces[completion.tag];
        piece.done_bytes += completion.moved_bytes;
        if (completion.error == EINVAL && piece.mode == ReadMode::direct) {
          piece.mode = ReadMode::buffered;
        } else if (completion.error != 0 && completion.error != EINTR && completion.error != EAGAIN) {
          errors.insert(completion.error);
          continue;
        } else if (completion.error == 0 && completion.moved_bytes == 0) {
          errors.insert(0);
          continue;
        }
        if (piece.done_bytes < piece_bytes) submit(completion.tag);
      }
    }
    return errors;
  }

  [[nodiscard]] bool all_equal() const {
    return std::equal(bytes_.begin(), bytes_.end(), memory_.bytes().begin());
  }

  TempFolder folder_;
  LocalStore store_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<File> file_;
  HostPages memory_{file_bytes};
};

TEST_F(FaultyQueueTest, EveryFaultHappensAndIsCounted) {
  FaultCounts seen;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
      std::fill(memory_.bytes().begin(), memory_.bytes().end(), std::byte{0});
      const auto queue = make_queue({.seed = seed,
                                     .short_chance = 0.2,
                                     .unaligned_short_chance = 0.2,
                                     .eintr_chance = 0.1,
                                     .eagain_chance = 0.1,
                                     .direct_einval_chance = 0.1,
                                     .late_chance = 0.3,
                                     .reorder = true});
      SCOPED_TRACE(queue->seed_text());
      EXPECT_EQ(read_all(*queue, mode), std::multiset<int>{});
      EXPECT_TRUE(all_equal());
      EXPECT_EQ(queue->in_flight_count(), 0U);
      const FaultCounts& counts = queue->counts();
      seen.short_reads += counts.short_reads;
      seen.unaligned_shorts += counts.unaligned_shorts;
      seen.eintr += counts.eintr;
      seen.eagain += counts.eagain;
      seen.direct_einval += counts.direct_einval;
      seen.late += counts.late;
      seen.reordered += counts.reordered;
    }
  }
  EXPECT_GT(std::min({seen.short_reads, seen.unaligned_shorts, seen.eintr, seen.eagain, seen.direct_einval,
                      seen.late, seen.reordered}),
            0U)
      << seen;
}

TEST_F(FaultyQueueTest, AByteThatCannotBeReadFailsEveryReadOfIt) {
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
    constexpr std::uint64_t bad_byte = 5 * piece_bytes + 5000;
    const auto queue = make_queue({.eio_at = {{file_->path(), bad_byte}}});
    EXPECT_EQ(read_all(*queue, mode), std::multiset<int>{EIO});
    EXPECT_EQ(queue->counts().eio, 1U);
    // What lies before it in the same piece did arrive.
    EXPECT_TRUE(std::equal(bytes_.begin(), bytes_.begin() + 5 * piece_bytes + 4096, memory_.bytes().begin()));
    EXPECT_FALSE(all_equal());
  }
}

TEST_F(FaultyQueueTest, AnEarlyEndCutsWhatComesAfter) {
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::direct}) {
    const auto queue = make_queue({.end_at = {{file_->path(), (piece_count - 2) * piece_bytes}}});
    EXPECT_EQ(read_all(*queue, mode), (std::multiset<int>{0, 0}));
    EXPECT_EQ(queue->counts().early_ends, 2U);
  }
  const auto queue = make_queue({.end_at = {{file_->path(), 1000}}});
  std::span<std::byte> target = memory_.bytes().first(piece_bytes);
  queue->submit({1, file_, ReadMode::direct, 0, target, nullptr});
  Completion completion;
  ASSERT_EQ(queue->wait({&completion, 1}, Clock::time_point::max()), 1U);
  EXPECT_EQ(completion, (Completion{1, 1000, 0}));
  EXPECT_TRUE(std::equal(bytes_.begin(), bytes_.begin() + 1000, target.begin()));
  EXPECT_FALSE(std::equal(bytes_.begin() + 1000, bytes_.begin() + 1100, target.begin() + 1000));
}

// Tags of all completions that come within that time, in their order.
std::vector<std::uint64_t> tags_within(FaultyQueue& queue, std::chrono::milliseconds time) {
  std::vector<std::uint64_t> tags;
  const Clock::time_point until = Clock::now() + time;
  std::array<Completion, 4> completions;
  while (const std::size_t count = queue.wait(completions, until)) {
    for (std::size_t i = 0; i < count; ++i) tags.push_back(completions[i].tag);
  }
  return tags;
}

TEST_F(FaultyQueueTest, SlowReadsComeLast) {
  const auto queue = make_queue({.slow_every = 4, .slow_time = std::chrono::milliseconds(300)});
  for (std::uint64_t tag = 1; tag <= 8; ++tag)
    queue->submit({tag, file_, ReadMode::buffered, 0, memory_.bytes().subspan(tag * 16, 16), nullptr});
  std::vector<std::uint64_t> tags = tags_within(*queue, std::chrono::seconds(60));
  ASSERT_EQ(tags.size(), 8U);
  std::sort(tags.begin() + 6, tags.end());
  EXPECT_EQ(tags[6], 4U);
  EXPECT_EQ(tags[7], 8U);
  EXPECT_EQ(queue->counts().slow, 2U);
  EXPECT_EQ(queue->in_flight_count(), 0U);
}

TEST_F(FaultyQueueTest, ReadsThatNeverComeStayInFlight) {
  auto queue = make_queue({.never_from = 3});
  for (std::uint64_t tag = 1; tag <= 5; ++tag)
    queue->submit({tag, file_, ReadMode::buffered, 0, memory_.bytes().subspan(tag * 16, 16), nullptr});
  std::vector<std::uint64_t> tags = tags_within(*queue, std::chrono::milliseconds(100));
  std::sort(tags.begin(), tags.end());
  EXPECT_EQ(tags, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(queue->in_flight_count(), 3U);
  EXPECT_EQ(queue->counts().never, 3U);
  queue.reset();  // waits for none of them
}

TEST_F(FaultyQueueTest, TheSameSeedMakesTheSameRefusals) {
  const auto refusals = [&](std::uint64_t seed) {
    const auto queue = make_queue({.seed = seed, .eintr_chance = 0.5});
    for (std::uint64_t tag = 0; tag < piece_count; ++tag) {
      queue->submit({tag, file_, ReadMode::buffered, 0, memory_.bytes().subspan(tag * 16, 16), nullptr});
    }
    std::set<std::uint64_t> refused;
    std::array<Completion, 64> completions;
    while (const std::size_t count = queue->wait(completions, Clock::time_point::max())) {
      for (std::size_t i = 0; i < count; ++i) {
        if (completions[i].error == EINTR) refused.insert(completions[i].tag);
      }
    }
    return refused;
  };
  EXPECT_EQ(refusals(7), refusals(7));
  EXPECT_NE(refusals(7), refusals(8));
}

}  // namespace
}  // namespace inrush::engine
