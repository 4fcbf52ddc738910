// Reads in flight: submit with a tag, wait for completions in any order. One thread submits and waits; the
// reads run elsewhere.
#pragma once

#include "base/clock.hpp"
#include "storage/file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace inrush::engine {

struct ReadRequest {
  std::uint64_t tag = 0;  // the caller's; comes back with the completion
  std::shared_ptr<const File> file;
  ReadMode mode = ReadMode::buffered;
  std::uint64_t offset = 0;
  std::span<std::byte> target;  // never empty
  // Held by the queue until the read returned: keeps the target alive even if the caller gave up waiting.
  std::shared_ptr<void> target_owner;
};

struct Completion {
  std::uint64_t tag = 0;
  std::uint64_t moved_bytes = 0;
  int error = 0;  // as ReadOutcome::error; then moved_bytes is 0

  bool operator==(const Completion&) const = default;
};

class ReadQueue {
 public:
  // A queue that is destroyed with reads in flight leaves them to finish on their own: their thread, target
  // and file stay alive until they return. It never blocks on them.
  virtual ~ReadQueue() = default;
  // Never blocks on storage. Short reads, EINTR and errors come back as completions, once for each request.
  virtual void submit(ReadRequest request) = 0;
  // Fills `completions` with at least one completion, or returns 0 once `until` has passed or nothing is in
  // flight.
  [[nodiscard]] virtual std::size_t wait(std::span<Completion> completions, Clock::time_point until) = 0;
  [[nodiscard]] virtual std::size_t in_flight_count() const noexcept = 0;
};

}  // namespace inrush::engine
