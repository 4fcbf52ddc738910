#include "gpu/cufile_errors.hpp"

#include "base/text.hpp"
#include "gpu/cufile_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace inrush::inline v0 {

namespace {

// Names and numbers: cufile.h of 1.14 to 1.20, where 5021 and 5032 do not exist. Causes and remedies:
// NVIDIA's troubleshooting guide and what was seen with 1.15 to 1.20. Sorted by code.
constexpr Explanation catalogue[] = {
    {5001, "CU_FILE_DRIVER_NOT_INITIALIZED", "the kernel side of GPUDirect Storage is not there",
     "neither nvidia-fs nor PCI P2PDMA can be used, and compat mode is forbidden",
     "load nvidia-fs or set P2PDMA up (kernel 6.2 or newer, open driver 565.47 or newer), or use the path "
     "staged"},
    {5002, "CU_FILE_DRIVER_INVALID_PROPS", "a property of the configuration is not valid",
     "(a guess) a value in cufile.json or of a set call that the library does not take",
     "compare cufile.json with the one that came with the library"},
    {5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT", "a property is outside its range",
     "(a guess) a size or a count in cufile.json is above its limit", "bring the value back into its range"},
    {5004, "CU_FILE_DRIVER_VERSION_MISMATCH", "nvidia-fs and libcufile do not fit each other",
     "the module is older than the library wants",
     "update nvidia-fs, or install the libcufile of its release"},
    {5005, "CU_FILE_DRIVER_VERSION_READ_ERROR", "the version of nvidia-fs could not be read",
     "(a guess) the module is loaded and its files under /proc or /dev are not there for this process",
     "in a container: give it /dev/nvidia-fs* (NVIDIA_GDS=enabled)"},
    {5006, "CU_FILE_DRIVER_CLOSING", "the driver is being closed", "a call that came while the process ends",
     "end all loads before the process does"},
    {5007, "CU_FILE_PLATFORM_NOT_SUPPORTED", "GPUDirect Storage does not run on this platform",
     "(a guess) a processor, a board or a virtual machine without peer-to-peer", "use the path staged"},
    {5008, "CU_FILE_IO_NOT_SUPPORTED", "GPUDirect Storage does not work for this file",
     "a file system or a disk without a direct way (overlay, tmpfs, network by TCP, a virtual disk), or a "
     "file "
     "that is compressed or encrypted",
     "keep the model on ext4 (data=ordered) or XFS on local NVMe, or use the path staged"},
    {5009, "CU_FILE_DEVICE_NOT_SUPPORTED", "GPUDirect Storage does not work with this GPU",
     "a GPU of the wrong family, or older than the library serves (Volta and older since 1.15)",
     "use the path staged"},
    {5010, "CU_FILE_NVFS_DRIVER_ERROR", "nvidia-fs refused a request",
     "an ioctl failed; the kernel log has the reason", "look into dmesg; use the path staged meanwhile"},
    {5011, "CU_FILE_CUDA_DRIVER_ERROR", "a call of the CUDA driver failed",
     "the driver's own error, which goes with this code", "see the driver's error"},
    {5012, "CU_FILE_CUDA_POINTER_INVALID", "the address is not device memory",
     "(a guess) memory that was freed, or was never allocated on a GPU",
     "report it: loads give the library their own ring"},
    {5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID", "memory of a kind that cannot be registered", "managed memory",
     "use plain device allocations"},
    {5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR", "the range is longer than its allocation",
     "a size that does not fit the memory", "report it: loads give the library their own ring"},
    {5015, "CU_FILE_CUDA_CONTEXT_MISMATCH", "the memory belongs to another CUDA context",
     "(a guess) a context other than the device's primary one is current",
     "use the primary context, as torch does"},
    {5016, "CU_FILE_INVALID_MAPPING_SIZE", "more memory than may be pinned",
     "(a guess) max_device_pinned_mem_size_kb is below the size", "raise the limit in cufile.json"},
    {5017, "CU_FILE_INVALID_MAPPING_RANGE", "a transfer beyond the registered range",
     "offset and size leave what was registered", "report it: loads stay inside their ring"},
    {5018, "CU_FILE_INVALID_FILE_TYPE", "not a kind of file that cuFile reads",
     "a folder, a pipe or a character device", "give it a regular file"},
    {5019, "CU_FILE_INVALID_FILE_OPEN_FLAG", "the file was opened with a flag that cuFile does not take",
     "O_APPEND or O_NONBLOCK", "open it without them"},
    {5020, "CU_FILE_DIO_NOT_SET", "the file was opened without O_DIRECT",
     "a library before 1.7, or a path that needs direct reads",
     "open it with O_DIRECT, or use a newer library"},
    {5022, "CU_FILE_INVALID_VALUE", "an argument is not valid",
     "a negative offset, size 0, a descriptor of -1, a batch that is too large", "report it"},
    {5023, "CU_FILE_MEMORY_ALREADY_REGISTERED", "this address is registered already",
     "registered twice, or freed without being deregistered and handed out again",
     "deregister before freeing; restart the process"},
    {5024, "CU_FILE_MEMORY_NOT_REGISTERED", "this address is not registered", "deregistered twice",
     "report it"},
    {5025, "CU_FILE_PERMISSION_DENIED", "the driver or the file may not be used",
     "(a guess) no access to /dev/nvidia-fs* or to the file",
     "check the permissions; in a container pass the devices in"},
    {5026, "CU_FILE_DRIVER_ALREADY_OPEN", "the driver is open, and its parameters are fixed",
     "another part of the process opened cuFile first (torch.cuda.gds, KvikIO)",
     "set parameters before the first open, or put them into cufile.json"},
    {5027, "CU_FILE_HANDLE_NOT_REGISTERED", "the file could not be registered, or is not",
     "no udev record of the disk: containers without /run/udev fail so for every file, as does tmpfs before "
     "1.16",
     "mount /run/udev read-only into the container (-v /run/udev:/run/udev:ro), or use the path staged"},
    {5028, "CU_FILE_HANDLE_ALREADY_REGISTERED", "this descriptor is registered already",
     "registered twice, or closed without being deregistered and opened again",
     "deregister before closing; report it"},
    {5029, "CU_FILE_DEVICE_NOT_FOUND", "the library finds no GPU",
     "(a guess) no device is visible, or the container has none",
     "check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {5030, "CU_FILE_INTERNAL_ERROR", "an error inside libcufile", "not told; its log may say",
     "read cufile.log; use the path staged meanwhile"},
    {5031, "CU_FILE_GETNEWFD_FAILED", "no further file descriptor", "the limit of open files",
     "raise ulimit -n"},
    {5033, "CU_FILE_NVFS_SETUP_ERROR", "nvidia-fs could not be set up",
     "no CUDA driver, or the module failed to start for this process",
     "check nvidia-smi, then lsmod | grep nvidia_fs"},
    {5034, "CU_FILE_IO_DISABLED", "the configuration forbids this file",
     "a denylist of cufile.json names its driver, device, mount or file system",
     "take it off the denylist, or use the path staged"},
    {5035, "CU_FILE_BATCH_SUBMIT_FAILED", "a batch could not be submitted", "not told; its log may say",
     "read cufile.log"},
    {5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED", "GPU memory could not be pinned for the bus",
     "the BAR1 window or the pin limit is used up",
     "end other users of it; see nvidia-smi -q -d MEMORY, BAR1"},
    {5037, "CU_FILE_BATCH_FULL", "the batch has no room", "(a guess) more entries than it was made for",
     "submit fewer at once"},
    {5038, "CU_FILE_ASYNC_NOT_SUPPORTED", "no stream-ordered reads for this file",
     "a file system that the library serves synchronously only", "use synchronous reads"},
    {5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR", "a batch could not be made", "not told; it may pass",
     "try again later"},
    {5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR", "a batch could not be submitted", "not told; it may pass",
     "try again later"},
    {5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR", "a batch could not be asked for its state",
     "not told; it may pass", "try again later"},
    {5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR", "a batch could not be cancelled", "not told; it may pass",
     "try again later"},
    {5043, "CU_FILE_NOMEM_ERROR", "the library has no memory left", "host memory, or its own buffers",
     "free memory; lower the cache sizes in cufile.json"},
    {5044, "CU_FILE_IO_ERROR", "a transfer failed", "(a guess) the disk, the fabric or the peer-to-peer link",
     "look into dmesg and the disk's health; use the path staged meanwhile"},
    {5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR", "memory could not be registered",
     "not told; its log may say", "read cufile.log; use the path staged meanwhile"},
    {5046, "CU_FILE_HASH_OPR_ERROR", "the library lost track of a handle or a buffer",
     "its own tables disagree", "restart the process; report it to NVIDIA"},
    {5047, "CU_FILE_INVALID_CONTEXT_ERROR", "no usable CUDA context", "none is current, or the device failed",
     "check the device; restart the process"},
    {5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR", "an error inside nvidia-fs",
     "not told; the kernel log has more", "look into dmesg; use the path staged meanwhile"},
    {5049, "CU_FILE_BATCH_NOCOMPAT_ERROR", "a batch needs compat mode, which is off",
     "the batch cannot go straight", "allow compat mode, or use single reads"},
    {5050, "CU_FILE_IO_MAX_ERROR", "the end of the list; not an error of its own", "a damaged return value",
     "report it"},
};

}  // namespace

std::span<const Explanation> cufile_errors() noexcept { return catalogue; }

const Explanation* explain_cufile_error(int code) noexcept {
  const int positive = code < 0 ? -std::max(code, -INT_MAX) : code;
  const auto found = std::ranges::find(catalogue, positive, &Explanation::code);
  return found == std::end(catalogue) ? nullptr : found;
}

}  // namespace inrush::inline v0

namespace inrush::engine {

CufileTransfer decode_cufile_transfer(ssize_t result, int errno_value, std::uint64_t asked_bytes) {
  if (result >= 0) {
    const auto moved_bytes = static_cast<std::uint64_t>(result);
    if (moved_bytes <= asked_bytes) return {moved_bytes, 0};
    return {0, cufile_internal_error};
  }
  if (result == -1) return {0, errno_value > 0 ? errno_value : EIO};
  // A negative code; what is not above the codes' base can only be meant as an errno.
  return {0, result > -100'000 ? static_cast<int>(-result) : cufile_internal_error};
}

std::string cufile_error_text(int code) {
  if (code <= cufile_code_base && code >= -cufile_code_base) return errno_text(code);
  const Explanation* const known = explain_cufile_error(code);
  if (known == nullptr) return fmt::format("cuFile error {}", code);
  return fmt::format("{} ({}): {}", known->name, known->code, known->meaning);
}

}  // namespace inrush::engine
