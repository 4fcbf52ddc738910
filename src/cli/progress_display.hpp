// How far a load is, on stderr: a bar that is redrawn on a terminal, a line every few seconds elsewhere, or
// nothing. One thread; the bar is wiped when the object goes.
#pragma once

#include <inrush/loader.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace inrush::engine {

enum class ProgressMode : std::uint8_t { none, lines, bar };

// The bar where stderr is a terminal that can redraw a line, else lines.
[[nodiscard]] ProgressMode progress_mode_of_stderr();

class ProgressDisplay {
 public:
  // `verb` and `subject` open each line: "loading /models/llama".
  ProgressDisplay(ProgressMode mode, std::string verb, std::string subject);
  ~ProgressDisplay();
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  // Whether it is time to show something: cheap, so that a loop may ask it for each of a million tensors.
  [[nodiscard]] bool is_due() const noexcept;
  void show(const Progress& progress);

 private:
  using Clock = std::chrono::steady_clock;

  ProgressMode mode_;
  std::string verb_;
  std::string subject_;
  Clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace inrush::engine
