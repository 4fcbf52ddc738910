// Preloaded into an interpreter (LD_PRELOAD): the n-th pread from now on goes wrong in one way.
// test_faults.py steers it by ctypes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace {

using Pread = ssize_t (*)(int, void*, size_t, off_t);

std::atomic<int> reads_left = 0;  // 0: nothing goes wrong
std::atomic<bool> was_injected = false;
std::string kind;
std::string path;  // of the file that is changed

void change_file() {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = 0;
  const Pread real = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread64"));
  real(fd, &last, 1, size - 1);
  if (kind == "shrunk") (void)!::ftruncate(fd, size / 2);
  if (kind == "grown") (void)!::pwrite(fd, &last, 1, size);
  if (kind == "rewritten") (void)!::pwrite(fd, &last, 1, size - 1);  // the same byte: only its times tell
  ::close(fd);
}

ssize_t faulty_pread(int fd, void* target, size_t size_bytes, off_t offset) {
  const Pread real = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread64"));
  if (reads_left == 0 || --reads_left != 0) return real(fd, target, size_bytes, offset);
  was_injected = true;
  if (kind == "EIO" || kind == "EINTR" || kind == "EAGAIN") {
    errno = kind == "EIO" ? EIO : kind == "EINTR" ? EINTR : EAGAIN;
    return -1;
  }
  if (kind == "short read") return real(fd, target, size_bytes > 1 ? size_bytes / 2 : size_bytes, offset);
  if (kind == "early end") return 0;
  change_file();
  return real(fd, target, size_bytes, offset);
}

}  // namespace

extern "C" {

void faulty_reads_arm(const char* new_kind, int nth, const char* new_path) {
  reads_left = 0;
  was_injected = false;
  kind = new_kind;
  path = new_path;
  reads_left = nth;
}

int faulty_reads_disarm() {
  reads_left = 0;
  return was_injected ? 1 : 0;
}

ssize_t pread(int fd, void* target, size_t size_bytes, off_t offset) {
  return faulty_pread(fd, target, size_bytes, offset);
}
ssize_t pread64(int fd, void* target, size_t size_bytes, off_t offset) {
  return faulty_pread(fd, target, size_bytes, offset);
}

}  // extern "C"
