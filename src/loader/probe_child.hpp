// Runs a program that may hang, crash or say anything, in a process group of its own. On the caller's thread;
// nothing that it started is left behind.
#pragma once

#include <inrush/loader.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace inrush::engine {

struct ChildSetup {
  std::vector<std::string> words;  // the program first
  std::vector<std::string> environment;
  std::string folder;
};

struct ChildEnd {
  enum class Kind : std::uint8_t { exited, signalled, timed_out, unknown };
  Kind kind = Kind::unknown;  // unknown: the host program took the status first, or ignores SIGCHLD
  int value = 0;              // exit code or signal
  bool was_left_behind = false;
  std::string output;
  std::string errors;
};

// Reads what the program writes and waits for it, at most for options.timeout; then it is killed, as it is
// where options.interrupted ends the call. Throws environment_unfit (it cannot be started), storage_failed,
// cancelled, and what `interrupted` throws.
[[nodiscard]] ChildEnd run_child(ChildSetup setup, const ProbeOptions& options);

}  // namespace inrush::engine
