#include <inrush/version.hpp>

namespace inrush::inline v0 {

const char* version() noexcept { return INRUSH_VERSION; }

}  // namespace inrush::inline v0
