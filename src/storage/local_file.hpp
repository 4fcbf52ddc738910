// An open regular file of a local or mounted file system. Made by LocalStore; calls are thread-safe.
#pragma once

#include "base/unique_fd.hpp"
#include "storage/file.hpp"
#include "storage/populate.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace inrush::engine {

class LocalFile final : public File {
 public:
  // `fd` is a regular file, open for reading.
  LocalFile(std::string path, UniqueFd fd, std::shared_ptr<Populator> populator);

  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] FileStatus status() const override;
  [[nodiscard]] ReadOutcome read(ReadMode mode, std::uint64_t offset,
                                 std::span<std::byte> target) const noexcept override;
  [[nodiscard]] int descriptor(ReadMode mode) const noexcept override;
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override;
  [[nodiscard]] std::string direct_refusal() const override;
  [[nodiscard]] bool is_resident(ByteRange range) const noexcept override;
  [[nodiscard]] bool populate(ByteRange range) const noexcept override;

 private:
  // A second description of the same file, for O_DIRECT: the flag belongs to the description, and buffered
  // reads go on beside.
  struct Direct {
    UniqueFd fd;
    std::uint32_t alignment_bytes = 0;
    std::string_view refused_step;  // where alignment_bytes is 0
    int error = 0;
  };
  [[nodiscard]] Direct open_direct() const noexcept;
  [[nodiscard]] const Direct& direct() const noexcept;

  const std::string path_;
  const UniqueFd fd_;
  const std::shared_ptr<Populator> populator_;
  mutable std::once_flag
      direct_once_;  // opened with the first question about it: most loads are warm and never ask
  mutable Direct direct_;
};

}  // namespace inrush::engine
