// Named bytes: what a checkpoint is read from. Local folders here; other stores implement the same two
// interfaces.
#pragma once

#include <inrush/checkpoint.hpp>

#include "base/range.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace inrush::engine {

// How a range is read.
enum class ReadMode : std::uint8_t {
  buffered,  // through the page cache, by copy
  populate,  // cold: the range is first brought into the page cache by one populating call at a time, then
             // copied
  direct,    // O_DIRECT: offset, length and address are multiples of File::direct_alignment_bytes()
  device,    // into device memory, by a File that can do that; on threads of its own, which mostly sleep
  mapped,    // the pages themselves, seen through a window of the address space; by a File that can do that
};

// What one read call did. Short is legal; 0 bytes without an error is the end of the file.
struct ReadOutcome {
  std::uint64_t moved_bytes = 0;
  int error = 0;  // errno; of ReadMode::device also a code of cuFile, above 5000

  bool operator==(const ReadOutcome&) const = default;
};

// What a file says of itself, compared before and after a load.
struct FileStatus {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;

  bool operator==(const FileStatus&) const = default;
};

// One open file. All calls are thread-safe and blocking. Reads never throw.
class File {
 public:
  virtual ~File() = default;

  [[nodiscard]] virtual const std::string& path() const noexcept = 0;
  // As the open description says now. Throws storage_failed.
  [[nodiscard]] virtual FileStatus status() const = 0;
  // One read call, not repeated after EINTR or a short count.
  [[nodiscard]] virtual ReadOutcome read(ReadMode mode, std::uint64_t offset,
                                         std::span<std::byte> target) const noexcept = 0;

  // Descriptor for a queue that submits reads itself; -1: use read().
  [[nodiscard]] virtual int descriptor(ReadMode mode) const noexcept = 0;
  // 0 where direct reads are not offered; then direct_refusal() says why.
  [[nodiscard]] virtual std::uint32_t direct_alignment_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::string direct_refusal() const = 0;
  // Whether all of the range is in memory already. A guess where the kernel does not tell; costs
  // microseconds.
  [[nodiscard]] virtual bool is_resident(ByteRange range) const noexcept = 0;
  // Brings the range into memory without copying it. False where that cannot be done, or not for all of it: a
  // buffered read does it then.
  [[nodiscard]] virtual bool populate(ByteRange) const noexcept { return false; }
};

struct ListedFile {
  std::string name;  // inside the folder, without a slash
  bool is_folder = false;
};

class Store {
 public:
  virtual ~Store() = default;
  // Entries of one folder, sorted by name. Throws not_found, storage_failed.
  [[nodiscard]] virtual std::vector<ListedFile> list(const std::string& folder) const = 0;
  // A path that the user named: links are followed wherever they lead.
  // Throws not_found (absent, no access), invalid_request (not a regular file: FIFO, device, socket, folder),
  // storage_failed.
  [[nodiscard]] virtual std::shared_ptr<File> open(const std::string& path) const = 0;
  // A name that the folder or an index gave: relative, and under LinkPolicy::inside it must stay beneath the
  // folder or lead into the blobs of the same Hugging Face cache entry. Errors as above, and invalid_request
  // for a link that leaves.
  [[nodiscard]] virtual std::shared_ptr<File> open_beneath(const std::string& folder, const std::string& name,
                                                           LinkPolicy links) const = 0;
};

// Reads all of the range, continuing short reads and repeating EINTR and EAGAIN. Throws storage_failed;
// corrupt_checkpoint where the file ends inside the range. Both name the file, the range and the cause.
void read_fully(const File& file, std::uint64_t offset, std::span<std::byte> target);

}  // namespace inrush::engine
