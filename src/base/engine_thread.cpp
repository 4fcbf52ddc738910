#include "base/engine_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace inrush::engine {

namespace {

// Blocks every signal on this thread while it lives; a thread that is started meanwhile inherits the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    // Faults of the thread itself must reach the handlers of sanitizers and crash reporters; SIGPROF drives
    // profilers.
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF})
      sigdelset(&blocked, signal);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_ = {};
};

}  // namespace

std::thread start_engine_thread(const char* name, std::function<void()> body) {
  const SignalsBlocked blocked;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace inrush::engine
