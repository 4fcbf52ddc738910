// Files and memory that the library knows.
#include "fakes/libcufile/fake_library.hpp"
#include "fakes/libcufile/target_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace inrush::fakes::cufile {

namespace {

// 0, or why this descriptor cannot be registered on this machine.
int describe(const Library& all, RegisteredFile& file) {
  struct stat facts = {};
  const int flags = ::fcntl(file.descriptor, F_GETFL);
  if (flags < 0 || ::fstat(file.descriptor, &facts) != 0) return code::invalid_value;
  const bool is_known = std::any_of(all.driver.files.begin(), all.driver.files.end(), [&](const auto& known) {
    return known.second->descriptor == file.descriptor;
  });
  if (is_known) return code::handle_already_registered;
  if (!S_ISREG(facts.st_mode) && !S_ISBLK(facts.st_mode)) return code::file_type;
  if ((flags & (O_APPEND | O_NONBLOCK)) != 0) return code::open_flag;
  if (!all.steering.has_udev_record) return code::handle_not_registered;
  file.is_direct = (flags & O_DIRECT) != 0;
  file.device = facts.st_dev;
  file.inode = facts.st_ino;
  const bool can_be_direct = all.pretends() || (file.is_direct && all.can_go_direct());
  return can_be_direct || all.driver.settings.allows_compat ? 0 : code::io_not_supported;
}

bool is_still_open(const RegisteredFile& file) {
  struct stat facts = {};
  return ::fstat(file.descriptor, &facts) == 0 && facts.st_dev == file.device && facts.st_ino == file.inode;
}

int register_memory(Library& all, const std::byte* start, std::uint64_t bytes) {
  if (start == nullptr || bytes == 0) return code::invalid_value;
  if (all.driver.buffers.contains(start)) return code::already_registered;
  const Reach reach = reach_of({const_cast<std::byte*>(start), bytes});
  if (reach == Reach::beyond) return code::pointer_range;
  if (reach == Reach::none) return code::pointer_invalid;
  all.driver.buffers[start] = std::make_shared<RegisteredMemory>(RegisteredMemory{bytes, 0});
  all.driver.peak_registered_bytes = std::max(all.driver.peak_registered_bytes, all.live().registered_bytes);
  return 0;
}

}  // namespace

FAKE_CUFILE_EXPORT CufileStatus cuFileHandleRegister(engine::CufileHandle* handle,
                                                     engine::CufileDescriptor* descriptor) {
  if (const int answer = enter("cuFileHandleRegister")) return status_of(answer);
  Library& all = library();
  const Lock lock(all.mutex);
  if (const int answer = all.require_open()) return status_of(answer);
  if (handle == nullptr || descriptor == nullptr || descriptor->type != engine::cufile_handle_fd)
    return status_of(code::invalid_value);
  RegisteredFile file;
  file.descriptor = descriptor->handle.fd;
  if (const int answer = describe(all, file)) return status_of(answer);
  *handle = reinterpret_cast<engine::CufileHandle>(++all.last_handle);
  all.driver.files[*handle] = std::make_shared<RegisteredFile>(file);
  return status_of(0);
}

FAKE_CUFILE_EXPORT void cuFileHandleDeregister(engine::CufileHandle handle) {
  static_cast<void>(enter("cuFileHandleDeregister"));
  Library& all = library();
  const Lock lock(all.mutex);
  const auto found = all.driver.files.find(handle);
  if (found == all.driver.files.end()) {
    all.misuse("cuFileHandleDeregister", "of an unknown handle", 0);
    return;
  }
  if (found->second->running > 0) all.misuse("cuFileHandleDeregister", "while a read or write runs", 0);
  if (!is_still_open(*found->second))
    all.misuse("cuFileHandleDeregister", "after its descriptor was closed", 0);
  all.driver.files.erase(found);
}

FAKE_CUFILE_EXPORT CufileStatus cuFileBufRegister(const void* memory, std::size_t bytes, int) {
  if (const int answer = enter("cuFileBufRegister")) return status_of(answer);
  Library& all = library();
  const Lock lock(all.mutex);
  if (const int answer = all.require_open()) return status_of(answer);
  const int answer = register_memory(all, static_cast<const std::byte*>(memory), bytes);
  if (all.driver.is_counting) {
    engine::CufileGpuCounters& counters = all.driver.counters;
    ++counters.registrations;
    ++(answer == 0 ? counters.registrations_ok : counters.registrations_failed);
    if (answer == 0) counters.registered_bytes += bytes;
  }
  return status_of(answer);
}

FAKE_CUFILE_EXPORT CufileStatus cuFileBufDeregister(const void* memory) {
  const int fault = enter("cuFileBufDeregister");
  Library& all = library();
  const Lock lock(all.mutex);
  const auto found = all.driver.buffers.find(static_cast<const std::byte*>(memory));
  if (found == all.driver.buffers.end())
    return status_of(all.misuse("cuFileBufDeregister", "of unknown memory", code::not_registered));
  if (found->second->running > 0) all.misuse("cuFileBufDeregister", "while a read or write runs", 0);
  if (reach_of({const_cast<std::byte*>(found->first), found->second->bytes}) == Reach::none)
    all.misuse("cuFileBufDeregister", "after its memory was freed", 0);
  all.driver.buffers.erase(found);
  if (all.driver.is_counting) ++all.driver.counters.deregistrations;
  return status_of(fault);
}

}  // namespace inrush::fakes::cufile
