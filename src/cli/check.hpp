// `inrush load --check`: reads every loaded byte again from its file, by plain open and pread of its own and
// without a plan, and compares it with what is on the device. Independent of the engine on purpose.
#pragma once

#include <inrush/loader.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace inrush::engine {

struct CheckResult {
  std::uint64_t tensor_count = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

// What was asked for, and what came.
struct CheckSubject {
  const Checkpoint& checkpoint;
  const std::map<std::string, Slice>& slices;
  std::span<const Tensor> tensors;
};

// `progress` is called for each chunk and may throw. Throws corrupt_checkpoint naming the tensor and the
// offset of the first byte that differs, not_found or storage_failed where the file cannot be read.
[[nodiscard]] CheckResult check_tensors(Loader& loader, const CheckSubject& subject,
                                        const std::function<void(const Progress&)>& progress);

}  // namespace inrush::engine
