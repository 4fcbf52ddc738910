#include "fakes/memory_store.hpp"

#include <inrush/error.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace inrush::fakes {

namespace {

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text == "." ? "" : text;
}

class MemoryFile final : public engine::File {
 public:
  MemoryFile(std::string path, std::shared_ptr<const std::string> bytes, engine::FileStatus status,
             std::shared_ptr<OpenFiles> open_files)
      : path_(std::move(path)),
        bytes_(std::move(bytes)),
        status_(status),
        open_files_(std::move(open_files)) {
    ++open_files_->opened;
    const std::uint64_t now = ++open_files_->now;
    if (now > open_files_->most) open_files_->most = now;
  }
  ~MemoryFile() override { --open_files_->now; }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const noexcept override { return path_; }
  engine::FileStatus status() const override { return status_; }
  engine::ReadOutcome read(engine::ReadMode mode, std::uint64_t offset,
                           std::span<std::byte> target) const noexcept override {
    if (mode == engine::ReadMode::direct) return {.moved_bytes = 0, .error = EINVAL};
    if (offset >= bytes_->size()) return {};
    const std::uint64_t moved = std::min<std::uint64_t>(target.size(), bytes_->size() - offset);
    std::memcpy(target.data(), bytes_->data() + offset, moved);
    return {.moved_bytes = moved, .error = 0};
  }
  int descriptor(engine::ReadMode) const noexcept override { return -1; }
  std::uint32_t direct_alignment_bytes() const noexcept override { return 0; }
  std::string direct_refusal() const override { return "the file is in memory"; }
  bool is_resident(engine::ByteRange) const noexcept override { return true; }

 private:
  std::string path_;
  std::shared_ptr<const std::string> bytes_;
  engine::FileStatus status_;
  std::shared_ptr<OpenFiles> open_files_;
};

}  // namespace

MemoryStore::MemoryStore() : open_files_(std::make_shared<OpenFiles>()) {}

void MemoryStore::set(const std::string& path, std::string bytes) {
  ++set_count_;
  const auto time_ns = static_cast<std::int64_t>(set_count_);
  const engine::FileStatus status{
      .device = 1, .inode = set_count_, .size_bytes = bytes.size(), .mtime_ns = time_ns, .ctime_ns = time_ns};
  files_[normal(path)] = {std::make_shared<const std::string>(std::move(bytes)), status};
}

void MemoryStore::remove(const std::string& path) { files_.erase(normal(path)); }

void MemoryStore::set_fifo(const std::string& path) { fifos_.insert(normal(path)); }

void MemoryStore::set_failure(const std::string& path, int error) { failures_[normal(path)] = error; }

std::vector<engine::ListedFile> MemoryStore::list(const std::string& folder) const {
  const std::string clean = normal(folder);
  const std::string prefix = clean.empty() || clean == "/" ? clean : clean + "/";
  std::map<std::string, engine::ListedFile> found;
  for (auto file = files_.lower_bound(prefix); file != files_.end() && file->first.starts_with(prefix);
       ++file) {
    const std::string rest = file->first.substr(prefix.size());
    const std::string name = rest.substr(0, rest.find('/'));
    found[name] = {.name = name, .is_folder = name.size() < rest.size()};
  }
  if (found.empty()) throw Error(ErrorCode::not_found, folder + ": no such folder", ENOENT);
  std::vector<engine::ListedFile> entries;
  for (auto& [name, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

std::shared_ptr<engine::File> MemoryStore::open(const std::string& path) const {
  const std::string clean = normal(path);
  if (const auto failure = failures_.find(clean); failure != failures_.end()) {
    const bool is_access = failure->second == EACCES || failure->second == ENOENT;
    throw Error(is_access ? ErrorCode::not_found : ErrorCode::storage_failed, path + ": open failed",
                failure->second);
  }
  if (fifos_.contains(clean)) throw Error(ErrorCode::invalid_request, path + ": not a regular file");
  const auto file = files_.find(clean);
  if (file != files_.end()) {
    return std::make_shared<MemoryFile>(path, file->second.bytes, file->second.status, open_files_);
  }
  const auto beneath = files_.lower_bound(clean + "/");
  if (clean.empty() || (beneath != files_.end() && beneath->first.starts_with(clean + "/"))) {
    throw Error(ErrorCode::invalid_request, path + ": is a folder");
  }
  throw Error(ErrorCode::not_found, path + ": no such file", ENOENT);
}

std::shared_ptr<engine::File> MemoryStore::open_beneath(const std::string& folder, const std::string& name,
                                                        LinkPolicy) const {
  return open((std::filesystem::path(folder) / name).string());
}

}  // namespace inrush::fakes
