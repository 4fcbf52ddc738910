// Reads while a device is being opened: a CUDA context takes 0.3 s (H200), in which one drive gives half a
// gigabyte and an array of them eight. What comes goes into the page cache, as the load's own cold reads do.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/request.hpp>

#include "storage/file.hpp"

#include <cstdint>
#include <memory>
#include <thread>

namespace inrush::engine {

class ReadAhead {
 public:
  // Begins on a thread, unless the load may go past the page cache or has a predicate of the caller's, which
  // is asked on the caller's thread only. Never throws for what storage does: the load will meet it.
  ReadAhead(const Checkpoint& checkpoint, const LoadRequest& request, std::shared_ptr<const Store> store);
  // A read that does not return is left behind with its thread, which owns what it uses.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Begins no further read, and waits for none.
  void end() noexcept;
  // So far, of stretches of 16 MiB that were not whole in the page cache.
  [[nodiscard]] std::uint64_t read_bytes() const noexcept;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace inrush::engine
