#include "fakes/slow_file.hpp"

#include <algorithm>
#include <cstring>

namespace inrush::fakes {

void SlowFile::wait_until_blocked(std::size_t count) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return blocked_count_ >= count; });
}

void SlowFile::release() {
  const std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

engine::ReadOutcome SlowFile::read(engine::ReadMode, std::uint64_t offset,
                                   std::span<std::byte> target) const noexcept {
  {
    std::unique_lock lock(mutex_);
    ++blocked_count_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
    --blocked_count_;
  }
  if (offset >= bytes_.size()) return {0, 0};
  const std::uint64_t moved_bytes = std::min<std::uint64_t>(target.size(), bytes_.size() - offset);
  std::memcpy(target.data(), bytes_.data() + offset, moved_bytes);
  return {moved_bytes, 0};
}

}  // namespace inrush::fakes
