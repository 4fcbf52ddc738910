#include "loader/file_set.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "checkpoint/header_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace inrush::engine {

namespace {

FileStatus status_of(const FileIdentity& identity) {
  return {identity.device, identity.inode, identity.size_bytes, identity.mtime_ns, identity.ctime_ns};
}

Error changed(const std::string& path, std::string_view when) {
  return {
      ErrorCode::corrupt_checkpoint,
      fmt::format("{}: the file changed {}; load it again once nobody writes to it", printable(path), when)};
}

}  // namespace

FileSet::FileSet(const Store& store, const Checkpoint& checkpoint, std::vector<std::uint32_t> piece_counts)
    : store_(store), checkpoint_(checkpoint), entries_(checkpoint.files().size()) {
  for (std::size_t file = 0; file < entries_.size(); ++file) entries_[file].pieces_left = piece_counts[file];
}

void FileSet::open_first(const std::function<void()>& before_each) {
  for (std::uint32_t file = 0; file < entries_.size() && open_.size() < open_file_count_max; ++file) {
    if (entries_[file].pieces_left == 0) continue;
    before_each();
    open(file);
  }
}

std::shared_ptr<const File> FileSet::acquire(std::uint32_t file) {
  Entry& entry = entries_[file];
  if (entry.file == nullptr) {
    if (open_.size() >= open_file_count_max) evict_one();
    try {
      open(file);
    } catch (const Error& error) {  // several loads at once, or the host program, use up the descriptors
      if (error.system_error() != EMFILE || !evict_one()) throw;
      open(file);
    }
  }
  ++entry.in_flight_count;
  return entry.file;
}

void FileSet::release(std::uint32_t file) {
  Entry& entry = entries_[file];
  --entry.in_flight_count;
  if (--entry.pieces_left == 0) check_and_close(file);
}

void FileSet::open(std::uint32_t file) {
  const CheckpointFile& known = checkpoint_.files()[file];
  const Clock::time_point start = Clock::now();
  const std::shared_ptr<File> opened = store_.open(known.path);
  if (opened->status() != status_of(known.identity)) throw changed(known.path, "since it was discovered");
  const Clock::time_point identified = Clock::now();
  verify_header(*opened, known);
  open_seconds_ += seconds_between(start, identified);
  entries_[file].file = opened;
  open_.push_back(file);
}

void FileSet::verify_header(const File& file, const CheckpointFile& known) {
  if (known.data_offset == 0) return;  // another format, whose headers are not ours to read
  const HeaderBytes header = read_header(file, status_of(known.identity), known.data_offset);
  if (hash_header(header) != known.identity.header_hash) {
    throw changed(known.path, "since it was discovered (its header is another one)");
  }
}

void FileSet::check_and_close(std::uint32_t file) {
  const CheckpointFile& known = checkpoint_.files()[file];
  const std::shared_ptr<const File> closing = std::exchange(entries_[file].file, nullptr);
  open_.remove(file);
  if (closing->status() == status_of(known.identity)) return;
  changed_file_ = file;
  throw changed(known.path, "while it was read");
}

// A file that no read is using is closed; its next piece opens it again with all checks. Where every one is
// in use, one more is opened.
bool FileSet::evict_one() {
  const auto idle = std::find_if(open_.begin(), open_.end(),
                                 [&](std::uint32_t file) { return entries_[file].in_flight_count == 0; });
  if (idle == open_.end()) return false;
  check_and_close(std::uint32_t{*idle});
  return true;
}

}  // namespace inrush::engine
