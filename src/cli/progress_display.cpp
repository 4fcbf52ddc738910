#include "cli/progress_display.hpp"

#include <inrush/report.hpp>

#include "cli/output.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace inrush::engine {

namespace {

// A bar on the first look would flash up for every small model; ten times a second is what eyes follow.
constexpr std::chrono::milliseconds bar_delay{200};
constexpr std::chrono::milliseconds bar_interval{100};
// Short loads leave no lines in a log; a long one is never silent for longer than this.
constexpr std::chrono::seconds line_interval{5};
constexpr std::size_t default_width = 80;
constexpr std::size_t bar_cells_max = 40;
constexpr std::size_t bar_cells_min = 8;

std::size_t terminal_width() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return default_width;
  return size.ws_col;
}

std::string time_left(const Progress& progress, double rate) {
  if (rate <= 0) return "";
  const double seconds = static_cast<double>(progress.planned_bytes - progress.loaded_bytes) / rate;
  if (seconds >= 3600) return fmt::format(", {:.1f} h left", seconds / 3600);
  if (seconds >= 90) return fmt::format(", {:.0f} min left", seconds / 60);
  return fmt::format(", {:.0f} s left", seconds);
}

// "3.20 GB of 12.0 GB, 10.4 GB/s, 1 s left".
std::string figures(const Progress& progress) {
  const double rate =
      progress.seconds > 0 ? static_cast<double>(progress.loaded_bytes) / progress.seconds : 0;
  return fmt::format("{} of {}, {}/s{}", format_bytes(progress.loaded_bytes),
                     format_bytes(progress.planned_bytes), format_bytes(static_cast<std::uint64_t>(rate)),
                     time_left(progress, rate));
}

double share_of(const Progress& progress) {
  if (progress.planned_bytes == 0) return 1;
  return static_cast<double>(progress.loaded_bytes) / static_cast<double>(progress.planned_bytes);
}

// At most `width` - 1 characters: the last column would make some terminals wrap.
std::string bar_line(const std::string& verb, const Progress& progress, std::size_t width) {
  const double share = share_of(progress);
  std::string line = fmt::format("{:3.0f} % {}", share * 100, figures(progress));
  const std::size_t taken = line.size() + verb.size() + 5;
  if (width >= taken + bar_cells_min) {
    const std::size_t cells = std::min(width - taken, bar_cells_max);
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(cells));
    line =
        fmt::format("{} [{}{}] {}", verb, std::string(filled, '#'), std::string(cells - filled, '-'), line);
  }
  line.resize(std::min(line.size(), width - 1));
  return line;
}

}  // namespace

ProgressMode progress_mode_of_stderr() {
  return ::isatty(STDERR_FILENO) == 1 ? ProgressMode::bar : ProgressMode::lines;
}

ProgressDisplay::ProgressDisplay(ProgressMode mode, std::string verb, std::string subject)
    : mode_(mode), verb_(std::move(verb)), subject_(std::move(subject)), next_(Clock::now()) {
  next_ += mode_ == ProgressMode::bar ? Clock::duration(bar_delay) : Clock::duration(line_interval);
}

ProgressDisplay::~ProgressDisplay() {
  if (drawn_) write_stderr("\r\x1b[K");
}

bool ProgressDisplay::is_due() const noexcept { return mode_ != ProgressMode::none && Clock::now() >= next_; }

void ProgressDisplay::show(const Progress& progress) {
  if (mode_ == ProgressMode::bar) {
    write_stderr("\r" + bar_line(verb_, progress, terminal_width()) + "\x1b[K");
    drawn_ = true;
    next_ = Clock::now() + bar_interval;
  } else {
    write_stderr_line(fmt::format("{} {}: {}", verb_, subject_, figures(progress)));
    next_ = Clock::now() + line_interval;
  }
}

}  // namespace inrush::engine
