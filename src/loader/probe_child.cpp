#include "loader/probe_child.hpp"

#include <inrush/error.hpp>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "loader/interruption.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <optional>
#include <thread>
#include <utility>

namespace inrush::engine {

namespace {

// Between two looks at a child; 50 ms are promised for `interrupted`.
constexpr int poll_milliseconds = 20;
// A process that waits for a device may not die before the device answers.
constexpr auto death_patience = std::chrono::seconds(5);
// Of what a child writes: enough for its line, and for the last words of libraries.
constexpr std::size_t output_bytes_max = 64U << 10;

Error system_failure(const std::string& what, int error) {
  return {ErrorCode::storage_failed, fmt::format("probe: {}: {}", what, errno_text(error)), error};
}

// The end of a pipe that we read, without blocking, and what came through it.
class Reader {
 public:
  // Both ends above the standard ones, which a program may have closed: the child's are put in place by dup2.
  UniqueFd open() {
    std::array<int, 2> ends = {-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw system_failure("pipe", errno);
    const UniqueFd low_read(ends[0]);
    const UniqueFd low_write(ends[1]);
    fd_ = UniqueFd(::fcntl(ends[0], F_DUPFD_CLOEXEC, 3));
    UniqueFd write_end(::fcntl(ends[1], F_DUPFD_CLOEXEC, 3));
    if (!fd_.is_open() || !write_end.is_open() || ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK) != 0)
      throw system_failure("pipe", errno);
    return write_end;
  }
  [[nodiscard]] pollfd poll_entry() const { return {fd_.get(), POLLIN, 0}; }
  // The last words are kept: a library that dies says why at the end.
  void read() {
    std::array<char, 4096> buffer = {};
    while (fd_.is_open()) {
      const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) return fd_.reset();
      text_.append(buffer.data(), static_cast<std::size_t>(count));
      if (text_.size() > output_bytes_max) text_.erase(0, text_.size() - output_bytes_max);
    }
  }
  std::string take() { return std::move(text_); }

 private:
  UniqueFd fd_;
  std::string text_;
};

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A process group of its own: killed as a whole, with whatever it started, and waited for.
class Child {
 public:
  explicit Child(ChildSetup setup) {
    const UniqueFd output = output_.open();
    const UniqueFd errors = errors_.open();
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
    ::posix_spawn_file_actions_adddup2(&actions, errors.get(), 2);
    ::posix_spawn_file_actions_addchdir_np(&actions, setup.folder.c_str());
    sigset_t signals;
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes, &signals);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes,
                               POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int error = ::posix_spawn(&pid_, setup.words[0].c_str(), &actions, &attributes,
                                    pointers_to(setup.words).data(), pointers_to(setup.environment).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error == 0) return;
    pid_ = -1;
    throw Error(ErrorCode::environment_unfit,
                fmt::format("probe: start {}: {}", printable(setup.words[0], PATH_MAX), errno_text(error)),
                error);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Comes back soon, whether or not anything was read.
  void read_some() {
    std::array<pollfd, 2> entries = {output_.poll_entry(), errors_.poll_entry()};
    ::poll(entries.data(), entries.size(), poll_milliseconds);
    output_.read();
    errors_.read();
  }

  // Nothing while it runs.
  std::optional<ChildEnd> end() {
    siginfo_t info = {};
    const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (result == 0 && info.si_pid == 0) return std::nullopt;
    if (result != 0 && errno == EINTR) return std::nullopt;
    ChildEnd end;
    if (result == 0) {
      // Not yet waited for, so its number is still that of its group and of nobody else.
      ::kill(-pid_, SIGKILL);
      while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
      end.kind = info.si_code == CLD_EXITED ? ChildEnd::Kind::exited : ChildEnd::Kind::signalled;
      end.value = info.si_status;
    }
    pid_ = -1;
    take_output(end);
    return end;
  }

  // How it ended, had it been left alone; `was_left_behind` where it does not die.
  ChildEnd kill() noexcept try {
    if (pid_ < 0) return {};
    ::kill(-pid_, SIGKILL);
    const Clock::time_point give_up = Clock::now() + death_patience;
    do {
      if (std::optional<ChildEnd> ended = end()) return *ended;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } while (Clock::now() < give_up);
    ChildEnd left;
    left.was_left_behind = true;
    pid_ = -1;
    take_output(left);
    return left;
  } catch (const std::exception&) {  // no memory for its words
    return {};
  }

 private:
  void take_output(ChildEnd& end) {
    output_.read();
    errors_.read();
    end.output = output_.take();
    end.errors = errors_.take();
  }

  Reader output_;
  Reader errors_;
  pid_t pid_ = -1;
};

}  // namespace

ChildEnd run_child(ChildSetup setup, const ProbeOptions& options) {
  Interruption interruption(options.interrupted);
  Child child(std::move(setup));
  const Clock::time_point deadline = later(Clock::now(), options.timeout);
  for (;;) {
    child.read_some();
    if (std::optional<ChildEnd> end = child.end()) return std::move(*end);
    interruption.check();
    if (Clock::now() < deadline) continue;
    ChildEnd end = child.kill();
    end.kind = ChildEnd::Kind::timed_out;
    return end;
  }
}

}  // namespace inrush::engine
