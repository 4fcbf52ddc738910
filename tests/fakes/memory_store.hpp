// A Store over bytes in memory: files are set by path, folders exist where a file lies beneath them.
// Thread-safe reads; set files before they are opened. Everything is resident, nothing reads directly.
#pragma once

#include "storage/file.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace inrush::fakes {

// Open files now, and the most there were at one time.
struct OpenFiles {
  std::atomic<std::uint64_t> now = 0;
  std::atomic<std::uint64_t> most = 0;
  std::atomic<std::uint64_t> opened = 0;
};

class MemoryStore final : public engine::Store {
 public:
  MemoryStore();

  // Creates or replaces a file; a replaced one gets a new inode. Files that are open keep the bytes they were
  // opened with.
  void set(const std::string& path, std::string bytes);
  void remove(const std::string& path);
  // open() says that it is no regular file, list() that it is no folder.
  void set_fifo(const std::string& path);
  // open() fails with this errno.
  void set_failure(const std::string& path, int error);

  [[nodiscard]] const OpenFiles& open_files() const { return *open_files_; }

  [[nodiscard]] std::vector<engine::ListedFile> list(const std::string& folder) const override;
  [[nodiscard]] std::shared_ptr<engine::File> open(const std::string& path) const override;
  [[nodiscard]] std::shared_ptr<engine::File> open_beneath(const std::string& folder, const std::string& name,
                                                           LinkPolicy links) const override;

 private:
  struct Entry {
    std::shared_ptr<const std::string> bytes;
    engine::FileStatus status;
  };

  std::map<std::string, Entry> files_;
  std::set<std::string> fifos_;
  std::map<std::string, int> failures_;
  std::uint64_t set_count_ = 0;
  std::shared_ptr<OpenFiles> open_files_;
};

}  // namespace inrush::fakes
