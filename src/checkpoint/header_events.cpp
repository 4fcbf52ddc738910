#include "checkpoint/header_events.hpp"

#include "base/interruption.hpp"
#include "base/range.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace inrush::engine {

namespace {

// About a millisecond's work.
constexpr std::size_t tensors_per_question = 4096;

constexpr std::string_view metadata_name = "__metadata__";

constexpr std::array<std::string_view, 3> field_names = {"dtype", "shape", "data_offsets"};
constexpr std::uint32_t all_fields = 0b111;

std::string known_dtypes() {
  std::string names;
  for (std::uint32_t i = 0; i < dtype_count; ++i) {
    if (i > 0) names += ", ";
    names += dtype_name(static_cast<DType>(i));
  }
  return names;
}

}  // namespace

bool HeaderEvents::fail(std::string text) {
  fault = std::move(text);
  return false;
}

bool HeaderEvents::fail_tensor(std::string_view text) {
  const std::string_view name =
      std::string_view(header_.list.names).substr(record_.name_offset, record_.name_bytes);
  return fail(fmt::format("tensor \"{}\": {}", printable(name), text));
}

bool HeaderEvents::fail_type() {
  switch (at_) {
    case At::document:
      return fail("the header is not a JSON object");
    case At::names:
      return fail("the header goes on after its object ended");
    case At::metadata_value:
      return fail("__metadata__ is neither an object nor null");
    case At::metadata_entry:
    case At::metadata:
      return fail(fmt::format("__metadata__: the value of \"{}\" is not a string", printable(metadata_key_)));
    case At::tensor:
    case At::fields:
      return fail_tensor("is not described by an object {dtype, shape, data_offsets}");
    case At::dtype:
      return fail_tensor("dtype is not a string");
    case At::shape:
      return fail_tensor("shape is not an array");
    case At::dimensions:
      return fail_tensor("shape holds something that is not a natural number below 2^64");
    case At::data_offsets:
      return fail_tensor("data_offsets is not an array");
    case At::offsets:
      return fail_tensor("data_offsets holds something that is not a natural number below 2^64");
  }
  return fail("unexpected value");
}

JsonKey HeaderEvents::key(std::string_view text) {
  if (at_ == At::names) return text == metadata_name ? take_metadata_key({}) : take_name(text);
  return at_ == At::metadata ? take_metadata_key(text) : take_field(text);
}

JsonKey HeaderEvents::take_name(std::string_view text) {
  TensorList& list = header_.list;
  const std::uint64_t name_bytes_max =
      std::min<std::uint64_t>(options_.name_bytes_max, std::numeric_limits<std::uint32_t>::max());
  if (text.size() > name_bytes_max) {
    fail(fmt::format(
        "a tensor name of {} bytes, above the cap of {} (DiscoverOptions::name_bytes_max): \"{}\"",
        text.size(), name_bytes_max, printable(text, 40)));
    return JsonKey::stop;
  }
  if (list.tensors.size() >= options_.tensor_count_max) {
    fail(fmt::format("more than {} tensors (DiscoverOptions::tensor_count_max)", options_.tensor_count_max));
    return JsonKey::stop;
  }
  if (list.tensors.size() % tensors_per_question == 0) check_interrupted(options_.interrupted);
  record_ = {.name_offset = list.names.size(),
             .name_bytes = static_cast<std::uint32_t>(text.size()),
             .shape_offset = list.dimensions.size()};
  list.names.append(text);
  offset_count_ = 0;
  seen_fields_ = 0;
  at_ = At::tensor;
  return JsonKey::take;
}

JsonKey HeaderEvents::take_metadata_key(std::string_view text) {
  if (at_ == At::names) {
    if (std::exchange(metadata_seen_, true)) return fail("__metadata__ occurs twice"), JsonKey::stop;
    at_ = At::metadata_value;
    return JsonKey::take;
  }
  metadata_key_ = text;
  if (header_.metadata.contains(metadata_key_)) {
    fail(fmt::format("__metadata__: duplicate key \"{}\"", printable(text)));
    return JsonKey::stop;
  }
  // Real files have a few dozen. A map costs about 100 bytes an entry, an entry in the file as few as 8:
  // without a cap a header of 100 MB would take 1.2 GB.
  if (header_.metadata.size() >= options_.metadata_count_max) {
    fail(fmt::format("__metadata__ has more than {} entries (DiscoverOptions::metadata_count_max)",
                     options_.metadata_count_max));
    return JsonKey::stop;
  }
  at_ = At::metadata_entry;
  return JsonKey::take;
}

JsonKey HeaderEvents::take_field(std::string_view text) {
  const auto* const found = std::find(field_names.begin(), field_names.end(), text);
  if (found == field_names.end()) {
    if (header_.unknown_field_count++ == 0) header_.unknown_field = printable(text, 40);
    return JsonKey::ignore;
  }
  const auto field = static_cast<std::uint32_t>(found - field_names.begin());
  if ((seen_fields_ >> field & 1U) != 0) {
    fail_tensor(fmt::format("duplicate field {}", text));
    return JsonKey::stop;
  }
  seen_fields_ |= 1U << field;
  static constexpr std::array places = {At::dtype, At::shape, At::data_offsets};
  at_ = places[field];
  return JsonKey::take;
}

bool HeaderEvents::string(std::string_view text) {
  if (at_ == At::dtype) return take_dtype(text);
  if (at_ != At::metadata_entry) return fail_type();
  header_.metadata.emplace(metadata_key_, text);
  at_ = At::metadata;
  return true;
}

bool HeaderEvents::take_dtype(std::string_view text) {
  const auto dtype = parse_dtype(text);
  if (!dtype) {
    return fail_tensor(fmt::format("dtype \"{}\" is none of the {} of safetensors 0.8 ({})",
                                   printable(text, 40), dtype_count, known_dtypes()));
  }
  record_.dtype = *dtype;
  at_ = At::fields;
  return true;
}

bool HeaderEvents::number(JsonNumber number) {
  if (!number.is_natural) return fail_type();
  if (at_ == At::dimensions) return take_dimension(number.value);
  if (at_ != At::offsets) return fail_type();
  if (offset_count_ == offsets_.size()) return fail_tensor("data_offsets has more than two numbers");
  offsets_[offset_count_++] = number.value;
  return true;
}

bool HeaderEvents::take_dimension(std::uint64_t dimension) {
  // At once, not at the end of the array: the reference needs 16 s and 2 GB for a shape of 50 million
  // numbers.
  if (record_.rank == options_.rank_max) {
    return fail_tensor(fmt::format("more than {} dimensions (DiscoverOptions::rank_max)", options_.rank_max));
  }
  // Two bytes of the header become eight here: shapes that stay below rank_max could fill 400 MB.
  if (header_.list.dimensions.size() >= options_.dimension_count_max) {
    return fail_tensor(
        fmt::format("more than {} dimensions in all shapes of the file together "
                    "(DiscoverOptions::dimension_count_max)",
                    options_.dimension_count_max));
  }
  ++record_.rank;
  header_.list.dimensions.push_back(dimension);
  return true;
}

bool HeaderEvents::literal(JsonLiteral literal) {
  if (at_ != At::metadata_value || literal != JsonLiteral::null) return fail_type();
  at_ = At::names;  // null is as good as absent
  return true;
}

bool HeaderEvents::begin(JsonNesting nesting) {
  const JsonNesting object = JsonNesting::object;
  const JsonNesting array = JsonNesting::array;
  if (at_ == At::document && nesting == object) return at_ = At::names, true;
  if (at_ == At::metadata_value && nesting == object) return at_ = At::metadata, true;
  if (at_ == At::tensor && nesting == object) return at_ = At::fields, true;
  if (at_ == At::shape && nesting == array) return at_ = At::dimensions, true;
  if (at_ == At::data_offsets && nesting == array) return at_ = At::offsets, true;
  return fail_type();
}

bool HeaderEvents::end(JsonNesting) {
  if (at_ == At::fields) return end_tensor();
  if (at_ == At::offsets) return end_offsets();
  if (at_ == At::dimensions) return at_ = At::fields, true;
  if (at_ == At::metadata) return at_ = At::names, true;
  return true;  // of the document
}

bool HeaderEvents::end_offsets() {
  if (offset_count_ != offsets_.size()) return fail_tensor("data_offsets has fewer than two numbers");
  if (offsets_[1] < offsets_[0]) {
    return fail_tensor(fmt::format("data_offsets [{}, {}) end before they begin", offsets_[0], offsets_[1]));
  }
  record_.offset = offsets_[0];
  record_.size_bytes = offsets_[1] - offsets_[0];
  at_ = At::fields;
  return true;
}

bool HeaderEvents::end_tensor() {
  for (std::size_t field = 0; field < field_names.size() && seen_fields_ != all_fields; ++field) {
    if ((seen_fields_ >> field & 1U) == 0) return fail_tensor(fmt::format("has no {}", field_names[field]));
  }
  if (!check_size()) return false;
  header_.list.tensors.push_back(record_);
  at_ = At::names;
  return true;
}

// From the left, as the reference folds: [2^63, 4, 0] overflows, [0, 2^63, 4] has no elements.
bool HeaderEvents::check_size() {
  std::optional<std::uint64_t> bits = 1;
  for (std::uint32_t i = 0; i < record_.rank && bits; ++i) {
    bits = checked_multiply(*bits, header_.list.dimensions[record_.shape_offset + i]);
  }
  if (bits) bits = checked_multiply(*bits, dtype_bits(record_.dtype));
  const std::string_view dtype = dtype_name(record_.dtype);
  if (!bits) return fail_tensor(fmt::format("the size of its shape in {} overflows 64 bits", dtype));
  if (*bits % 8 != 0) return fail_tensor(fmt::format("{} bits of {} do not fill whole bytes", *bits, dtype));
  if (*bits / 8 != record_.size_bytes) {
    return fail_tensor(fmt::format("data_offsets [{}, {}) hold {} bytes, its shape in {} takes {}",
                                   record_.offset, record_.offset + record_.size_bytes, record_.size_bytes,
                                   dtype, *bits / 8));
  }
  return true;
}

}  // namespace inrush::engine
