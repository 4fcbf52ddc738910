// Which of a folder's files are the checkpoint. Pure.
#pragma once

#include "storage/file.hpp"

#include <string>
#include <vector>

namespace inrush::engine {

struct FolderChoice {
  std::string index;               // empty: no index, take `files`
  std::vector<std::string> files;  // sorted; of the top level
  std::vector<std::string> notes;
};

// One index if there is one, else model.safetensors, else all *.safetensors. Never .bin or .pth: they are
// pickles. Throws invalid_request (two indexes, too many files), not_found (nothing to load, and what there
// is instead).
[[nodiscard]] FolderChoice choose_files(const std::string& folder, const std::vector<ListedFile>& entries,
                                        const DiscoverOptions& options);

}  // namespace inrush::engine
