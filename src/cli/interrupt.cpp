#include "cli/interrupt.hpp"

#include "cli/output.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <string_view>

namespace inrush::engine {

namespace {

// A signal handler reaches nothing but globals. Both are lock-free: the handler may run on any thread.
std::atomic<int> pending_signal = 0;
std::atomic<int> deferral_count = 0;
static_assert(std::atomic<int>::is_always_lock_free);

constexpr std::string_view interrupted_line = "inrush: interrupted\n";

void on_signal(int signal) {
  if (deferral_count.load() > 0) {
    pending_signal.store(signal);
    return;
  }
  [[maybe_unused]] const ssize_t ignored =
      ::write(STDERR_FILENO, interrupted_line.data(), interrupted_line.size());
  ::_exit(exit_signal_base + signal);
}

}  // namespace

void watch_interrupts() noexcept {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_signal;
    // SA_RESETHAND: the second one kills. SA_RESTART: the reads of the load are not cut short.
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
  // `inrush inspect X | head` must end quietly also where the parent ignores SIGPIPE, as Python does.
  ::signal(SIGPIPE, SIG_DFL);
}

InterruptDeferral::InterruptDeferral() noexcept { deferral_count.fetch_add(1); }

InterruptDeferral::~InterruptDeferral() { deferral_count.fetch_sub(1); }

void require_no_interrupt() {
  const int signal = pending_signal.load();
  if (signal != 0) throw Interrupted{signal};
}

}  // namespace inrush::engine
