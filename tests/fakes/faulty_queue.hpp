// A queue that makes reads go wrong in the ways that storage does, by a seed. Wraps any queue; one thread, as
// ReadQueue. Short reads shorten the request, so that bytes which the engine takes as read are really
// missing.
#pragma once

#include "storage/read_queue.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace inrush::fakes {

// Chances are between 0 and 1, each drawn once a request.
struct Faults {
  std::uint64_t seed = 1;
  double short_chance = 0;  // at least one byte moves; direct reads: at least one unit of alignment
  double unaligned_short_chance =
      0;  // direct reads only: the count that is moved is no multiple of the alignment
  double eintr_chance = 0;
  double eagain_chance = 0;
  double direct_einval_chance = 0;
  double late_chance = 0;  // a completion is held until the next wait()
  // Every n-th read takes so long; 0: none. With 8 readers and 8 here: one disk of eight is slow.
  std::uint64_t slow_every = 0;
  std::chrono::microseconds slow_time = {};
  // The completion of that read and of all after it never comes; 0: all come.
  std::uint64_t never_from = 0;
  bool reorder = false;
  // By path of the file: reads stop short of that byte, and one that starts there fails with EIO or meets the
  // end.
  std::map<std::string, std::uint64_t> eio_at = {};
  std::map<std::string, std::uint64_t> end_at = {};
};

struct FaultCounts {
  std::uint64_t short_reads = 0;
  std::uint64_t unaligned_shorts = 0;
  std::uint64_t eintr = 0;
  std::uint64_t eagain = 0;
  std::uint64_t direct_einval = 0;
  std::uint64_t eio = 0;
  std::uint64_t early_ends = 0;
  std::uint64_t late = 0;
  std::uint64_t slow = 0;
  std::uint64_t never = 0;
  std::uint64_t reordered = 0;  // waits that returned completions in another order than they came

  [[nodiscard]] std::uint64_t total() const;
  bool operator==(const FaultCounts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const FaultCounts& counts);

class FaultyQueue final : public engine::ReadQueue {
 public:
  FaultyQueue(std::unique_ptr<engine::ReadQueue> inner, Faults faults);

  void submit(engine::ReadRequest request) override;
  [[nodiscard]] std::size_t wait(std::span<engine::Completion> completions,
                                 engine::Clock::time_point until) override;
  [[nodiscard]] std::size_t in_flight_count() const noexcept override;

  [[nodiscard]] const FaultCounts& counts() const noexcept { return counts_; }
  // "seed 7", for SCOPED_TRACE.
  [[nodiscard]] std::string seed_text() const { return "seed " + std::to_string(faults_.seed); }

 private:
  struct Slow {
    engine::Completion completion;
    engine::Clock::time_point due;
  };
  struct InFlight {
    std::uint64_t tag = 0;
    std::span<std::byte> target;
    std::optional<std::uint64_t> moved_bytes_max;  // the rest of what was moved is overwritten
  };
  [[nodiscard]] bool happens(double chance);
  [[nodiscard]] std::uint64_t below(std::uint64_t limit);
  [[nodiscard]] std::optional<engine::Completion> fail_at_once(const engine::ReadRequest& request);
  void shorten(engine::ReadRequest& request, InFlight& read);
  void limit_to(std::uint64_t moved_bytes_max, engine::ReadRequest& request, InFlight& read) const;
  void collect(engine::Clock::time_point until);
  [[nodiscard]] engine::Completion finish(const engine::Completion& inner);
  void keep_back(const engine::Completion& completion, std::uint64_t number);
  void take_due();
  [[nodiscard]] engine::Clock::time_point first_due() const;

  const std::unique_ptr<engine::ReadQueue> inner_;
  const Faults faults_;
  std::mt19937_64 random_;
  FaultCounts counts_;
  std::uint64_t next_key_ = 0;
  std::unordered_map<std::uint64_t, InFlight> in_flight_;
  std::deque<engine::Completion> ready_;
  std::deque<engine::Completion> late_;
  std::vector<Slow> slow_;
  std::uint64_t lost_count_ = 0;
};

}  // namespace inrush::fakes
