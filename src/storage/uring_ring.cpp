#include "storage/uring_ring.hpp"

#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

namespace inrush::engine {

namespace {

// A larger buffer is refused with EFAULT (kernel 6.18; axboe/liburing#768).
constexpr std::uint64_t fixed_buffer_bytes_max = 1ULL << 30;
constexpr unsigned fixed_buffer_count_max = 256;

// Newest first. DEFER_TASKRUN and SINGLE_ISSUER (6.1) let the one thread that waits run the completions
// itself, COOP_TASKRUN (5.19) spares the interrupt for each. A kernel that does not know a flag answers
// EINVAL.
constexpr std::array<unsigned, 3> setup_flags = {
    IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_CLAMP,
};

std::string setup_advice(int error) {
  if (error == ENOMEM) return " (the limit of locked memory, ulimit -l, may be too low)";
  if (error == ENOSYS) return " (the kernel or a container's seccomp profile does not offer it)";
  if (error != EPERM && error != EACCES) return {};
  int disabled = 0;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  if (disabled != 0) return fmt::format(" (the setting kernel.io_uring_disabled is {})", disabled);
  return " (a container's seccomp profile may forbid it)";
}

}  // namespace

UringRing::~UringRing() {
  if (is_set_up_) io_uring_queue_exit(&ring_);
}

std::string UringRing::set_up(std::uint32_t entry_count) {
  int result = -EINVAL;
  for (const unsigned flags : setup_flags) {
    result = io_uring_queue_init(entry_count, &ring_, flags);
    if (result != -EINVAL) break;
  }
  if (result < 0) return fmt::format("io_uring_setup: {}{}", errno_text(-result), setup_advice(-result));
  is_set_up_ = true;
  std::string refusal = check_operations();
  if (refusal.empty()) refusal = check_enter();
  return refusal;
}

std::string UringRing::check_operations() {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr)
    return "the kernel does not list the operations of io_uring (before Linux 5.6, or forbidden)";
  const bool offered = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_POLL_ADD) != 0;
  io_uring_free_probe(probe);
  return offered ? std::string()
                 : "the kernel's io_uring does not read files (before Linux 5.6, or restricted)";
}

// Seccomp profiles exist that allow the set-up and refuse the submission: one empty operation tells.
std::string UringRing::check_enter() {
  io_uring_prep_nop(io_uring_get_sqe(&ring_));
  const int submitted = io_uring_submit_and_wait(&ring_, 1);
  if (submitted < 0)
    return fmt::format("io_uring_enter: {}{}", errno_text(-submitted), setup_advice(-submitted));
  io_uring_cqe* completion = nullptr;
  const int waited = io_uring_wait_cqe(&ring_, &completion);
  if (waited < 0) return fmt::format("io_uring_enter: {}", errno_text(-waited));
  io_uring_cqe_seen(&ring_, completion);
  return {};
}

std::string UringRing::register_buffer(std::span<std::byte> bytes, const std::shared_ptr<void>& owner) {
  if (!has_buffer_table_) {
    // A sparse table takes further memory later without waiting for the reads in flight.
    const int result = io_uring_register_buffers_sparse(&ring_, fixed_buffer_count_max);
    if (result < 0) return fmt::format("register a table of buffers: {}", errno_text(-result));
    has_buffer_table_ = true;
  }
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), fixed_buffer_bytes_max));
    std::string refusal = register_piece(piece, owner);
    if (!refusal.empty()) return refusal;
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

std::string UringRing::register_piece(std::span<std::byte> bytes, const std::shared_ptr<void>& owner) {
  if (fixed_.size() == fixed_buffer_count_max)
    return fmt::format("all {} buffers are in use", fixed_buffer_count_max);
  fixed_.push_back({bytes, owner});
  const iovec memory{bytes.data(), bytes.size()};
  const __u64 tag = 0;
  const auto index = static_cast<unsigned>(fixed_.size() - 1);
  const int result = io_uring_register_buffers_update_tag(&ring_, index, &memory, &tag, 1);
  if (result == 1) return {};
  fixed_.pop_back();
  const int error = result < 0 ? -result : EINVAL;
  return fmt::format("register {} as a fixed buffer: {}{}", bytes_text(bytes.size()), errno_text(error),
                     error == ENOMEM ? " (above the limit of locked memory, ulimit -l)" : "");
}

std::optional<int> UringRing::fixed_buffer(std::span<const std::byte> target) const noexcept {
  if (!fixed_usable_) return std::nullopt;
  for (std::size_t index = 0; index < fixed_.size(); ++index) {
    const std::span<std::byte> bytes = fixed_[index].bytes;
    if (target.data() >= bytes.data() && target.data() + target.size() <= bytes.data() + bytes.size()) {
      return static_cast<int>(index);
    }
  }
  return std::nullopt;
}

}  // namespace inrush::engine
