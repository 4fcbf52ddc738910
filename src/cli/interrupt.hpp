// Ctrl-C and SIGTERM. Outside a load they end the command at once; during one they set a flag that its loop
// polls, so that nothing is left behind on the device. A second one kills in the ordinary way.
#pragma once

namespace inrush::engine {

// Ends the command with 128 + signal. Whoever catches it first says so on stderr.
struct Interrupted {
  int signal = 0;
};

// Once, at the start of main(). A signal that the parent process ignores (nohup) stays ignored.
void watch_interrupts() noexcept;

// While one lives, an interrupt waits to be polled for.
class InterruptDeferral {
 public:
  InterruptDeferral() noexcept;
  ~InterruptDeferral();
  InterruptDeferral(const InterruptDeferral&) = delete;
  InterruptDeferral& operator=(const InterruptDeferral&) = delete;
};

// Throws Interrupted if a signal came.
void require_no_interrupt();

}  // namespace inrush::engine
