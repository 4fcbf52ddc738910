// The kernel's side of io_uring, set up with the newest flags that the kernel takes, and its table of fixed
// buffers. Owned and called by one thread: the one that constructs it.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace inrush::engine {

class UringRing {
 public:
  UringRing() = default;
  ~UringRing();
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // Room for `entry_count` submissions. Returns why io_uring cannot be used here; empty on success.
  [[nodiscard]] std::string set_up(std::uint32_t entry_count);
  [[nodiscard]] io_uring* get() noexcept { return &ring_; }

  // Makes memory a fixed buffer, `owner` being held until the ring ends. Returns why not; empty on success.
  [[nodiscard]] std::string register_buffer(std::span<std::byte> bytes, const std::shared_ptr<void>& owner);
  // Index of the fixed buffer that holds all of `target`.
  [[nodiscard]] std::optional<int> fixed_buffer(std::span<const std::byte> target) const noexcept;
  // Reads go to unregistered memory from now on.
  void stop_using_fixed_buffers() noexcept { fixed_usable_ = false; }

 private:
  struct FixedBuffer {
    std::span<std::byte> bytes;
    std::shared_ptr<void> owner;
  };
  [[nodiscard]] std::string check_operations();
  [[nodiscard]] std::string check_enter();
  [[nodiscard]] std::string register_piece(std::span<std::byte> bytes, const std::shared_ptr<void>& owner);

  io_uring ring_ = {};
  bool is_set_up_ = false;
  bool has_buffer_table_ = false;
  bool fixed_usable_ = true;
  std::vector<FixedBuffer> fixed_;
};

}  // namespace inrush::engine
