// Opens names that a folder or an index gave, without leaving the place that they belong to: by openat2 where
// the kernel offers it, else by a walk that resolves each component and link itself. Stateless; any thread;
// blocks on storage.
#pragma once

#include "base/unique_fd.hpp"

#include <fcntl.h>

#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {

// O_NONBLOCK: a FIFO in the place of a file answers at once and is then refused. O_NOCTTY: a terminal does
// not become ours.
inline constexpr int read_open_flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

struct OpenOutcome {
  UniqueFd fd;
  int error = 0;  // errno; EXDEV: a link or ".." leads out
};

// What `name` means beneath `folder`, a path that is followed wherever it leads.
[[nodiscard]] OpenOutcome open_inside_folder(const std::string& folder, const std::string& name);
// As above, for links that lead out of a snapshot of the Hugging Face cache:
//   models--org--name/snapshots/<commit>/model.safetensors -> ../../blobs/<hash>
// EXDEV where the folder is no such snapshot, or the link leads elsewhere than into the blobs of the same
// entry.
[[nodiscard]] OpenOutcome open_inside_cache_entry(const std::string& folder, const std::string& name);

struct WalkOutcome {
  UniqueFd fd;
  int error = 0;
  std::vector<std::string> place;  // components from the root to the file, links resolved
};

// No component is followed by the kernel, so no link that is exchanged meanwhile can lead out. As
// RESOLVE_BENEATH of openat2, absolute links lead out wherever they point.
[[nodiscard]] WalkOutcome walk_beneath(int root_fd, std::string_view path);

}  // namespace inrush::engine
