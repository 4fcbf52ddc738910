// Spellings of the command line as values, and what a mistyped word may have meant. Pure functions.
#pragma once

#include <inrush/request.hpp>

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace inrush::engine {

// "NAME=DIM:START:LENGTH". The name may hold '=' and ':'. Throws invalid_request.
[[nodiscard]] std::pair<std::string, Slice> parse_slice(std::string_view spelling);
// "5", "5s", "1.5s", "500ms", "2m", "1h"; more than zero, at most a year. Throws invalid_request.
[[nodiscard]] std::chrono::nanoseconds parse_duration(std::string_view spelling);
// The one of `words` that takes the fewest edits from `word`; empty where none is near.
[[nodiscard]] std::string nearest_word(std::string_view word, std::span<const std::string> words);

}  // namespace inrush::engine
