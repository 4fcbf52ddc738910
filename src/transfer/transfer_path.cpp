#include "transfer/transfer_path.hpp"

#include <array>

namespace inrush::engine {

std::string_view route_name(Route route) noexcept {
  static constexpr std::array<std::string_view, route_count> names = {
      "page cache -> ring",
      "storage -> page cache -> ring",
      "O_DIRECT -> ring",
      "page cache -> in place",
      "storage -> page cache -> in place",
      "page cache -> device (registered windows)",
      "cuFile, not judged yet"};
  return names.at(static_cast<std::size_t>(route));
}

}  // namespace inrush::engine
