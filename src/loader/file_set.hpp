// The open files of one load. Each is opened by name once more, must be the file that discovery saw (identity
// and header), and is compared again before it is closed. At most `open_count_max` are open beside those that
// reads are using: 10,000 shards load under `ulimit -n 256`. One thread at a time.
#pragma once

#include <inrush/checkpoint.hpp>

#include "base/clock.hpp"
#include "storage/file.hpp"

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

namespace inrush::engine {

// Two descriptors a file (O_DIRECT has its own), and room for the host program under the usual least limit of
// 256.
inline constexpr std::size_t open_file_count_max = 48;

class FileSet {
 public:
  // `piece_counts`: pieces of each file; a file whose last piece was released is checked and closed.
  FileSet(const Store& store, const Checkpoint& checkpoint, std::vector<std::uint32_t> piece_counts);

  // Opens the files that have pieces, as many as may stay open, so that what is missing is found before
  // anything is allocated. Calls `before_each`, which may throw, before each of them.
  void open_first(const std::function<void()>& before_each);
  // The file for one more piece in flight. Throws not_found, corrupt_checkpoint (it is another file now),
  // storage_failed.
  [[nodiscard]] std::shared_ptr<const File> acquire(std::uint32_t file);
  // One piece of the file is done. Throws corrupt_checkpoint where the file turns out to have changed.
  void release(std::uint32_t file);
  // The file that was found to have changed while it was read.
  [[nodiscard]] std::optional<std::uint32_t> changed_file() const noexcept { return changed_file_; }
  // Seconds spent in opening files and comparing their identity, without the headers.
  [[nodiscard]] double open_seconds() const noexcept { return open_seconds_; }

 private:
  struct Entry {
    std::shared_ptr<const File> file;
    std::uint32_t in_flight_count = 0;
    std::uint32_t pieces_left = 0;
  };

  void open(std::uint32_t file);
  void verify_header(const File& file, const CheckpointFile& known);
  void check_and_close(std::uint32_t file);
  bool evict_one();

  const Store& store_;
  const Checkpoint& checkpoint_;
  std::vector<Entry> entries_;
  std::list<std::uint32_t> open_;  // oldest first
  std::optional<std::uint32_t> changed_file_;
  double open_seconds_ = 0;
};

}  // namespace inrush::engine
