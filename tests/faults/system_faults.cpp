#include "faults/system_faults.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

extern "C" {
ssize_t __real_pread(int descriptor, void* target, size_t size_bytes, off_t offset);
ssize_t __real_preadv2(int descriptor, const iovec* parts, int count, off_t offset, int flags);
int __real_open(const char* path, int flags, ...);
long __real_syscall(long number, ...);
int __real_fstat(int descriptor, struct stat* status);
int __real_statx(int folder, const char* path, int flags, unsigned mask, struct statx* status);
void* __real_dlsym(void* library, const char* name);
int __real_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags);
int __real_io_uring_submit_and_wait(io_uring* ring, unsigned count);
}

namespace inrush::faults {

namespace {

constexpr int poison = 0xA5;
constexpr long cachestat_call = 451;

// A read that io_uring has in flight.
struct RingRead {
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::byte* target = nullptr;
  std::uint64_t size_bytes = 0;
};

struct RingState {
  std::map<std::uint64_t, RingRead> reads;  // by user_data
  unsigned seen = 0;                        // completions before this one have met their fate
};

struct State {
  std::mutex mutex;
  std::optional<SystemRules> rules;
  std::uint64_t read_count = 0;
  std::uint64_t open_count = 0;
  std::uint64_t status_count = 0;
  std::uint64_t injected_count = 0;
  std::map<io_uring*, RingState> rings;
};

State& state() {
  static State& only = *new State;  // never destroyed: a thread that was left behind may still read
  return only;
}

std::atomic<bool> is_active = false;  // read first, so that a call costs nothing where no test injects

template <typename Ask>
auto ask(Ask&& ask_rules) -> decltype(ask_rules(state(), *state().rules)) {
  if (!is_active.load()) return {};
  const std::lock_guard lock(state().mutex);
  if (!state().rules) return {};
  return ask_rules(state(), *state().rules);
}

// Through a descriptor with O_DIRECT.
bool is_direct(int descriptor) {
  return (static_cast<unsigned>(::fcntl(descriptor, F_GETFL)) & static_cast<unsigned>(O_DIRECT)) != 0;
}

ReadFate fate_of(ReadCall call) {
  return ask([&](State& all, const SystemRules& rules) -> ReadFate {
    call.number = ++all.read_count;
    if (!rules.read) return {};
    call.is_direct = is_direct(call.descriptor);
    ReadFate fate = rules.read(call);
    if (fate.is_fault()) ++all.injected_count;
    return fate;
  });
}

ReadFate fate_of_resident(const ReadCall& call) {
  return ask([&](State& all, const SystemRules& rules) -> ReadFate {
    if (!rules.resident_read) return {.error = EAGAIN};
    ReadFate fate = rules.resident_read(call);
    if (fate.is_fault()) ++all.injected_count;
    return fate;
  });
}

void overwrite(std::byte* target, std::uint64_t from, std::uint64_t to) {
  if (from < to) std::memset(target + from, poison, to - from);
}

// As the read went, with what its fate changes.
ssize_t read_with_fate(const ReadFate& fate, std::byte* bytes, std::size_t size_bytes,
                       const std::function<ssize_t()>& read) {
  if (!fate.is_fault()) return read();
  if (fate.before) fate.before();
  overwrite(bytes, 0, size_bytes);  // a read that fails may leave anything
  if (fate.error != 0) {
    errno = fate.error;
    return -1;
  }
  const ssize_t moved = read();
  if (moved < 0 || !fate.moved_bytes_max) return moved;
  overwrite(bytes, *fate.moved_bytes_max, static_cast<std::uint64_t>(moved));
  return std::min(moved, static_cast<ssize_t>(*fate.moved_bytes_max));
}

int error_of_open(const char* path, std::uint64_t flags) {
  return ask([&](State& all, const SystemRules& rules) -> int {
    ++all.open_count;
    const int error =
        rules.open ? rules.open({all.open_count, path, (flags & static_cast<unsigned>(O_DIRECT)) != 0}) : 0;
    all.injected_count += error != 0 ? 1U : 0U;
    return error;
  });
}

// What is about to be submitted, so that its completion is known again.
void note_submissions(io_uring* ring) {
  const std::lock_guard lock(state().mutex);
  RingState& known = state().rings[ring];
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
    const io_uring_sqe& entry = ring->sq.sqes[i & ring->sq.ring_mask];
    if (entry.opcode != IORING_OP_READ && entry.opcode != IORING_OP_READ_FIXED) {
      known.reads.erase(entry.user_data);
      continue;
    }
    auto* const target = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(entry.addr));
    known.reads[entry.user_data] = {entry.fd, entry.off, target, entry.len};
  }
}

std::optional<RingRead> completed_read(io_uring* ring, std::uint64_t user_data) {
  const std::lock_guard lock(state().mutex);
  auto& reads = state().rings[ring].reads;
  const auto found = reads.find(user_data);
  return found != reads.end() ? std::optional(found->second) : std::nullopt;
}

void change(io_uring_cqe& completion, const RingRead& read) {
  const ReadFate fate = fate_of({0, read.descriptor, read.offset, read.size_bytes});
  if (fate.before) fate.before();
  if (fate.error != 0) {
    overwrite(read.target, 0, read.size_bytes);
    completion.res = -fate.error;
  } else if (fate.moved_bytes_max && completion.res > 0) {
    const auto moved_bytes = static_cast<std::uint64_t>(completion.res);
    overwrite(read.target, *fate.moved_bytes_max, moved_bytes);
    completion.res = static_cast<int>(std::min(*fate.moved_bytes_max, moved_bytes));
  }
}

void change_completions(io_uring* ring) {
  const unsigned head = *ring->cq.khead;
  const unsigned tail = __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE);
  unsigned first = head;
  {
    const std::lock_guard lock(state().mutex);
    RingState& known = state().rings[ring];
    if (static_cast<int>(known.seen - head) > 0) first = known.seen;
    known.seen = tail;
  }
  for (unsigned i = first; i != tail; ++i) {
    io_uring_cqe& completion = ring->cq.cqes[i & ring->cq.ring_mask];
    if (const std::optional<RingRead> read = completed_read(ring, completion.user_data))
      change(completion, *read);
  }
}

}  // namespace

SystemFaults::SystemFaults(SystemRules rules) {
  const std::lock_guard lock(state().mutex);
  if (state().rules) throw std::logic_error("one SystemFaults at a time");
  state().rules = std::move(rules);
  state().read_count = state().open_count = state().status_count = state().injected_count = 0;
  is_active.store(true);
}

SystemFaults::~SystemFaults() {
  is_active.store(false);
  const std::lock_guard lock(state().mutex);
  state().rules.reset();
}

std::uint64_t SystemFaults::injected_count() const {
  const std::lock_guard lock(state().mutex);
  return state().injected_count;
}

std::uint64_t SystemFaults::read_count() const {
  const std::lock_guard lock(state().mutex);
  return state().read_count;
}

std::uint64_t SystemFaults::open_count() const {
  const std::lock_guard lock(state().mutex);
  return state().open_count;
}

std::uint64_t SystemFaults::status_count() const {
  const std::lock_guard lock(state().mutex);
  return state().status_count;
}

bool is_open_on(int descriptor, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  return __real_fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace inrush::faults

using namespace inrush::faults;

extern "C" {

ssize_t __wrap_pread(int descriptor, void* target, size_t size_bytes, off_t offset) {
  const ReadFate fate = fate_of({0, descriptor, static_cast<std::uint64_t>(offset), size_bytes});
  return read_with_fate(fate, static_cast<std::byte*>(target), size_bytes,
                        [&] { return __real_pread(descriptor, target, size_bytes, offset); });
}

ssize_t __wrap_preadv2(int descriptor, const iovec* parts, int count, off_t offset, int flags) {
  const auto read = [&] { return __real_preadv2(descriptor, parts, count, offset, flags); };
  if (count != 1) return read();
  const ReadFate fate = fate_of_resident({0, descriptor, static_cast<std::uint64_t>(offset), parts->iov_len});
  return read_with_fate(fate, static_cast<std::byte*>(parts->iov_base), parts->iov_len, read);
}

int __wrap_open(const char* path, int flags, ...) {
  if (const int error = error_of_open(path, static_cast<unsigned>(flags)); error != 0) {
    errno = error;
    return -1;
  }
  if ((flags & O_CREAT) == 0) return __real_open(path, flags);
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, unsigned);
  va_end(arguments);
  return __real_open(path, flags, mode);
}

long __wrap_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  std::array<long, 6> words = {};
  for (long& word : words) word = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_openat2) {
    if (const int error = error_of_open(reinterpret_cast<const char*>(words[1]), 0); error != 0) {
      errno = error;
      return -1;
    }
  }
  if (number == cachestat_call && ask([](State&, const SystemRules& rules) { return rules.is_cold; })) {
    std::memset(reinterpret_cast<void*>(words[2]), 0, 5 * sizeof(std::uint64_t));  // no page of it
    return 0;
  }
  return __real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

int __wrap_fstat(int descriptor, struct stat* status) {
  const int error = ask([](State& all, const SystemRules& rules) -> int {
    ++all.status_count;
    const int refusal = rules.status ? rules.status(all.status_count) : 0;
    all.injected_count += refusal != 0 ? 1U : 0U;
    return refusal;
  });
  if (error == 0) return __real_fstat(descriptor, status);
  errno = error;
  return -1;
}

int __wrap_statx(int folder, const char* path, int flags, unsigned mask, struct statx* status) {
  const int result = __real_statx(folder, path, flags, mask, status);
  const std::optional<std::uint32_t> alignment =
      ask([](State& all, const SystemRules& rules) -> std::optional<std::uint32_t> {
        all.injected_count += rules.direct_alignment_bytes ? 1U : 0U;
        return rules.direct_alignment_bytes;
      });
  if (result != 0 || !alignment) return result;
  status->stx_mask |= STATX_DIOALIGN;
  status->stx_dio_mem_align = *alignment;
  status->stx_dio_offset_align = *alignment;
  return 0;
}

void* __wrap_dlsym(void* library, const char* name) {
  const bool is_hidden = ask([&](State& all, const SystemRules& rules) -> bool {
    const bool hidden = rules.hidden_symbols.contains(name);
    all.injected_count += hidden ? 1U : 0U;
    return hidden;
  });
  return is_hidden ? nullptr : __real_dlsym(library, name);
}

int __wrap_io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  const int error = ask([](State& all, const SystemRules& rules) -> int {
    all.injected_count += rules.uring_setup_error != 0 ? 1U : 0U;
    return rules.uring_setup_error;
  });
  if (error != 0) return -error;
  {
    const std::lock_guard lock(state().mutex);
    state().rings[ring] = {};
  }
  return __real_io_uring_queue_init(entries, ring, flags);
}

int __wrap_io_uring_submit_and_wait(io_uring* ring, unsigned count) {
  if (!is_active.load()) return __real_io_uring_submit_and_wait(ring, count);
  note_submissions(ring);
  const int submitted = __real_io_uring_submit_and_wait(ring, count);
  change_completions(ring);
  return submitted;
}

}  // extern "C"
