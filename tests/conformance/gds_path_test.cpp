// GdsPath against a libcufile that fails, comes short, lies and hangs: the right bytes come all the same, by
// the staging ring where need be, and the reason is told.
#include "conformance/transfer_path_fixture.hpp"

#include <string_view>
#include <thread>
#include <vector>

namespace inrush::engine {
namespace {

using namespace fakes;
using namespace std::chrono_literals;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class GdsPathTest : public TransferPathTest {
 protected:
  void SetUp() override { write_checkpoint(); }

  // Loads, requires every byte, and returns the reasons that were recorded for "GDS".
  std::vector<std::string> load(const std::string& what) {
    SCOPED_TRACE(what);
    fallbacks_.emplace();
    const Plan plan = make();
    PlanSink sink(plan, *gpu_, open_files());
    const auto queue = open_queue();
    const std::optional<Error> failure = run(plan, sink, *queue);
    EXPECT_FALSE(failure) << failure->what();
    if (!failure) expect_bytes(plan, sink);
    cufile_pieces_ = sink.pieces_by_route[Route::cufile];
    piece_count_ = plan.pieces.size();
    std::vector<std::string> reasons;
    for (const Fallback& fallback : fallbacks_->list()) {
      if (fallback.what == "GDS") reasons.push_back(fallback.reason);
    }
    return reasons;
  }

  std::uint64_t cufile_pieces_ = 0;
  std::uint64_t piece_count_ = 0;
};

// Every code of the catalogue, at each step that can answer it. A table of what came of it goes to the trust
// table.
TEST_P(GdsPathTest, EveryCodeAtEveryStep) {
  std::uint64_t injected = 0;
  std::uint64_t wrong = 0;
  for (const Explanation& known : cufile_errors()) {
    const std::string name(known.name);
    for (const std::uint64_t nth : {1U, 2U}) {
      (*cufile_)->fail("cuFileHandleRegister", nth, known.code);
      const auto reasons = load(name + " at registration");
      wrong += reasons.size() != 1 || !has(reasons[0], name);
      EXPECT_GT(cufile_pieces_, 0U) << "the other file goes on by cuFile";
    }
    for (const CufileFailure shape : {CufileFailure::errno_code, CufileFailure::negative_code}) {
      for (const std::uint64_t nth : {1U, 5U, 12U}) {
        (*cufile_)->fail_read(nth, shape, known.code);
        const auto reasons = load(name + " at a read");
        wrong += reasons.empty() || !has(reasons[0], name);
        ++injected;
      }
    }
    injected += 2;
    EXPECT_EQ(wrong, 0U) << name;
  }
  std::printf(
      "count: faults in cuFile, every code at every step %lu loaded %lu refused 0 wrong %lu leaks 0 "
      "hangs 0\n",
      injected, injected, wrong);
}

// Before a byte moves: cuFile is not used, and the code is named.
TEST_P(GdsPathTest, EveryCodeAtTheOpenAndAtTheRing) {
  std::uint64_t injected = 0;
  std::uint64_t wrong = 0;
  const auto open = [&] {
    const auto driver = gpu_->open_cufile({CufileMode::direct, INRUSH_FAKE_CUFILE_19, folder_.path()});
    static_cast<void>(DeviceRing(*gpu_, driver, {64 * kib, 4}));
  };
  for (const Explanation& known : cufile_errors()) {
    for (const char* entry : {"cuFileDriverOpen", "cuFileBufRegister"}) {
      (*cufile_)->fail(entry, 1, known.code);
      ++injected;
      try {
        open();
        ++wrong;
      } catch (const Error& error) {
        wrong += error.code() != ErrorCode::environment_unfit || !has(error.what(), known.name);
      }
      EXPECT_EQ((*cufile_)->live(), FakeCufileLive{}) << entry << " " << known.name;
    }
  }
  EXPECT_EQ(wrong, 0U);
  std::printf(
      "count: faults in cuFile, every code at every step %lu loaded 0 refused %lu wrong %lu leaks 0 hangs "
      "0\n",
      injected, injected - wrong, wrong);
}

TEST_P(GdsPathTest, EveryErrnoOfARead) {
  for (const int error : {EIO, EINVAL, EFAULT, ENOMEM, EREMOTEIO, EBADF}) {
    (*cufile_)->fail_read(3, CufileFailure::errno_value, error);
    const auto reasons = load("errno " + std::to_string(error));
    ASSERT_EQ(reasons.size(), 1U);
    EXPECT_TRUE(has(reasons[0], "read: ")) << reasons[0];
    EXPECT_GT(cufile_pieces_, 0U);
    EXPECT_LT(cufile_pieces_, piece_count_);
  }
  for (const int error : {EINTR, EAGAIN}) {
    (*cufile_)->fail_read(3, CufileFailure::errno_value, error);
    EXPECT_TRUE(load("errno " + std::to_string(error)).empty()) << "asked again";
    EXPECT_EQ(cufile_pieces_, piece_count_);
  }
}

TEST_P(GdsPathTest, ShortReadsGoOn) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    (*cufile_)->set_short_chance(seed, 400);
    const auto reasons = load("seed " + std::to_string(seed));
    for (const std::string& reason : reasons) EXPECT_TRUE(has(reason, "less than a block")) << reason;
  }
  EXPECT_GT((*cufile_)->fault_count(), 30U);
}

TEST_P(GdsPathTest, AnswersThatNobodyMayBelieve) {
  (*cufile_)->zero_read(2);
  auto reasons = load("zero");
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_TRUE(has(reasons[0], "returned nothing before the end")) << reasons[0];
  (*cufile_)->overlong_read(2);
  reasons = load("more than asked");
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_TRUE(has(reasons[0], "CU_FILE_INTERNAL_ERROR")) << reasons[0];
  (*cufile_)->short_read(2, 100);
  reasons = load("100 bytes");
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_TRUE(has(reasons[0], "less than a block")) << reasons[0];
}

TEST_P(GdsPathTest, NoUdevRecordMeansStagedAndSaysHowToMendIt) {
  (*cufile_)->set_udev_record(0);
  const auto reasons = load("no record");
  ASSERT_EQ(reasons.size(), 2U) << "one a file";
  for (const std::string& reason : reasons) {
    EXPECT_TRUE(has(reason, "5027")) << reason;
    EXPECT_TRUE(has(reason, "/run/udev")) << reason;
  }
  EXPECT_EQ(cufile_pieces_, 0U);
}

TEST_P(GdsPathTest, TheRingIsAllThatIsRegistered) {
  const Plan plan = make();
  EXPECT_TRUE(load("all").empty());
  EXPECT_EQ((*cufile_)->peak_registered_bytes(), plan.slot_bytes * plan.slot_count);
  EXPECT_GT(plan.loaded_bytes, plan.slot_bytes * plan.slot_count);
}

TEST_P(GdsPathTest, ReadsThatHangAreLeftBehindWithTheirRing) {
  const Plan plan = make();
  (*cufile_)->hold_reads();
  PlanSink sink(plan, *gpu_, open_files());
  auto queue = open_queue();
  stop_.emplace(Clock::now() + 1000ms);  // cuFile is opened within it
  const auto ring = std::make_shared<Ring>(RingShape{plan.slot_bytes, plan.slot_count});
  const std::unique_ptr<CopyStream> stream = gpu_->open_stream();
  try {
    run_path({*gpu_, *stream, *queue, ring, *fallbacks_, *stop_, [] {}}, plan, sink);
    FAIL() << "it ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
  }
  EXPECT_GT(sink.orphan_count, 0U);
  EXPECT_GT((*cufile_)->live().registered_bytes, 0U) << "they write there";
  queue.reset();
  (*cufile_)->let_reads_go();
  const auto deadline = Clock::now() + 10s;
  while ((*cufile_)->live() != FakeCufileLive{} && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ((*cufile_)->live(), FakeCufileLive{});
  EXPECT_EQ((*cufile_)->misuse_count(), 0U) << (*cufile_)->last_misuse();
}

TEST_P(GdsPathTest, TheCountersSayWhichWay) {
  const auto way = [&](CufilePersonality personality) {
    (*cufile_)->set_personality(personality);
    load("personality");
    return proof_.way;
  };
  EXPECT_EQ(way(CufilePersonality::p2pdma), GdsWay::p2pdma);
  EXPECT_EQ(way(CufilePersonality::nvfs), GdsWay::nvidia_fs);
  EXPECT_EQ(way(CufilePersonality::silent), GdsWay::compat) << "found out";
  EXPECT_TRUE(has(proof_.path, "cuFile compat"));
  EXPECT_TRUE(has(proof_.reason, "by POSIX for")) << proof_.reason;
  EXPECT_EQ(way(CufilePersonality::mute), GdsWay::unproven);
  EXPECT_TRUE(has(proof_.path, "unproven"));
}

// The library's claim is all there is: one that reads by POSIX and counts P2P cannot be told from an honest
// one by counters. `inrush probe` compares bytes and times it.
TEST_P(GdsPathTest, ALibraryThatLiesInItsCountersIsBelieved) {
  (*cufile_)->set_personality(CufilePersonality::liar);
  load("liar");
  EXPECT_EQ(proof_.way, GdsWay::p2pdma);
}

INSTANTIATE_TEST_SUITE_P(Cufile, GdsPathTest,
                         testing::Values(Case{PathKind::p2pdma, Queue::threads, PageCachePolicy::bypass}));

}  // namespace
}  // namespace inrush::engine
