// Shell globs over tensor names: * ? [a-z] [!a] and \x for a literal x. Dots and slashes are ordinary
// characters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace inrush::engine {

[[nodiscard]] bool has_wildcards(std::string_view pattern);
// The one name that the pattern matches where each wildcard in it is escaped; nothing where one is not.
[[nodiscard]] std::optional<std::string> literal_of(std::string_view pattern);
// The whole of `name` matches. `?` and sets stand for one character (a code point, not a byte) of UTF-8. A
// `[` that is never closed is an ordinary character. Takes at most |pattern| x |name| steps, whatever the
// number of stars.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name);

}  // namespace inrush::engine
