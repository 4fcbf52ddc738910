// The one exception class of the library. Codes are named by what the caller can do about them.
// I/O threads never throw; an Error is thrown only on the thread that called discover(), make_plan(),
// start(), next() or get().
#pragma once

#include <inrush/version.hpp>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace inrush::inline v0 {

enum class ErrorCode {
  invalid_request,     // the request contradicts itself or the checkpoint: change the request
  environment_unfit,   // the device or the forced path does not exist on this machine: choose another, or
                       // another machine
  not_found,           // a file or folder is missing or may not be opened: check the path and its permissions
  corrupt_checkpoint,  // the bytes are not what the format or the index says: get the file again
  storage_failed,      // the storage refused or failed a read: check the disk or the network
  out_of_memory,       // host, pinned or device memory: load less, or free some
  device_failed,       // the GPU or its driver returned an error
  timed_out,           // the deadline of the request passed
  cancelled,           // somebody called cancel(), or `interrupted` said so
  internal,            // a bug of this library: report it
};

// "corrupt_checkpoint" and so on.
[[nodiscard]] INRUSH_API std::string_view error_code_name(ErrorCode code) noexcept;

// what() reads from the outermost place to the cause and ends with the remedy where there is one:
//   load llama: model-00002.safetensors bytes [1048576, 5242880): pread: Input/output error
class INRUSH_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int system_error = 0);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // errno of the system call that failed; 0 where none did.
  [[nodiscard]] int system_error() const noexcept { return system_error_; }
  // The same error with "place: " before its message.
  [[nodiscard]] Error within(std::string_view place) const;

 private:
  ErrorCode code_;
  int system_error_;
};

// One code of cuFile, NVIDIA's library for GPUDirect Storage.
struct Explanation {
  int code = 0;              // 5001 to 5050
  std::string_view name;     // CU_FILE_DRIVER_NOT_INITIALIZED
  std::string_view meaning;  // in our words
  std::string_view cause;    // the likely one in practice
  std::string_view remedy;
};

// All of them, by code.
[[nodiscard]] INRUSH_API std::span<const Explanation> cufile_errors() noexcept;
// Null where there is no such code. A negative one means the same, as cuFileRead returns it.
[[nodiscard]] INRUSH_API const Explanation* explain_cufile_error(int code) noexcept;

}  // namespace inrush::inline v0
