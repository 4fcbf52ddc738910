#include "plan/glob.hpp"

#include <cstddef>
#include <optional>

namespace inrush::engine {

namespace {

struct Character {
  char32_t value = 0;
  std::size_t size = 0;  // bytes
};

// Lenient: a byte that starts no UTF-8 sequence is a character of its own, above all code points, so that it
// equals only itself.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const Character raw = {char32_t{0x110000} + lead, 1};
  const std::size_t size = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
  if (size == 1 || size > text.size()) return raw;
  auto value = static_cast<char32_t>(lead & (0x7F >> size));
  for (std::size_t i = 1; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return raw;
    value = (value << 6) | (byte & 0x3F);
  }
  return {value, size};
}

struct SetMatch {
  std::size_t size = 0;  // bytes of the set in the pattern
  bool contains = false;
};

// `pattern` starts with '[' and is the end of a whole one whose last ']' has `tail_bytes` from there on.
// Nothing where the set is not closed, and no look at the rest then: a pattern of many '[' would else take
// the square of its length for each character of a name.
std::optional<SetMatch> match_set(std::string_view pattern, std::size_t tail_bytes, char32_t value) {
  std::size_t at = 1;
  const bool negated = at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^');
  if (negated) ++at;
  if (pattern.size() <= at + tail_bytes) return std::nullopt;
  bool contains = false;
  // As in the shell, a ']' that comes first belongs to the set.
  for (const std::size_t first = at; at < pattern.size();) {
    if (pattern[at] == ']' && at != first) return SetMatch{at + 1, contains != negated};
    const Character low = first_character(pattern.substr(at));
    at += low.size;
    Character high = low;
    if (at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']') {
      high = first_character(pattern.substr(at + 1));
      at += 1 + high.size;
    }
    contains = contains || (low.value <= value && value <= high.value);
  }
  return std::nullopt;
}

// Bytes of the one-character pattern at the start of `pattern` where it matches `value`; 0 where it does not.
std::size_t match_character(std::string_view pattern, std::size_t tail_bytes, char32_t value) {
  if (pattern[0] == '?') return 1;
  if (pattern[0] == '[') {
    if (const auto set = match_set(pattern, tail_bytes, value)) return set->contains ? set->size : 0;
  }
  const std::size_t escape = pattern[0] == '\\' && pattern.size() > 1 ? 1 : 0;
  const Character literal = first_character(pattern.substr(escape));
  return literal.value == value ? escape + literal.size : 0;
}

}  // namespace

bool has_wildcards(std::string_view pattern) {
  return pattern.find_first_of("*?[\\") != std::string_view::npos;
}

std::optional<std::string> literal_of(std::string_view pattern) {
  std::string literal;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*' || pattern[i] == '?' || pattern[i] == '[') return std::nullopt;
    if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
    literal += pattern[i];
  }
  return literal;
}

bool glob_matches(std::string_view pattern, std::string_view name) {
  // Only the last star can need another try: what an earlier one took is settled once the text between them
  // matched.
  std::optional<std::string_view> after_star;
  std::string_view star_name;
  const std::size_t last_close = pattern.rfind(']');
  const std::size_t tail_bytes = pattern.size() - (last_close == std::string_view::npos ? 0 : last_close);
  while (!name.empty()) {
    if (!pattern.empty() && pattern[0] == '*') {
      pattern.remove_prefix(1);
      after_star = pattern;
      star_name = name;
      continue;
    }
    const Character character = first_character(name);
    if (const auto size = pattern.empty() ? 0 : match_character(pattern, tail_bytes, character.value);
        size > 0) {
      pattern.remove_prefix(size);
      name.remove_prefix(character.size);
      continue;
    }
    if (!after_star) return false;
    star_name.remove_prefix(first_character(star_name).size);
    name = star_name;
    pattern = *after_star;
  }
  return pattern.find_first_not_of('*') == std::string_view::npos;
}

}  // namespace inrush::engine
