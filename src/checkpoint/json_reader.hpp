// One pass over a JSON text as events, for headers and indexes. No tree is built: what nobody wants costs no
// memory. Strict JSON in UTF-8, as serde_json (the reference reader) takes it: no comments, no byte order
// mark, no number out of range.
#pragma once

#include <boost/json/basic_parser_impl.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace inrush::engine {

enum class JsonNesting : std::uint8_t { object, array };
enum class JsonLiteral : std::uint8_t { null, boolean };
enum class JsonKey : std::uint8_t {
  take,    // the value comes as events
  ignore,  // the value is checked for syntax and otherwise skipped, whatever it holds
  stop,    // `fault` is set
};

struct JsonNumber {
  std::uint64_t value = 0;
  bool is_natural = false;  // an integer in [0, 2^64), written without sign, fraction and exponent
};

// What read_json() calls. Every `bool` is false to stop, after `fault` was set.
template <class Events>
concept JsonEvents = requires(Events events, std::string_view text, JsonNumber number) {
  { events.key(text) } -> std::same_as<JsonKey>;
  { events.string(text) } -> std::same_as<bool>;
  { events.number(number) } -> std::same_as<bool>;
  { events.literal(JsonLiteral::null) } -> std::same_as<bool>;
  { events.begin(JsonNesting::object) } -> std::same_as<bool>;
  { events.end(JsonNesting::object) } -> std::same_as<bool>;
  { events.fault } -> std::convertible_to<std::string>;
};

// From Boost.JSON's callbacks to JsonEvents: joins the parts of a string, skips ignored values.
template <JsonEvents Events>
class JsonHandler {
 public:
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  using Text = boost::json::string_view;
  using ErrorCode = boost::json::error_code;

  explicit JsonHandler(Events& events) : events_(events) {}

  bool on_document_begin(ErrorCode&) { return true; }
  bool on_document_end(ErrorCode&) { return true; }
  bool on_object_begin(ErrorCode& error) { return begin(JsonNesting::object, error); }
  bool on_object_end(std::size_t, ErrorCode& error) { return end(JsonNesting::object, error); }
  bool on_array_begin(ErrorCode& error) { return begin(JsonNesting::array, error); }
  bool on_array_end(std::size_t, ErrorCode& error) { return end(JsonNesting::array, error); }

  bool on_key_part(Text part, std::size_t, ErrorCode&) { return append(part); }
  bool on_key(Text last, std::size_t, ErrorCode& error) {
    if (ignoring_) return true;
    const JsonKey verdict = events_.key(joined(last));
    parts_.clear();
    ignoring_ = verdict == JsonKey::ignore;
    return verdict != JsonKey::stop || stop(error);
  }
  bool on_string_part(Text part, std::size_t, ErrorCode&) { return append(part); }
  bool on_string(Text last, std::size_t, ErrorCode& error) {
    if (skips_scalar()) return true;
    const bool goes_on = events_.string(joined(last));
    parts_.clear();
    return goes_on || stop(error);
  }

  bool on_number_part(Text, ErrorCode&) { return true; }
  bool on_int64(std::int64_t value, Text digits, ErrorCode& error) {
    // "-0" arrives as the integer 0; the reference reads it as a float.
    const bool has_sign = !digits.empty() && digits.front() == '-';
    return number({.value = static_cast<std::uint64_t>(value), .is_natural = value >= 0 && !has_sign}, error);
  }
  bool on_uint64(std::uint64_t value, Text, ErrorCode& error) {
    return number({.value = value, .is_natural = true}, error);
  }
  bool on_double(double value, Text, ErrorCode& error) {
    if (!std::isfinite(value)) {
      events_.fault = "a number is out of the range of a double";
      return stop(error);
    }
    return number({}, error);
  }
  bool on_bool(auto, ErrorCode& error) { return literal(JsonLiteral::boolean, error); }
  bool on_null(ErrorCode& error) { return literal(JsonLiteral::null, error); }
  bool on_comment_part(Text, ErrorCode&) { return true; }
  bool on_comment(Text, ErrorCode&) { return true; }

 private:
  static std::string_view view(Text text) { return {text.data(), text.size()}; }

  bool append(Text part) {
    if (!ignoring_) parts_.append(part.data(), part.size());
    return true;
  }

  // Strings without an escape come whole and are never copied here.
  std::string_view joined(Text last) {
    if (parts_.empty()) return view(last);
    return parts_.append(last.data(), last.size());
  }

  static bool stop(ErrorCode& error) {
    error = boost::json::error::exception;  // any code: the caller reads `fault`
    return false;
  }

  // Also ends the ignored value where it is a scalar by itself.
  bool skips_scalar() {
    if (!ignoring_) return false;
    ignoring_ = ignored_depth_ > 0;
    return true;
  }

  bool number(JsonNumber value, ErrorCode& error) {
    return skips_scalar() || events_.number(value) || stop(error);
  }
  bool literal(JsonLiteral value, ErrorCode& error) {
    return skips_scalar() || events_.literal(value) || stop(error);
  }

  bool begin(JsonNesting nesting, ErrorCode& error) {
    if (!ignoring_) return events_.begin(nesting) || stop(error);
    ++ignored_depth_;
    return true;
  }

  bool end(JsonNesting nesting, ErrorCode& error) {
    if (!ignoring_) return events_.end(nesting) || stop(error);
    --ignored_depth_;
    ignoring_ = ignored_depth_ > 0;
    return true;
  }

  Events& events_;
  std::string parts_;
  bool ignoring_ = false;
  std::uint64_t ignored_depth_ = 0;
};

// Where and why reading stopped. An empty cause: the whole text was read.
struct JsonStop {
  std::uint64_t offset = 0;
  std::string cause;
};

// `nesting_max` bounds the depth of the whole text; the parser takes stack for each level.
template <JsonEvents Events>
JsonStop read_json(std::string_view text, std::uint32_t nesting_max, Events& events) {
  boost::json::parse_options options;
  options.max_depth = nesting_max;
  boost::json::basic_parser<JsonHandler<Events>> parser(options, events);
  boost::json::error_code error;
  const std::size_t read = parser.write_some(false, text.data(), text.size(), error);
  if (!events.fault.empty()) return {.offset = read, .cause = events.fault};
  if (error == boost::json::error::too_deep) {
    return {.offset = read, .cause = "values nest deeper than DiscoverOptions::nesting_max allows"};
  }
  if (error) return {.offset = read, .cause = "not valid JSON (" + error.message() + ")"};
  if (read < text.size()) return {.offset = read, .cause = "more text follows the end of the JSON object"};
  return {};
}

}  // namespace inrush::engine
