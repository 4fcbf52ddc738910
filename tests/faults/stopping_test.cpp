// Loads that are stopped: cancelled, interrupted or out of time at each read; reads that do not return;
// signals to the command at any moment.
#include "faults/fault_fixture.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace inrush::faults {
namespace {

using namespace std::chrono_literals;

// Reads wait here until they are let go: a disk that stalls.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

class StoppedLoadTest : public DeviceFaultTest {
 protected:
  StoppedLoadTest() {
    write_model();
    header_reads_ = 2 * checkpoint_.files().size();
  }

  FaultCase make(const std::string& kind, ErrorCode code) {
    FaultCase tried{.kind = kind, .number = next_number_++};
    tried.rules.is_cold = tried.number % 3 == 0;
    if (tried.number % 4 >= 2) tried.request.page_cache = PageCachePolicy::bypass;
    tried.expected.codes = {code};
    return tried;
  }

  std::uint64_t header_reads_ = 0;
  std::uint64_t next_number_ = 0;
};

TEST_P(StoppedLoadTest, CancelledAtEachPiece) {
  for (int round = 0; round < 2; ++round) {
    const std::uint64_t reads = count_calls({}).reads;
    for (std::uint64_t nth = header_reads_ + 1; nth <= reads; ++nth) {
      FaultCase tried = make("cancelled", ErrorCode::cancelled);
      // The path's thread may be at its n-th read before start() has returned the Load.
      auto load = std::make_shared<std::atomic<Load*>>(nullptr);
      tried.rules.read = [=](const ReadCall& call) -> ReadFate {
        if (call.number != nth) return {};
        return {.before = [=] {
          while (load->load() == nullptr) std::this_thread::yield();
          load->load()->cancel();
        }};
      };
      // Pieces wait for memory, which start() allocates: an early read may be past before anybody can cancel.
      tried.started = [=](Load& started) { load->store(&started); };
      run(std::move(tried));
    }
  }
}

TEST_P(StoppedLoadTest, InterruptedAtEachQuestion) {
  std::uint64_t questions = 0;
  LoadRequest counting;
  counting.interrupted = [&] { return ++questions == 0; };
  static_cast<void>(count_calls({}, counting));
  for (std::uint64_t nth = 1; nth <= questions; ++nth) {
    FaultCase tried = make("interrupted", ErrorCode::cancelled);
    auto asked = std::make_shared<std::uint64_t>(0);
    tried.request.interrupted = [=] { return ++*asked == nth; };
    tried.is_outside = true;
    run(std::move(tried));
  }
}

TEST_P(StoppedLoadTest, TheDeadlinePassesWhileReadsStall) {
  const std::uint64_t reads = count_calls({}).reads;
  for (std::uint64_t nth = header_reads_ + 1; nth <= reads; ++nth) {
    FaultCase tried = make("reads stall", ErrorCode::timed_out);
    tried.rules.is_cold = false;  // a read of io_uring cannot be held here
    tried.request.deadline = 40ms;
    tried.expected.may_load = false;
    tried.expected.words = {"of "};
    tried.expected.is_usable_afterwards = false;  // while its reads hang, with their threads
    auto gate = std::make_shared<Gate>();
    tried.rules.read = [=](const ReadCall& call) -> ReadFate {
      return call.number >= nth ? ReadFate{.before = [=] { gate->pass(); }} : ReadFate{};
    };
    tried.disarm = [=] { gate->open(); };
    run(std::move(tried));  // on a busy machine the deadline may pass before that read
  }
}

// One of eight reads takes longer than all others together; everything comes all the same.
TEST_P(StoppedLoadTest, OneReadOfEightIsSlow) {
  for (int i = 0; i < 6; ++i) {
    FaultCase tried = make("slow read", ErrorCode::internal);
    tried.rules.read = [](const ReadCall& call) -> ReadFate {
      return call.number % 8 == 0 ? ReadFate{.before = [] { std::this_thread::sleep_for(5ms); }} : ReadFate{};
    };
    tried.expected.codes = {};
    EXPECT_GT(run(std::move(tried)), 0U);
  }
}

TEST_P(StoppedLoadTest, ADeadlineAtAnyTime) {
  for (std::uint64_t i = 0; i < 40; ++i) {
    FaultCase tried = make("deadline", ErrorCode::timed_out);
    tried.request.deadline = std::chrono::microseconds(1 + i * i * 5);
    tried.is_outside = true;
    run(std::move(tried));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StoppedLoadTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

#ifdef INRUSH_COMMAND
// The command as a user stops it.
class SignalTest : public FaultTest {
 protected:
  SignalTest() { write_model(3, 2000 * kib); }

  struct Ended {
    int status = 0;
    std::string output;
  };

  // Starts the command, sends the signal after that time, and waits for it.
  Ended stop(int signal_number, std::chrono::microseconds after) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const std::string path = folder_.path();
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
      ::execl(INRUSH_COMMAND, "inrush", "load", path.c_str(), "--device", "cpu", "--json", "--check",
              nullptr);
      ::_exit(99);
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(after);
    ::kill(child, signal_number);
    Ended ended;
    std::array<char, 4096> part = {};
    for (ssize_t count = 0; (count = ::read(ends[0], part.data(), part.size())) > 0;)
      ended.output.append(part.data(), static_cast<std::size_t>(count));
    ::close(ends[0]);
    ::waitpid(child, &ended.status, 0);
    return ended;
  }
};

TEST_F(SignalTest, AtAnyMoment) {
  FaultCounts counts;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(WEXITSTATUS(stop(0, 0us).status), 0);  // signal 0 is none
  const auto whole =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const std::uint64_t moments = scaled(100);
  for (std::uint64_t i = 0; i < moments; ++i) {
    const HangGuard guard(repeat_text("signal", i));
    const int signal_number = i % 2 == 0 ? SIGINT : SIGTERM;
    const Ended ended = stop(signal_number, whole * static_cast<long>(i) / static_cast<long>(moments));
    // Before the command has set its handlers the signal ends it as it ends any program.
    const bool is_killed = WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == signal_number;
    const bool is_stopped = WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 128 + signal_number;
    const bool has_loaded = WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0;
    const bool is_whole = ended.output.starts_with("{\"schema_version\":1") && ended.output.ends_with("}\n");
    const bool is_right =
        has_loaded ? is_whole : (is_killed || is_stopped) && (ended.output.empty() || is_whole);
    EXPECT_TRUE(is_right) << "status " << ended.status << ", output: " << ended.output << "\n"
                          << repeat_text("signal", i);
    count("faults signal to the command",
          {1, 1, has_loaded ? 1U : 0U, has_loaded ? 0U : 1U, is_right ? 0U : 1U, 0});
  }
}
#endif

}  // namespace
}  // namespace inrush::faults
