// Takes the events of a header's JSON text and fills a Header with them. Used by parse_header() only.
#pragma once

#include "checkpoint/header.hpp"
#include "checkpoint/json_reader.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace inrush::engine {

class HeaderEvents {
 public:
  HeaderEvents(Header& header, const DiscoverOptions& options) : header_(header), options_(options) {}

  JsonKey key(std::string_view text);
  bool string(std::string_view text);
  bool number(JsonNumber number);
  bool literal(JsonLiteral literal);
  bool begin(JsonNesting nesting);
  bool end(JsonNesting nesting);

  std::string fault;

 private:
  // What the next event is read as.
  enum class At : std::uint8_t {
    document,
    names,
    metadata_value,
    metadata,
    metadata_entry,
    tensor,
    fields,
    dtype,
    shape,
    dimensions,
    data_offsets,
    offsets,
  };

  JsonKey take_name(std::string_view text);
  JsonKey take_metadata_key(std::string_view text);
  JsonKey take_field(std::string_view text);
  bool take_dtype(std::string_view text);
  bool take_dimension(std::uint64_t dimension);
  bool end_offsets();
  bool end_tensor();
  bool check_size();

  bool fail(std::string text);
  // "tensor "x": " before the text.
  bool fail_tensor(std::string_view text);
  bool fail_type();

  Header& header_;
  const DiscoverOptions& options_;
  At at_ = At::document;
  TensorRecord record_;
  std::array<std::uint64_t, 2> offsets_ = {};
  std::uint32_t offset_count_ = 0;
  std::uint32_t seen_fields_ = 0;  // one bit a field
  std::string metadata_key_;
  bool metadata_seen_ = false;
};

}  // namespace inrush::engine
