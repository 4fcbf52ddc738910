#include "plan/near_names.hpp"

#include "base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace inrush::engine {

namespace {

constexpr std::size_t near_count_max = 3;

bool equal_letters(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// How much of the pattern a name shares at its two ends. Cheap enough for a million names, where an edit
// distance is not, and it ranks the usual slips well: another layer's number, a missing ".weight", a prefix
// too much.
std::size_t nearness(std::string_view pattern, std::string_view name) {
  const auto head = std::mismatch(pattern.begin(), pattern.end(), name.begin(), name.end(), equal_letters);
  const auto tail =
      std::mismatch(pattern.rbegin(), pattern.rend(), name.rbegin(), name.rend(), equal_letters);
  const auto ends = (head.first - pattern.begin()) + (tail.first - pattern.rbegin());
  if (name.find(pattern) != std::string_view::npos) return pattern.size() + static_cast<std::size_t>(ends);
  return static_cast<std::size_t>(ends);
}

}  // namespace

std::string near_names(const Checkpoint& checkpoint, std::string_view pattern) {
  struct Near {
    std::size_t nearness = 0;
    std::string_view name;
  };
  std::vector<Near> nearest;
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const std::string_view name = checkpoint.tensor(i).name;
    const Near candidate = {nearness(pattern, name), name};
    if (candidate.nearness == 0) continue;
    const auto at = std::find_if(nearest.begin(), nearest.end(),
                                 [&](const Near& near) { return near.nearness < candidate.nearness; });
    nearest.insert(at, candidate);
    if (nearest.size() > near_count_max) nearest.pop_back();
  }
  if (nearest.empty())
    return fmt::format("it has {} tensors; `inrush inspect` lists them", checkpoint.tensor_count());
  std::vector<std::string> names;
  for (const Near& near : nearest) names.push_back(fmt::format("\"{}\"", printable(near.name)));
  return fmt::format("the nearest names are {}", fmt::join(names, ", "));
}

}  // namespace inrush::engine
