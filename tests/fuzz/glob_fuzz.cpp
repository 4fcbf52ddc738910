// glob_matches() against a matcher that is slow and simple, and against the number of steps that it promises.
// The input is a pattern, a zero byte and a name.
#include "fuzz/require.hpp"
#include "plan/glob.hpp"

#include <algorithm>
#include <string>
#include <vector>

// What C++20 added to it is declared as compiled elsewhere, and is missing in the library of g++ 12; calls
// that are counted are not inlined, so glob.cpp needs it.
template class std::allocator<char>;

namespace inrush::fuzz {

namespace {

constexpr std::size_t text_bytes_max = 400;
// Calls that the compiler counts for one step, those of the standard library included; 24 is the most that
// was seen.
constexpr std::uint64_t calls_per_step = 50;

std::uint64_t call_count = 0;

using Characters = std::vector<char32_t>;

// Bytes that begin no character stand for themselves, above all code points.
Characters characters_of(std::string_view text) {
  Characters characters;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    std::size_t size = lead >= 0xF0 && lead < 0xF5   ? 4
                       : lead >= 0xE0 && lead < 0xF0 ? 3
                       : lead >= 0xC2                ? 2
                                                     : 1;
    if (lead >= 0xF5 || at + size > text.size()) size = 1;
    char32_t value = size == 1 ? lead : lead & (0x7FU >> size);
    for (std::size_t i = 1; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if ((byte & 0xC0) != 0x80) size = 1;
      value = value << 6 | (byte & 0x3F);
    }
    characters.push_back(size == 1 && lead >= 0x80 ? char32_t{0x110000} + lead : size == 1 ? lead : value);
    at += size;
  }
  return characters;
}

struct Token {
  bool is_star = false;
  bool is_negated = false;
  std::vector<std::pair<char32_t, char32_t>> ranges;

  [[nodiscard]] bool takes(char32_t value) const {
    const auto holds = [&](const auto& range) { return range.first <= value && value <= range.second; };
    return std::ranges::any_of(ranges, holds) != is_negated;
  }
};

// A set that starts at `at`, which moves behind it. Stays where it is if the set is not closed.
Token set_at(const Characters& pattern, std::size_t& at) {
  Token token;
  std::size_t next = at + 1;
  token.is_negated = next < pattern.size() && (pattern[next] == '!' || pattern[next] == '^');
  if (token.is_negated) ++next;
  for (const std::size_t first = next; next < pattern.size();) {
    if (pattern[next] == ']' && next > first) {
      at = next + 1;
      break;
    }
    const bool is_range = next + 2 < pattern.size() && pattern[next + 1] == '-' && pattern[next + 2] != ']';
    token.ranges.emplace_back(pattern[next], pattern[next + (is_range ? 2 : 0)]);
    next += is_range ? 3 : 1;
  }
  return token;
}

std::vector<Token> tokens_of(const Characters& pattern) {
  std::vector<Token> tokens;
  for (std::size_t at = 0; at < pattern.size();) {
    if (pattern[at] == '[') {
      const std::size_t before = at;
      Token token = set_at(pattern, at);
      if (at > before) {
        tokens.push_back(std::move(token));
        continue;
      }
    }
    if (pattern[at] == '*' || pattern[at] == '?') {
      tokens.push_back({.is_star = pattern[at] == '*', .is_negated = true, .ranges = {}});
    } else {
      if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
      tokens.push_back({.is_star = false, .is_negated = false, .ranges = {{pattern[at], pattern[at]}}});
    }
    ++at;
  }
  return tokens;
}

bool expected_match(std::string_view pattern, std::string_view name) {
  const Characters characters = characters_of(name);
  std::vector<bool> reached(characters.size() + 1);  // by the tokens so far: how much of the name they take
  reached[0] = true;
  for (const Token& token : tokens_of(characters_of(pattern))) {
    std::vector<bool> next(reached.size());
    for (std::size_t i = 0; i < reached.size(); ++i) {
      if (token.is_star) {
        next[i] = reached[i] || (i > 0 && next[i - 1]);
      } else if (i > 0) {
        next[i] = reached[i - 1] && token.takes(characters[i - 1]);
      }
    }
    reached = next;
  }
  return reached.back();
}

}  // namespace

}  // namespace inrush::fuzz

extern "C" void __cyg_profile_func_enter(void*, void*) { ++inrush::fuzz::call_count; }
extern "C" void __cyg_profile_func_exit(void*, void*) {}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace inrush;
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view pattern = input.substr(0, std::min(end, fuzz::text_bytes_max));
  const std::string_view name = input.substr(std::min(end + 1, input.size())).substr(0, fuzz::text_bytes_max);
  fuzz::call_count = 0;
  const bool matches = engine::glob_matches(pattern, name);
  const std::uint64_t steps_max = (pattern.size() + 1) * (name.size() + 1);
  fuzz::require(fuzz::call_count > 0, "calls are counted");
  fuzz::require(fuzz::call_count <= fuzz::calls_per_step * steps_max, "|pattern| x |name| steps");
  fuzz::require(matches == fuzz::expected_match(pattern, name), "both matchers agree");
  if (!engine::has_wildcards(pattern))
    fuzz::require(matches == (pattern == name), "a name matches itself alone");
  return 0;
}
