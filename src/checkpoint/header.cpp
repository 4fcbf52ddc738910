#include "checkpoint/header.hpp"

#include <inrush/error.hpp>

#include "base/interruption.hpp"
#include "base/range.hpp"
#include "base/text.hpp"
#include "checkpoint/foreign_format.hpp"
#include "checkpoint/header_events.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace inrush::engine {

namespace {

// Levels of nesting that the format itself has above a field that it does not know: header and tensor.
constexpr std::uint32_t format_nesting = 2;

[[noreturn]] void throw_corrupt(const HeaderSource& source, std::string_view cause) {
  throw Error(ErrorCode::corrupt_checkpoint, fmt::format("{}: {}", printable(source.path), cause));
}

std::string quoted_name(const TensorList& list, std::size_t index) {
  return fmt::format("tensor \"{}\"", printable(list.name(index)));
}

void read_text(const HeaderBytes& bytes, const HeaderSource& source, const DiscoverOptions& options,
               Header& header) {
  HeaderEvents events(header, options);
  const JsonStop stop = read_json(bytes.text(), options.nesting_max + format_nesting, events);
  if (stop.cause.empty()) return;
  const std::size_t head_bytes = std::min<std::size_t>(bytes.size_bytes, recognised_bytes_max);
  const std::string_view format = recognise_format(bytes.bytes().first(head_bytes));
  throw_corrupt(
      source,
      fmt::format("header in {}, at byte {}: {}{}{}", range_text(length_prefix_bytes, bytes.text().size()),
                  length_prefix_bytes + stop.offset, stop.cause, format.empty() ? "" : "; ", format));
}

// In the order of the data. An empty tensor stands before the one that starts at the same byte, whatever the
// header's order.
void sort_by_offset(TensorList& list) {
  const auto key = [](const TensorRecord& record) {
    return std::tuple(record.offset, record.size_bytes, record.name_offset);
  };
  const auto before = [&](const TensorRecord& a, const TensorRecord& b) { return key(a) < key(b); };
  // Writers put header and data in the same order; looking costs a tenth of sorting.
  if (std::is_sorted(list.tensors.begin(), list.tensors.end(), before)) return;
  std::sort(list.tensors.begin(), list.tensors.end(), before);
}

// Before the layout: a name that stands twice would else be reported as a bad offset (safetensors#401).
void refuse_duplicates(const TensorList& list, const HeaderSource& source) {
  NameTable table(list.tensors.size(), source.name_seed);
  const auto duplicate = fill_name_table(list, table);
  if (!duplicate) return;
  throw_corrupt(source,
                fmt::format("duplicate name: {} occurs twice in the header, at data_offsets {} and {}",
                            quoted_name(list, duplicate->first), list.tensors[duplicate->first].offset,
                            list.tensors[duplicate->second].offset));
}

// Where the data starts in the file, and where it ends, counted from there.
struct DataExtent {
  std::uint64_t data_offset = 0;
  std::uint64_t end = 0;
};

[[noreturn]] void throw_truncated(const TensorList& list, DataExtent data, const HeaderSource& source) {
  const std::uint64_t present = source.file_bytes - data.data_offset;
  const auto cut = std::find_if(list.tensors.begin(), list.tensors.end(), [&](const TensorRecord& record) {
    return record.offset - data.data_offset + record.size_bytes > present;
  });
  const auto expected = checked_add(data.data_offset, data.end);
  throw_corrupt(source,
                fmt::format("truncated at {}{}: expected {} bytes, the file has {}; get the file again",
                            quoted_name(list, static_cast<std::size_t>(cut - list.tensors.begin())),
                            cut == list.tensors.end() ? "" : ", " + range_text(cut->offset, cut->size_bytes),
                            expected ? fmt::format("{}", *expected) : "more than 2^64", source.file_bytes));
}

// The regions must cover the data exactly: no hole, no overlap, no tail. Turns offsets into positions in the
// file.
void place_in_file(TensorList& list, std::uint64_t data_offset, const HeaderSource& source) {
  std::uint64_t end = 0;
  for (std::size_t index = 0; index < list.tensors.size(); ++index) {
    TensorRecord& record = list.tensors[index];
    if (record.offset != end) {
      throw_corrupt(
          source,
          fmt::format("{}: data_offsets [{}, {}) begin {} of the tensor before, which ends at {}",
                      quoted_name(list, index), record.offset, record.offset + record.size_bytes,
                      record.offset > end ? "after the end (a hole)" : "before the end (an overlap)", end));
    }
    end = record.offset + record.size_bytes;  // cannot wrap: it was written in the header as one number
    record.offset += data_offset;  // may wrap where `end` is beyond the file; that is refused below
  }
  const std::uint64_t present = source.file_bytes - data_offset;
  if (end > present) {
    throw_truncated(list, {.data_offset = data_offset, .end = end}, source);
  }
  if (end < present) {
    throw_corrupt(
        source,
        fmt::format("{} belong to no tensor: the header describes {} bytes, the file has {}",
                    range_text(data_offset + end, present - end), data_offset + end, source.file_bytes));
  }
}

}  // namespace

Header parse_header(const HeaderBytes& bytes, const HeaderSource& source, const DiscoverOptions& options) {
  Header header;
  read_text(bytes, source, options, header);
  check_interrupted(options.interrupted);
  sort_by_offset(header.list);
  check_interrupted(options.interrupted);
  refuse_duplicates(header.list, source);
  place_in_file(header.list, bytes.size_bytes, source);
  return header;
}

}  // namespace inrush::engine
