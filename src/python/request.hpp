// What Python's functions say of a load, as a LoadRequest.
#pragma once

#include <inrush/loader.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace inrush::python {

using Patterns = std::optional<std::vector<std::string>>;  // none: all tensors; empty: no tensor
using SliceMap = std::map<std::string, std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>>;

[[nodiscard]] LoadRequest make_request(const Patterns& only, const SliceMap& slices);
// "auto", "staged", "gds"; "auto", "keep", "bypass"; "event", "value". Throw invalid_request for any other
// word.
[[nodiscard]] PathPreference parse_path_preference(const std::string& word);
[[nodiscard]] PageCachePolicy parse_page_cache(const std::string& word);
[[nodiscard]] StreamWait parse_stream_wait(const std::string& word);

}  // namespace inrush::python
