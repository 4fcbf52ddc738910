#include "checkpoint/indexed_shards.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace inrush::engine {

namespace {

constexpr std::size_t listed_tensors_max = 5;

// How many there are and the first one's name: all of them may be thousands.
struct Leftover {
  std::uint64_t count = 0;
  std::string first;

  void add(std::string_view name) {
    if (count++ == 0) first = printable(name);
  }
};

}  // namespace

IndexedShards::IndexedShards(const ShardIndex& index, const std::string& index_path, IndexPolicy policy)
    : index_(index), index_path_(index_path), policy_(policy), sightings_(index.entries.size()) {}

void IndexedShards::add(Shard&& shard, std::uint32_t number, CatalogBuilder& builder) {
  std::vector<std::uint32_t> chosen;
  Leftover outside;
  Leftover copies;
  for (std::uint32_t tensor = 0; tensor < shard.list.tensors.size(); ++tensor) {
    const std::string_view name = shard.list.name(tensor);
    const auto entry = index_.find(name);
    if (!entry) {
      outside.add(name);
    } else if (index_.entries[*entry].shard != number) {
      copies.add(name);
      sightings_[*entry].copy_in = number;
    } else {
      sightings_[*entry].in_place = true;
      mapped_bytes_ += shard.list.tensors[tensor].size_bytes;
      chosen.push_back(tensor);
    }
  }
  const std::string path = printable(shard.file.path);
  if (outside.count > 0) {
    const std::string what = fmt::format("{}: {} tensors are not in {}, the first is \"{}\"", path,
                                         outside.count, printable(index_path_), outside.first);
    if (policy_ == IndexPolicy::strict)
      throw Error(ErrorCode::corrupt_checkpoint,
                  what + "; load without --strict-index (IndexPolicy::strict) to leave it unread");
    builder.note(what + "; left unread");
  }
  if (copies.count > 0) {
    builder.note(fmt::format(
        "{}: {} tensors that {} assigns to other files, the first is \"{}\"; these copies are left unread",
        path, copies.count, printable(index_path_), copies.first));
  }
  builder.add(std::move(shard), chosen);
}

void IndexedShards::finish(CatalogBuilder& builder) const {
  std::size_t absent_count = 0;
  std::string list;
  for (std::size_t entry = 0; entry < sightings_.size(); ++entry) {
    if (sightings_[entry].in_place || absent_count++ >= listed_tensors_max) continue;
    const std::uint32_t copy_in = sightings_[entry].copy_in;
    list += fmt::format("{}\"{}\" (expected in {}{})", list.empty() ? "" : ", ",
                        printable(index_.name(entry)), printable(index_.shards[index_.entries[entry].shard]),
                        copy_in == nowhere ? "" : ", found in " + printable(index_.shards[copy_in]));
  }
  if (absent_count > 0) {
    const std::size_t unlisted = absent_count - std::min(absent_count, listed_tensors_max);
    throw Error(ErrorCode::corrupt_checkpoint,
                fmt::format("{}: {} tensors are not in the file that weight_map names: {}{}; the index and "
                            "the files do not belong "
                            "together: get them again, or use --ignore-index (IndexPolicy::ignore)",
                            printable(index_path_), absent_count, list,
                            unlisted == 0 ? "" : fmt::format(" and {} more", unlisted)));
  }
  // Often wrong in the wild, after re-quantising or with tied weights: worth a note, never an error.
  if (index_.total_size_bytes && *index_.total_size_bytes != mapped_bytes_) {
    builder.note(fmt::format("{}: metadata.total_size is {}, the tensors have {} bytes",
                             printable(index_path_), *index_.total_size_bytes, mapped_bytes_));
  }
}

}  // namespace inrush::engine
