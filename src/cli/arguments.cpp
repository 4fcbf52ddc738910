#include "cli/arguments.hpp"

#include <inrush/error.hpp>
#include <inrush/report.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <vector>

namespace inrush::engine {

namespace {

template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Cuts what stands before `separator` off the front of `text`.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t place = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, place);
  text.remove_prefix(std::min(place + 1, text.size()));
  return head;
}

struct DurationUnit {
  std::string_view name;
  double seconds = 0;
};

constexpr std::array<DurationUnit, 5> duration_units = {
    {{"", 1}, {"s", 1}, {"ms", 0.001}, {"m", 60}, {"h", 3600}}};
constexpr double duration_seconds_max = 366.0 * 24 * 3600;

// Levenshtein's distance.
std::size_t edit_count(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::pair<std::string, Slice> parse_slice(std::string_view spelling) {
  const std::size_t equals = spelling.rfind('=');
  if (equals != std::string_view::npos && equals > 0) {
    std::string_view numbers = spelling.substr(equals + 1);
    const auto dimension = parse_whole<std::uint32_t>(take_until(numbers, ':'));
    const auto start = parse_whole<std::uint64_t>(take_until(numbers, ':'));
    const auto length = parse_whole<std::uint64_t>(numbers);
    if (dimension && start && length)
      return {std::string(spelling.substr(0, equals)), {*dimension, *start, *length}};
  }
  throw Error(ErrorCode::invalid_request,
              fmt::format("--slice {}: write NAME=DIM:START:LENGTH, as in lm_head.weight=0:0:1024",
                          escape_text(spelling)));
}

std::chrono::nanoseconds parse_duration(std::string_view spelling) {
  double count = 0;
  const char* const last = spelling.data() + spelling.size();
  const auto [end, error] = std::from_chars(spelling.data(), last, count, std::chars_format::fixed);
  const std::string_view name(end, static_cast<std::size_t>(last - end));
  const auto unit = std::ranges::find(duration_units, name, &DurationUnit::name);
  const double seconds = error == std::errc() && unit != duration_units.end() ? count * unit->seconds : 0;
  // Both ends before the cast: a double beyond the range of an integer, negative too, has no value there.
  const bool in_range = seconds > 0 && seconds <= duration_seconds_max;
  const auto duration = std::chrono::duration<double>(in_range ? seconds : 0);
  const auto rounded = std::chrono::duration_cast<std::chrono::nanoseconds>(duration);
  if (rounded.count() > 0) return rounded;
  throw Error(ErrorCode::invalid_request,
              fmt::format("\"{}\" is not a time: write seconds, or 500ms, 30s, 2m", escape_text(spelling)));
}

std::string nearest_word(std::string_view word, std::span<const std::string> words) {
  // Two letters that changed places are two edits, which a word of four letters may have; three of four would
  // be a guess.
  std::size_t least = word.size() / 2 + 1;
  std::string nearest;
  for (const std::string& candidate : words) {
    const std::size_t count = edit_count(word, candidate);
    if (count < least) {
      least = count;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace inrush::engine
