// A file whose reads block until the test lets them go: what a dead mount looks like. Thread-safe.
#pragma once

#include "storage/file.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace inrush::fakes {

class SlowFile final : public engine::File {
 public:
  explicit SlowFile(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  // Blocks until `count` reads are blocked inside this file.
  void wait_until_blocked(std::size_t count) const;
  // Lets every read go, also those that come later.
  void release();

  [[nodiscard]] const std::string& path() const noexcept override { return path_; }
  [[nodiscard]] engine::FileStatus status() const override { return {0, 1, bytes_.size(), 0, 0}; }
  [[nodiscard]] engine::ReadOutcome read(engine::ReadMode mode, std::uint64_t offset,
                                         std::span<std::byte> target) const noexcept override;
  [[nodiscard]] int descriptor(engine::ReadMode) const noexcept override { return -1; }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override { return 0; }
  [[nodiscard]] std::string direct_refusal() const override { return "slow.bin: a test's file"; }
  [[nodiscard]] bool is_resident(engine::ByteRange) const noexcept override { return false; }

 private:
  const std::string path_ = "slow.bin";
  const std::vector<std::byte> bytes_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::size_t blocked_count_ = 0;
  bool released_ = false;
};

}  // namespace inrush::fakes
