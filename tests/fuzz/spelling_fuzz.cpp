// Sizes, times and slices of the command line: what is taken is what was written, all else is a bad request.
#include <inrush/error.hpp>
#include <inrush/loader.hpp>

#include "cli/arguments.hpp"
#include "fuzz/require.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

namespace inrush::fuzz {

namespace {

// The value; nothing where it is refused, which must be as a bad request.
template <class Parse>
auto taken(const Parse& parse, std::string_view spelling) -> std::optional<decltype(parse(spelling))> {
  try {
    return parse(spelling);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_request, "what is refused is a bad request");
    return std::nullopt;
  }
}

// By another way than the table of the parser.
__uint128_t expected_bytes(std::string_view spelling) {
  __uint128_t bytes = 0;
  const std::size_t digits = std::min(spelling.find_first_not_of("0123456789"), spelling.size());
  for (const char digit : spelling.substr(0, digits)) bytes = bytes * 10 + static_cast<unsigned>(digit - '0');
  const std::string_view unit = spelling.substr(digits);
  if (unit.empty() || unit == "b" || unit == "B") return bytes;
  const std::size_t power =
      std::min(std::string_view("kmgt").find(unit[0]), std::string_view("KMGT").find(unit[0]));
  require(power < 4, "a unit begins with k, m, g or t");
  for (std::size_t i = 0; i <= power; ++i) bytes *= unit.size() == 2 ? 1000 : 1024;
  return bytes;
}

void check_bytes(std::string_view spelling) {
  const auto bytes = taken(parse_bytes, spelling);
  if (!bytes) return;
  require(!spelling.empty() && spelling[0] >= '0' && spelling[0] <= '9', "a size begins with a digit");
  require(spelling.find_first_not_of('0') == std::string_view::npos || expected_bytes(spelling) == *bytes,
          "a size is what its digits and unit say");
}

void check_duration(std::string_view spelling) {
  const auto duration = taken(engine::parse_duration, spelling);
  if (duration) require(duration->count() > 0 && *duration <= std::chrono::hours(366 * 24), "up to a year");
}

void check_slice(std::string_view spelling) {
  const auto named = taken(engine::parse_slice, spelling);
  if (!named) return;
  const Slice& slice = named->second;
  const std::string again = named->first + "=" + std::to_string(slice.dimension) + ":" +
                            std::to_string(slice.start) + ":" + std::to_string(slice.length);
  require(!named->first.empty() && spelling.starts_with(named->first + "="),
          "the name is what stands before =");
  require(taken(engine::parse_slice, again) == named, "a slice can be written again");
}

void check_words(std::string_view word) {
  static const std::array<std::string, 4> words = {"load", "inspect", "env", "version"};
  const std::string nearest = engine::nearest_word(word, words);
  require(nearest.empty() || std::ranges::find(words, nearest) != words.end(), "one of the words, or none");
}

}  // namespace

}  // namespace inrush::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace inrush;
  const std::string_view spelling = fuzz::text_of(data, size);
  fuzz::check_bytes(spelling);
  fuzz::check_duration(spelling);
  fuzz::check_slice(spelling);
  fuzz::check_words(spelling.substr(0, 64));
  return 0;
}
