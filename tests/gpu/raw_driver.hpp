// A second, plain way to the GPU for the tests: no code of the engine's, so that it can judge what the engine
// did. One a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace inrush::gpu_tests {

class RawDriver {
 public:
  // Binds the primary context of device 0 to this thread. Throws std::runtime_error.
  RawDriver();
  ~RawDriver();
  RawDriver(const RawDriver&) = delete;
  RawDriver& operator=(const RawDriver&) = delete;

  [[nodiscard]] std::uint64_t allocate(std::uint64_t size_bytes);
  void free(std::uint64_t address);
  void fill(std::uint64_t address, unsigned char value, std::uint64_t size_bytes);
  void upload(std::uint64_t address, std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t free_bytes();
  // Compares on the GPU; returns how many bytes differ.
  [[nodiscard]] std::uint64_t count_different(std::uint64_t a, std::uint64_t b, std::uint64_t size_bytes);

  [[nodiscard]] void* open_stream();
  void close_stream(void* stream);
  // Queues a kernel that runs for so long.
  void spin(void* stream, std::uint64_t nanoseconds);
  void copy_on(void* stream, std::uint64_t target, std::uint64_t source, std::uint64_t size_bytes);
  void synchronize(void* stream);

 private:
  struct Entries;
  void check(int result, const char* call) const;
  void launch(void* function, void* stream, unsigned blocks, void** arguments);

  Entries* entries_;
  void* module_ = nullptr;
  void* compare_ = nullptr;
  void* spin_ = nullptr;
};

}  // namespace inrush::gpu_tests
