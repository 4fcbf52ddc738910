// Memory that runs out on demand: every allocation of this program is counted, and the n-th of a thread
// fails. Without a sanitizer that is malloc itself, also as the C library calls it; a sanitizer has its own,
// so there it is operator new. Included by one file of a program, since it defines what the program allocates
// with.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace inrush::memory {

enum class Failure : std::uint8_t {
  once,      // the n-th allocation fails, those after it do not
  for_good,  // the n-th and all after it
};

// Allocations that are not freed yet, of all threads.
inline constinit std::atomic<std::int64_t> live_count = 0;

struct State {
  bool is_armed = false;
  Failure failure = Failure::once;
  std::uint64_t countdown = 0;
  std::uint64_t refused_count = 0;
};
inline constinit thread_local State state;

inline bool refuses() {
  if (!state.is_armed) return false;
  if (state.countdown > 0) --state.countdown;
  const bool is_due =
      state.countdown == 0 && (state.refused_count == 0 || state.failure == Failure::for_good);
  if (is_due) ++state.refused_count;
  return is_due;
}

inline void* counted(void* pointer) {
  if (pointer == nullptr) {
    errno = ENOMEM;
  } else {
    ++live_count;
  }
  return pointer;
}

// While it lives, the n-th allocation of this thread fails; n is 1 or more.
class Refusal {
 public:
  Refusal(std::uint64_t n, Failure failure) {
    state = {.is_armed = true, .failure = failure, .countdown = n, .refused_count = 0};
  }
  ~Refusal() { state.is_armed = false; }
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;
};

inline std::uint64_t refused_count() { return state.refused_count; }

}  // namespace inrush::memory

#define INRUSH_REPLACES __attribute__((visibility("default")))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

namespace inrush::memory {

inline void* allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  if (refuses()) return counted(nullptr);
  const std::size_t rounded = (size + alignment) / alignment * alignment;  // at least one byte
  return counted(std::aligned_alloc(alignment, rounded));
}

inline void* allocate_or_throw(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  void* const pointer = allocate(size, alignment);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

inline void release(void* pointer) {
  if (pointer != nullptr) --live_count;
  std::free(pointer);
}

}  // namespace inrush::memory

// clang-format off
#define INRUSH_NEW(NAME) \
  INRUSH_REPLACES void* NAME(std::size_t size) { return inrush::memory::allocate_or_throw(size); } \
  INRUSH_REPLACES void* NAME(std::size_t size, const std::nothrow_t&) noexcept { \
    return inrush::memory::allocate(size); \
  } \
  INRUSH_REPLACES void* NAME(std::size_t size, std::align_val_t alignment) { \
    return inrush::memory::allocate_or_throw(size, static_cast<std::size_t>(alignment)); \
  } \
  INRUSH_REPLACES void* NAME(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept { \
    return inrush::memory::allocate(size, static_cast<std::size_t>(alignment)); \
  }
#define INRUSH_DELETE(NAME) \
  INRUSH_REPLACES void NAME(void* pointer) noexcept { inrush::memory::release(pointer); } \
  INRUSH_REPLACES void NAME(void* pointer, std::size_t) noexcept { inrush::memory::release(pointer); } \
  INRUSH_REPLACES void NAME(void* pointer, const std::nothrow_t&) noexcept { \
    inrush::memory::release(pointer); \
  } \
  INRUSH_REPLACES void NAME(void* pointer, std::align_val_t) noexcept { inrush::memory::release(pointer); } \
  INRUSH_REPLACES void NAME(void* pointer, std::size_t, std::align_val_t) noexcept { \
    inrush::memory::release(pointer); \
  }
// clang-format on
INRUSH_NEW(operator new)
INRUSH_NEW(operator new[])
INRUSH_DELETE(operator delete)
INRUSH_DELETE(operator delete[])

#else

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* pointer, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* pointer);

INRUSH_REPLACES void* malloc(std::size_t size) noexcept {
  return inrush::memory::counted(inrush::memory::refuses() ? nullptr : __libc_malloc(size));
}

INRUSH_REPLACES void* calloc(std::size_t count, std::size_t size) noexcept {
  return inrush::memory::counted(inrush::memory::refuses() ? nullptr : __libc_calloc(count, size));
}

INRUSH_REPLACES void* realloc(void* pointer, std::size_t size) noexcept {
  if (pointer == nullptr) return malloc(size);
  if (size > 0 && inrush::memory::refuses()) {
    errno = ENOMEM;
    return nullptr;
  }
  if (size == 0) --inrush::memory::live_count;
  return __libc_realloc(pointer, size);
}

INRUSH_REPLACES void* memalign(std::size_t alignment, std::size_t size) noexcept {
  return inrush::memory::counted(inrush::memory::refuses() ? nullptr : __libc_memalign(alignment, size));
}

INRUSH_REPLACES void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return memalign(alignment, size);
}

INRUSH_REPLACES int posix_memalign(void** pointer, std::size_t alignment, std::size_t size) noexcept {
  void* const found = memalign(alignment, size);
  if (found == nullptr) return ENOMEM;
  *pointer = found;
  return 0;
}

INRUSH_REPLACES void free(void* pointer) noexcept {
  if (pointer != nullptr) --inrush::memory::live_count;
  __libc_free(pointer);
}
}

#endif
