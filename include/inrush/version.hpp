// Version of the library and the export mark of its public symbols.
#pragma once

#define INRUSH_VERSION_MAJOR 0
#define INRUSH_VERSION_MINOR 1
#define INRUSH_VERSION_PATCH 0
#define INRUSH_VERSION "0.1.0"

// The library is compiled with hidden visibility; what carries this mark is its whole interface.
#define INRUSH_API __attribute__((visibility("default")))

namespace inrush::inline v0 {

// The version of the library that is running, which may differ from INRUSH_VERSION of the header you compiled
// with.
[[nodiscard]] INRUSH_API const char* version() noexcept;

}  // namespace inrush::inline v0
