#include "loader/warm.hpp"

#include <inrush/error.hpp>
#include <inrush/plan.hpp>

#include "base/clock.hpp"
#include "base/interruption.hpp"
#include "base/text.hpp"
#include "loader/file_set.hpp"
#include "loader/host_facts.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace inrush::engine {

namespace {

// One call of populate(): 9 ms of a disk that reads 1.8 GB/s, so Ctrl-C and progress come in time.
constexpr std::uint64_t window_bytes_max = 16ULL << 20;
// How much comes between two looks at the free memory, which cost 0.1 ms each.
constexpr std::uint64_t room_bytes_between = 128ULL << 20;

// Where the load would read, joined to runs: in one file, ascending.
struct FileRuns {
  std::uint32_t file = 0;
  std::vector<ByteRange> runs;
};

std::vector<FileRuns> runs_of(const Plan& plan) {
  std::vector<FileRuns> all;
  std::vector<Piece> pieces = plan.pieces;
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return std::pair(piece.file, piece.offset); });
  for (const Piece& piece : pieces) {
    if (all.empty() || all.back().file != piece.file) all.push_back({piece.file, {}});
    std::vector<ByteRange>& runs = all.back().runs;
    if (!runs.empty() && runs.back().end() == piece.offset) {
      runs.back().size_bytes += piece.size_bytes;
    } else {
      runs.push_back({piece.offset, piece.size_bytes});
    }
  }
  return all;
}

// One call of warm().
class Warming {
 public:
  Warming(const Checkpoint& checkpoint, const LoadRequest& request, const WarmCallbacks& callbacks)
      : checkpoint_(checkpoint), interrupted_(request.interrupted), callbacks_(callbacks) {
    LoadRequest bound = request;
    bound.device = {};
    bound.path = PathPreference::automatic;
    bound.targets = {};
    Machine machine;
    machine.devices = {Device{}};
    machine.paths = {{.name = "staged", .usable = true, .reason = "any will do to see what is read"}};
    plan_ = make_plan(checkpoint, bound, machine);
  }

  WarmReport run() {
    report_.planned_bytes = plan_.read_bytes;
    const std::vector<FileRuns> files = runs_of(plan_);
    // Its own pages that are there already are inactive, most of them, and no room.
    std::uint64_t resident_bytes = 0;
    for_each_window(files, [&](const File& file, const ByteRange& window) {
      if (file.is_resident(window)) resident_bytes += window.size_bytes;
    });
    const std::uint64_t room = callbacks_.room_bytes();
    room_bytes_ = room - std::min(room, resident_bytes);
    for_each_window(files, [&](const File& file, const ByteRange& window) { warm_window(file, window); });
    report_.seconds = seconds_between(start_, Clock::now());
    return report_;
  }

 private:
  std::vector<std::uint32_t> run_counts(const std::vector<FileRuns>& files) const {
    std::vector<std::uint32_t> counts(checkpoint_.files().size());
    for (const FileRuns& one : files) counts[one.file] = static_cast<std::uint32_t>(one.runs.size());
    return counts;
  }

  void for_each_window(const std::vector<FileRuns>& files,
                       const std::function<void(const File&, const ByteRange&)>& visit) {
    FileSet set(callbacks_.store, checkpoint_, run_counts(files));
    for (const FileRuns& one : files) {
      for (const ByteRange& run : one.runs) {
        const std::shared_ptr<const File> file = set.acquire(one.file);
        for (std::uint64_t offset = run.offset; offset < run.end(); offset += window_bytes_max) {
          check_interrupted(interrupted_);
          visit(*file, {offset, std::min(window_bytes_max, run.end() - offset)});
        }
        set.release(one.file);
      }
    }
  }

  void warm_window(const File& file, const ByteRange& window) {
    if (file.is_resident(window)) {
      report_.resident_bytes += window.size_bytes;
    } else if (take_room(window.size_bytes)) {
      bring(file, window);
      report_.read_bytes += window.size_bytes;
      if (callbacks_.on_read) callbacks_.on_read(window.size_bytes);
    } else {
      report_.left_bytes += window.size_bytes;
    }
    tell();
  }

  // Counted down from the start: whether the pages that came are inactive, and would look like room again,
  // differs between kernels. Looked at now and then in case others take memory meanwhile.
  bool take_room(std::uint64_t size_bytes) {
    if (report_.read_bytes >= looked_at_bytes_ + room_bytes_between) {
      looked_at_bytes_ = report_.read_bytes;
      room_bytes_ = std::min(room_bytes_, callbacks_.room_bytes());
    }
    if (room_bytes_ < size_bytes) return false;
    room_bytes_ -= size_bytes;
    return true;
  }

  void bring(const File& file, const ByteRange& window) {
    if (file.populate(window)) return;
    scratch_.resize(window_bytes_max);
    read_fully(file, window.offset, std::span(scratch_).first(window.size_bytes));
  }

  void tell() const {
    if (!callbacks_.on_progress) return;
    callbacks_.on_progress({.loaded_bytes = report_.resident_bytes + report_.read_bytes,
                            .planned_bytes = report_.planned_bytes,
                            .seconds = seconds_between(start_, Clock::now())});
  }

  const Clock::time_point start_ = Clock::now();
  const Checkpoint& checkpoint_;
  const std::function<bool()>& interrupted_;
  const WarmCallbacks& callbacks_;
  Plan plan_;
  WarmReport report_;
  std::uint64_t room_bytes_ = 0;
  std::uint64_t looked_at_bytes_ = 0;  // read_bytes at the last look at the free memory
  std::vector<std::byte> scratch_;     // for files that cannot be mapped
};

}  // namespace

WarmReport warm_within(const Checkpoint& checkpoint, const LoadRequest& request,
                       const WarmCallbacks& callbacks) {
  try {
    return Warming(checkpoint, request, callbacks).run();
  } catch (const Error& error) {
    throw error.within("warm " + printable(checkpoint.path()));
  }
}

}  // namespace inrush::engine

namespace inrush::inline v0 {

WarmReport warm(const Checkpoint& checkpoint, const LoadRequest& request,
                const std::function<void(const Progress&)>& on_progress) {
  const engine::LocalStore store;
  return engine::warm_within(checkpoint, request,
                             {.store = store,
                              .room_bytes = [] { return engine::page_cache_room_bytes(); },
                              .on_progress = on_progress});
}

}  // namespace inrush::inline v0
