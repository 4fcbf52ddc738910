#include "fakes/libcufile/target_memory.hpp"

#include "fakes/fake_cuda.hpp"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace inrush::fakes::cufile {

namespace {

// Null where no libcuda is loaded, or the real one.
const FakeCudaControl* fake_cuda() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto control = reinterpret_cast<const FakeCudaControl* (*)()>(::dlsym(library, "fake_cuda_control"));
  const FakeCudaControl* const found = control != nullptr ? control() : nullptr;
  ::dlclose(library);  // our reference only
  return found;
}

engine::CuAddress address_of(const std::byte* start) { return reinterpret_cast<std::uintptr_t>(start); }

// Asks about 0 bytes, so that nothing is touched under a copy in flight.
bool is_in_block(const FakeCudaControl& cuda, const std::byte* place) {
  std::byte nothing{};
  return cuda.read_device(&nothing, address_of(place), 0) != 0;
}

// The kernel looks, and says so instead of raising a signal.
bool is_host_memory(const std::byte* place) {
  std::byte byte{};
  iovec here = {&byte, 1};
  iovec there = {const_cast<std::byte*>(place), 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

}  // namespace

Reach reach_of(const MemoryRange& range) {
  const FakeCudaControl* const cuda = fake_cuda();
  const std::byte* const end = range.start + range.bytes;
  if (cuda != nullptr && is_in_block(*cuda, range.start))
    return is_in_block(*cuda, end) ? Reach::device : Reach::beyond;
  if (range.bytes == 0) return Reach::host;
  return is_host_memory(range.start) && is_host_memory(end - 1) ? Reach::host : Reach::none;
}

bool store(const MemoryRange& target, const std::byte* source, Reach reach) {
  if (reach != Reach::device) {
    std::memcpy(target.start, source, target.bytes);
    return true;
  }
  const FakeCudaControl* const cuda = fake_cuda();
  return cuda != nullptr && cuda->write_device(address_of(target.start), source, target.bytes) != 0;
}

bool fetch(std::byte* target, const MemoryRange& source, Reach reach) {
  if (reach != Reach::device) {
    std::memcpy(target, source.start, source.bytes);
    return true;
  }
  const FakeCudaControl* const cuda = fake_cuda();
  return cuda != nullptr && cuda->read_device(target, address_of(source.start), source.bytes) != 0;
}

}  // namespace inrush::fakes::cufile
