// Faults of system calls, by rules of the test. fault_tests is linked with --wrap for each call named here:
// what the engine calls comes here first, what the C library calls itself does not. One SystemFaults at a
// time. Rules run on the thread that makes the call, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

namespace inrush::faults {

// One read of a file: a pread, or a completion of io_uring.
struct ReadCall {
  std::uint64_t number = 0;  // from 1
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  bool is_direct = false;
};

struct ReadFate {
  std::optional<std::uint64_t> moved_bytes_max =
      {};                             // what came beyond is overwritten; 0: the end of the file
  int error = 0;                      // errno
  std::function<void()> before = {};  // run before the read and outside all locks; may block

  [[nodiscard]] bool is_fault() const { return moved_bytes_max.has_value() || error != 0 || before; }
};

struct OpenCall {
  std::uint64_t number = 0;  // from 1
  std::string path;
  bool is_direct = false;
};

struct SystemRules {
  std::function<ReadFate(const ReadCall&)> read = {};
  // Of reads that do not wait for storage (preadv2 with RWF_NOWAIT); not counted as reads. Without a rule
  // they are refused with EAGAIN, so that every byte comes by the reads above.
  std::function<ReadFate(const ReadCall&)> resident_read = {};
  std::function<int(const OpenCall&)> open = {};             // errno; 0: go on
  std::function<int(std::uint64_t number)> status = {};      // of fstat, likewise
  std::optional<std::uint32_t> direct_alignment_bytes = {};  // what statx says; 0: no direct reads
  bool is_cold = false;  // the kernel says that nothing is in the page cache
  int uring_setup_error = 0;
  std::set<std::string> hidden_symbols = {};  // dlsym does not find them
};

class SystemFaults {
 public:
  explicit SystemFaults(SystemRules rules);
  ~SystemFaults();
  SystemFaults(const SystemFaults&) = delete;
  SystemFaults& operator=(const SystemFaults&) = delete;

  // Calls that a rule made fail, or changed.
  [[nodiscard]] std::uint64_t injected_count() const;
  [[nodiscard]] std::uint64_t read_count() const;
  [[nodiscard]] std::uint64_t open_count() const;
  [[nodiscard]] std::uint64_t status_count() const;
};

// Whether the descriptor is open on that file.
[[nodiscard]] bool is_open_on(int descriptor, const std::string& path);

}  // namespace inrush::faults
