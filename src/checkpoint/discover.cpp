#include "checkpoint/discover.hpp"

#include <inrush/error.hpp>

#include "base/interruption.hpp"
#include "base/text.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/indexed_shards.hpp"
#include "storage/local_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace inrush::engine {

namespace {

// The parser takes stack for each level: about 200 bytes, and its caller's thread may have as little as 64
// KiB.
constexpr std::uint32_t nesting_allowed_max = 128;
// Of a message about missing shards.
constexpr std::size_t listed_files_max = 100;

struct IndexPlace {
  const std::string& index_path;
  const std::string& folder;  // which the shards' names start from
};

// A folder with an index, and the *.safetensors in it; no files where the index was named alone.
struct IndexFolder {
  std::string folder;
  std::vector<std::string> files;
};

// One call of discover_in().
class Discovery {
 public:
  Discovery(const Store& store, const std::string& path, const DiscoverOptions& options)
      : store_(store), path_(path), options_(options), builder_(path) {
    if (!options.interrupted) return;
    options_.interrupted = [this, interrupted = options.interrupted] { return ask(interrupted); };
  }
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  Checkpoint run();

 private:
  bool ask(const std::function<bool()>& interrupted);
  void read_named(const File& file);
  void read_folder(const std::vector<ListedFile>& entries);
  void read_all(const std::vector<std::string>& names);
  void read_index(const File& file, const IndexFolder& beside);
  void note_unnamed(const ShardIndex& index, const std::string& index_path,
                    const std::vector<std::string>& files);
  void read_shards(const ShardIndex& index, const IndexPlace& place);
  void throw_missing(const std::string& index_path, const std::vector<std::string>& missing,
                     std::size_t shard_count) const;
  [[nodiscard]] std::shared_ptr<File> open_beneath(const std::string& folder, const std::string& name) const;

  const Store& store_;
  const std::string& path_;
  DiscoverOptions options_;  // whose `interrupted` is ask()
  bool is_interrupted_ = false;
  CatalogBuilder builder_;
};

Checkpoint Discovery::run() {
  if (path_.empty()) throw Error(ErrorCode::invalid_request, "the path of the checkpoint is empty");
  if (options_.nesting_max > nesting_allowed_max) {
    throw Error(ErrorCode::invalid_request,
                fmt::format("DiscoverOptions::nesting_max is {}, at most {} is possible",
                            options_.nesting_max, nesting_allowed_max));
  }
  std::shared_ptr<File> file;
  std::vector<ListedFile> entries;
  try {
    file = store_.open(path_);
  } catch (const Error& refusal) {
    if (refusal.code() != ErrorCode::invalid_request) throw;
    try {
      entries = store_.list(path_);
    } catch (const Error& error) {
      if (error.system_error() != ENOTDIR && error.system_error() != ENOENT) throw;
      throw refusal;  // neither a regular file nor a folder: a FIFO, a device node, a socket
    }
  }
  if (file) {
    read_named(*file);
  } else {
    read_folder(entries);
  }
  return Checkpoint(builder_.finish());
}

// What ends discovery here must not be taken for a fault of the shard that is being read: true stays where
// this throws.
bool Discovery::ask(const std::function<bool()>& interrupted) {
  is_interrupted_ = true;
  if (interrupted()) {
    throw Error(ErrorCode::cancelled,
                fmt::format("{}: discovery was cancelled: `interrupted` said so", printable(path_)));
  }
  is_interrupted_ = false;
  return false;
}

void Discovery::read_named(const File& file) {
  if (path_.ends_with(".json")) {
    read_index(file, {.folder = std::filesystem::path(path_).parent_path().string(), .files = {}});
    return;
  }
  builder_.add(read_shard(file, options_));
}

void Discovery::read_folder(const std::vector<ListedFile>& entries) {
  const FolderChoice choice = choose_files(path_, entries, options_);
  for (const std::string& note : choice.notes) builder_.note(note);
  if (choice.index.empty()) {
    read_all(choice.files);
    return;
  }
  const std::shared_ptr<File> file = open_beneath(path_, choice.index);
  read_index(*file, {.folder = path_, .files = choice.files});
}

void Discovery::read_all(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    check_interrupted(options_.interrupted);
    const std::shared_ptr<File> file = open_beneath(path_, name);
    builder_.add(read_shard(*file, options_));
  }
}

std::shared_ptr<File> Discovery::open_beneath(const std::string& folder, const std::string& name) const {
  return store_.open_beneath(folder.empty() ? "." : folder, name, options_.links);
}

void Discovery::read_index(const File& file, const IndexFolder& beside) {
  const FileStatus status = file.status();
  if (status.size_bytes > options_.index_bytes_max) {
    throw Error(
        ErrorCode::corrupt_checkpoint,
        fmt::format("{}: the index has {} bytes, above the cap of {} (DiscoverOptions::index_bytes_max)",
                    printable(file.path()), status.size_bytes, options_.index_bytes_max));
  }
  std::string text(status.size_bytes, '\0');
  if (!text.empty()) read_fully(file, 0, std::as_writable_bytes(std::span(text)));
  const ShardIndex index = parse_index(text, file.path(), options_);
  std::string().swap(text);

  note_unnamed(index, file.path(), beside.files);
  read_shards(index, {.index_path = file.path(), .folder = beside.folder});
}

// Another split beside the one that the index names, or a stray file: whole files outside the index.
void Discovery::note_unnamed(const ShardIndex& index, const std::string& index_path,
                             const std::vector<std::string>& files) {
  std::vector<std::string> unnamed;
  for (const std::string& name : files) {
    if (!std::binary_search(index.shards.begin(), index.shards.end(), name)) unnamed.push_back(name);
  }
  if (unnamed.empty()) return;
  const std::string what =
      fmt::format("{}: does not name {}{} beside it", printable(index_path), printable(unnamed.front()),
                  unnamed.size() > 1 ? fmt::format(" and {} more", unnamed.size() - 1) : "");
  if (options_.index == IndexPolicy::strict) {
    throw Error(ErrorCode::corrupt_checkpoint,
                what + "; move it away, or load without --strict-index (IndexPolicy::strict)");
  }
  builder_.note(what + ": left unread");
}

void Discovery::read_shards(const ShardIndex& index, const IndexPlace& place) {
  IndexedShards shards(index, place.index_path, options_.index);
  std::vector<std::string> missing;
  std::optional<Error> first_error;
  for (std::uint32_t number = 0; number < index.shards.size(); ++number) {
    const std::string& name = index.shards[number];
    check_interrupted(options_.interrupted);
    try {
      const std::shared_ptr<File> shard = open_beneath(place.folder, name);
      // After the first fault the rest is opened only to list all files that are missing: those are the
      // likelier cause.
      if (missing.empty() && !first_error) shards.add(read_shard(*shard, options_), number, builder_);
    } catch (const Error& error) {
      if (is_interrupted_) throw;
      if (error.code() == ErrorCode::not_found) {
        const bool is_absent = error.system_error() == ENOENT || error.system_error() == 0;
        missing.push_back(printable(name) + (is_absent ? "" : " (" + errno_text(error.system_error()) + ")"));
      } else if (!first_error) {
        first_error = error.within(printable(place.index_path));
      }
    }
  }
  if (!missing.empty()) throw_missing(place.index_path, missing, index.shards.size());
  if (first_error) throw *first_error;
  shards.finish(builder_);
}

void Discovery::throw_missing(const std::string& index_path, const std::vector<std::string>& missing,
                              std::size_t shard_count) const {
  const std::size_t listed_count = std::min(missing.size(), listed_files_max);
  std::string list;
  for (std::size_t i = 0; i < listed_count; ++i) list += (i == 0 ? "" : ", ") + missing[i];
  if (listed_count < missing.size()) list += fmt::format(" and {} more", missing.size() - listed_count);
  throw Error(
      ErrorCode::not_found,
      fmt::format("{}: {} of the {} files that weight_map names are missing: {}; finish the download, or use "
                  "--ignore-index (IndexPolicy::ignore) where the index is stale",
                  printable(index_path), missing.size(), shard_count, list),
      ENOENT);
}

}  // namespace

Checkpoint discover_in(const Store& store, const std::string& path, const DiscoverOptions& options) {
  return Discovery(store, path, options).run();
}

}  // namespace inrush::engine

namespace inrush::inline v0 {

Checkpoint discover(const std::string& path, const DiscoverOptions& options) {
  try {
    return engine::discover_in(engine::LocalStore(), path, options);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                engine::printable(path) + ": the host has no memory for what its headers say; free some");
  }
}

}  // namespace inrush::inline v0
