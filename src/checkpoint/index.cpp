#include "checkpoint/index.hpp"

#include <inrush/error.hpp>

#include "base/interruption.hpp"
#include "base/text.hpp"
#include "checkpoint/foreign_format.hpp"
#include "checkpoint/json_reader.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::size_t shard_name_bytes_max = 4096;  // PATH_MAX
constexpr std::size_t tensors_per_question = 4096;  // of `interrupted`

// Why a shard of that name is never opened; empty where it may be.
std::string_view shard_name_fault(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > shard_name_bytes_max) return "is longer than a path can be";
  if (name.find('\0') != std::string_view::npos) return "contains a zero byte";
  if (name.find('\\') != std::string_view::npos) return "contains a backslash";
  if (name.front() == '/') return "is an absolute path";
  if (!name.ends_with(".safetensors")) return "does not end with .safetensors";
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    const std::string_view component = rest.substr(0, slash);
    if (component.empty() || component == "." || component == "..")
      return "has an empty, \".\" or \"..\" component";
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  return {};
}

class IndexEvents {
 public:
  IndexEvents(ShardIndex& index, const DiscoverOptions& options) : index_(index), options_(options) {}

  JsonKey key(std::string_view text);
  bool string(std::string_view text);
  bool number(JsonNumber number);
  bool literal(JsonLiteral literal);
  bool begin(JsonNesting nesting);
  bool end(JsonNesting nesting);

  [[nodiscard]] bool has_map() const { return map_seen_; }
  // Numbers of the shards, so far in the order of their first use, become their places in sorted order.
  void sort_shards();

  std::string fault;

 private:
  enum class At : std::uint8_t {
    document,
    top,
    weight_map,
    entries,
    shard,
    metadata,
    metadata_fields,
    total_size
  };

  bool fail(std::string text);
  bool fail_type();
  JsonKey take_top_key(std::string_view text);
  JsonKey take_metadata_key(std::string_view text);
  JsonKey take_tensor(std::string_view text);

  ShardIndex& index_;
  const DiscoverOptions& options_;
  At at_ = At::document;
  std::map<std::string, std::uint32_t, std::less<>> shards_;
  bool map_seen_ = false;
  bool metadata_seen_ = false;
  bool total_size_seen_ = false;
};

bool IndexEvents::fail(std::string text) {
  fault = std::move(text);
  return false;
}

bool IndexEvents::fail_type() {
  switch (at_) {
    case At::document:
      return fail("the index is not a JSON object");
    case At::weight_map:
      return fail("weight_map is not an object");
    case At::metadata:
      return fail("metadata is not an object");
    case At::total_size:
      return fail("metadata.total_size is not a number");
    case At::shard:
      return fail(fmt::format("weight_map: the file of tensor \"{}\" is not a string",
                              printable(index_.name(index_.entries.size() - 1))));
    default:
      return fail("unexpected value");
  }
}

JsonKey IndexEvents::key(std::string_view text) {
  if (at_ == At::entries) return take_tensor(text);
  return at_ == At::metadata_fields ? take_metadata_key(text) : take_top_key(text);
}

JsonKey IndexEvents::take_top_key(std::string_view text) {
  const bool is_map = text == "weight_map";
  if (!is_map && text != "metadata") return JsonKey::ignore;
  if (std::exchange(is_map ? map_seen_ : metadata_seen_, true)) {
    fail(fmt::format("duplicate key \"{}\"", text));
    return JsonKey::stop;
  }
  at_ = is_map ? At::weight_map : At::metadata;
  return JsonKey::take;
}

JsonKey IndexEvents::take_metadata_key(std::string_view text) {
  if (text != "total_size") return JsonKey::ignore;
  if (std::exchange(total_size_seen_, true)) {
    fail("duplicate key \"total_size\"");
    return JsonKey::stop;
  }
  at_ = At::total_size;
  return JsonKey::take;
}

JsonKey IndexEvents::take_tensor(std::string_view text) {
  const std::uint64_t name_bytes_max =
      std::min<std::uint64_t>(options_.name_bytes_max, std::numeric_limits<std::uint32_t>::max());
  if (text.size() > name_bytes_max) {
    fail(fmt::format(
        "weight_map: a tensor name of {} bytes, above the cap of {} (DiscoverOptions::name_bytes_max)",
        text.size(), name_bytes_max));
    return JsonKey::stop;
  }
  if (index_.entries.size() >= options_.tensor_count_max) {
    fail(fmt::format("weight_map names more than {} tensors (DiscoverOptions::tensor_count_max)",
                     options_.tensor_count_max));
    return JsonKey::stop;
  }
  if (index_.entries.size() % tensors_per_question == 0) check_interrupted(options_.interrupted);
  index_.entries.push_back({.name_offset = index_.names.size(),
                            .name_bytes = static_cast<std::uint32_t>(text.size()),
                            .shard = 0});
  index_.names.append(text);
  at_ = At::shard;
  return JsonKey::take;
}

bool IndexEvents::string(std::string_view text) {
  if (at_ == At::total_size)
    return at_ = At::metadata_fields, true;  // advisory: "12 GB" is no reason to refuse a model
  if (at_ != At::shard) return fail_type();
  auto known = shards_.find(text);
  if (known == shards_.end()) {
    const std::string_view why = shard_name_fault(text);
    if (!why.empty()) {
      return fail(fmt::format("weight_map: the file name \"{}\" of tensor \"{}\" {}", printable(text),
                              printable(index_.name(index_.entries.size() - 1)), why));
    }
    if (shards_.size() >= options_.file_count_max) {
      return fail(fmt::format("weight_map names more than {} files (DiscoverOptions::file_count_max)",
                              options_.file_count_max));
    }
    known = shards_.emplace(text, static_cast<std::uint32_t>(shards_.size())).first;
  }
  index_.entries.back().shard = known->second;
  at_ = At::entries;
  return true;
}

bool IndexEvents::number(JsonNumber number) {
  if (at_ != At::total_size) return fail_type();
  if (number.is_natural) index_.total_size_bytes = number.value;
  at_ = At::metadata_fields;
  return true;
}

bool IndexEvents::literal(JsonLiteral literal) {
  if (at_ == At::total_size) return at_ = At::metadata_fields, true;
  if (at_ == At::metadata && literal == JsonLiteral::null) return at_ = At::top, true;
  return fail_type();
}

bool IndexEvents::begin(JsonNesting nesting) {
  if (nesting == JsonNesting::array) return fail_type();
  if (at_ == At::document) return at_ = At::top, true;
  if (at_ == At::weight_map) return at_ = At::entries, true;
  if (at_ == At::metadata) return at_ = At::metadata_fields, true;
  return fail_type();
}

bool IndexEvents::end(JsonNesting) {
  at_ = At::top;
  return true;
}

void IndexEvents::sort_shards() {
  std::vector<std::uint32_t> place(shards_.size());
  for (const auto& [name, number] : shards_) {
    place[number] = static_cast<std::uint32_t>(index_.shards.size());
    index_.shards.push_back(name);
  }
  for (IndexEntry& entry : index_.entries) entry.shard = place[entry.shard];
}

[[noreturn]] void throw_corrupt(const std::string& path, std::string_view cause) {
  throw Error(ErrorCode::corrupt_checkpoint, fmt::format("{}: {}", printable(path), cause));
}

}  // namespace

std::optional<std::uint32_t> ShardIndex::find(std::string_view name) const {
  return table.find(name, [&](std::uint32_t entry) { return this->name(entry); });
}

ShardIndex parse_index(std::string_view text, const std::string& path, const DiscoverOptions& options) {
  ShardIndex index;
  IndexEvents events(index, options);
  const JsonStop stop = read_json(text, options.nesting_max, events);
  if (!stop.cause.empty()) {
    const std::string_view head = text.substr(0, recognised_bytes_max);
    const std::string_view format =
        head.starts_with('{') ? std::string_view() : recognise_format(std::as_bytes(std::span(head)));
    throw_corrupt(
        path, fmt::format("at byte {}: {}{}{}", stop.offset, stop.cause, format.empty() ? "" : "; ", format));
  }
  if (!events.has_map())
    throw_corrupt(path,
                  "has no weight_map: this is not the index of a sharded checkpoint; name the folder or "
                  "*.safetensors.index.json");
  if (index.entries.empty()) throw_corrupt(path, "weight_map is empty: it names no tensor");
  events.sort_shards();
  index.table = NameTable(index.entries.size(), XXH3_64bits(text.data(), text.size()));
  const auto name_at = [&](std::uint32_t entry) { return index.name(entry); };
  for (std::uint32_t entry = 0; entry < index.entries.size(); ++entry) {
    if (!index.table.insert(entry, name_at)) continue;
    throw_corrupt(path, fmt::format("weight_map: duplicate key \"{}\"", printable(index.name(entry))));
  }
  return index;
}

}  // namespace inrush::engine
