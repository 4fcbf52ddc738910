// What the caller wants loaded, where to, and within which limits. A plain value.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/device.hpp>
#include <inrush/version.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inrush::inline v0 {

// A part of one tensor: elements [start, start + length) of one dimension, all of the others.
struct Slice {
  std::uint32_t dimension = 0;
  std::uint64_t start = 0;
  std::uint64_t length = 0;

  bool operator==(const Slice&) const = default;
};

// Memory that the caller provides.
struct Allocation {
  void* pointer = nullptr;
  std::shared_ptr<void> owner = {};  // keeps the memory alive; every tensor in it shares it
  void* stream =
      nullptr;  // CUstream that may still use the block: the first copy waits for what is queued there now
  bool stream_ordered = false;  // whether `stream` counts (a null stream is a stream too)
};

// Memory of the caller that one tensor (or the slice of it that is asked for) is written to.
struct Target {
  void* pointer = nullptr;  // on LoadRequest::device, at any alignment; may be null where there are no bytes
  std::uint64_t size_bytes = 0;
};

// Tensors that are written to memory which exists. Nobody else may use that of a tensor from start() until
// the tensor is handed out or the load has ended (next() or get() threw, or the Load is gone); where a load
// fails, Report::overwritten_targets says which ones were reached.
struct Targets {
  std::map<std::string, Target> by_name = {};
  std::shared_ptr<void> owner = {};  // keeps all of them alive
  void* stream = nullptr;            // as in Allocation
  bool stream_ordered = false;
};

// Called only on the thread that is in Loader::start(), Load::next() or Load::get(). It may throw; the load
// then ends with that error.
using AllocateFunction =
    std::function<Allocation(const Device& device, std::uint64_t size_bytes, std::uint64_t alignment_bytes)>;

enum class PathPreference : std::uint8_t {
  automatic,  // the fastest path that is usable, fallbacks allowed and reported
  staged,     // storage -> pinned host ring -> device
  gds,        // GPUDirect Storage: storage -> device by cuFile, compat mode forbidden. Where that cannot be
        // opened the load fails with the reason; files that cuFile refuses come staged, and are reported
  cufile_compat,  // cuFile's own way through host memory, to compare with: never chosen unless it measured
                  // faster
};

enum class PageCachePolicy : std::uint8_t {
  automatic,  // keep where the model fits in the memory that host and cgroup have free, else bypass
  keep,       // a cold read leaves its pages in the page cache: the next start is warm
  bypass,     // a cold read goes by O_DIRECT and leaves the page cache as it was
};

struct LoadRequest {
  Device device = {};
  // Names or globs (* ? [...]); a tensor is taken when any matches. Empty: all. A pattern that matches
  // nothing is invalid_request.
  std::vector<std::string> only = {};
  // A further predicate on what `only` selected.
  std::function<bool(const TensorInfo&)> select = {};
  // By tensor name. A slice must fall on byte boundaries (F4, F6).
  std::map<std::string, Slice> slices = {};
  // Without it the library allocates, a slab at a time, and frees a slab with the last tensor in it.
  AllocateFunction allocate = {};
  // Tensors that get no memory but are written to the caller's. invalid_request, before anything is written:
  // a target of a tensor that is unknown or not selected, of another size than its bytes, null, or
  // overlapping another one.
  Targets targets = {};
  PathPreference path = PathPreference::automatic;
  PageCachePolicy page_cache = PageCachePolicy::automatic;
  // Device bytes that may be filled and not yet taken by next(), targets not counted; 0: no limit.
  std::uint64_t window_bytes_max = 0;
  // The whole load fails with timed_out after this time; 0: none. Counted from start().
  std::chrono::nanoseconds deadline = {};
  // Asked on the thread that is in start(), next() or get(): between files and slabs, and at least every 50
  // ms while it waits. True ends the load and that call with `cancelled`. It may throw; the load then ends
  // with that exception.
  std::function<bool()> interrupted = {};
};

}  // namespace inrush::inline v0
