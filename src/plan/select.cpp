#include "plan/select.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "plan/glob.hpp"
#include "plan/near_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace inrush::engine {

namespace {

// LoadRequest::only. Names are looked up by hash: a framework may ask for a hundred thousand of them one by
// one.
class Patterns final {
 public:
  explicit Patterns(const std::vector<std::string>& patterns)
      : patterns_(patterns), matched_(patterns.size()) {
    names_.reserve(patterns.size());
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      names_.emplace(patterns[i], i);
      if (!has_wildcards(patterns[i])) continue;
      if (auto literal = literal_of(patterns[i])) {
        escaped_.emplace(std::move(*literal), i);
      } else {
        globs_.push_back(i);
      }
    }
  }

  // A pattern with wildcards also stands for the name that is spelt like it: "a[0]" is a legal name.
  bool match(std::string_view name) {
    if (patterns_.empty()) return true;
    const auto known = names_.find(name);
    bool taken = known != names_.end();
    if (taken) matched_[known->second] = true;
    const auto escaped = escaped_.empty() ? escaped_.end() : escaped_.find(std::string(name));
    if (escaped != escaped_.end()) taken = matched_[escaped->second] = true;
    for (const std::size_t glob : globs_) {
      if ((taken && matched_[glob]) || !glob_matches(patterns_[glob], name)) continue;
      matched_[glob] = true;
      taken = true;
    }
    return taken;
  }

  void require_all_matched(const Checkpoint& checkpoint) const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (is_matched(i)) continue;
      throw Error(ErrorCode::invalid_request,
                  fmt::format("no tensor of {} matches \"{}\": {}", printable(checkpoint.path()),
                              printable(patterns_[i]), near_names(checkpoint, patterns_[i])));
    }
  }

 private:
  // Of two ways to spell one name the first one's mark counts.
  [[nodiscard]] bool is_matched(std::size_t pattern) const {
    if (matched_[names_.at(patterns_[pattern])]) return true;
    const auto literal = literal_of(patterns_[pattern]);
    const auto escaped = literal ? escaped_.find(*literal) : escaped_.end();
    return escaped != escaped_.end() && matched_[escaped->second];
  }

  const std::vector<std::string>& patterns_;
  std::vector<bool> matched_;  // by pattern; of equal ones the first counts
  std::unordered_map<std::string_view, std::size_t> names_;
  // Names whose wildcards are escaped, as a framework asks for "experts[0]": 13,756 of them took 114 s as
  // globs.
  std::unordered_map<std::string, std::size_t> escaped_;
  std::vector<std::size_t> globs_;
};

// LoadRequest::slices, by hash for the same reason.
class Slices final {
 public:
  explicit Slices(const std::map<std::string, Slice>& slices) {
    for (const auto& [name, slice] : slices) wanted_.emplace(name, Wanted{slice, false});
  }

  [[nodiscard]] std::optional<Slice> take(std::string_view name) {
    if (wanted_.empty()) return std::nullopt;
    const auto found = wanted_.find(name);
    if (found == wanted_.end()) return std::nullopt;
    found->second.met = true;
    return found->second.slice;
  }

  void require_all_met(const Checkpoint& checkpoint, const std::map<std::string, Slice>& slices) const {
    for (const auto& [name, slice] : slices) {
      if (wanted_.at(name).met) continue;
      throw Error(ErrorCode::invalid_request,
                  fmt::format("a slice is asked for of tensor \"{}\", which {} does not have: {}",
                              printable(name), printable(checkpoint.path()), near_names(checkpoint, name)));
    }
  }

 private:
  struct Wanted {
    Slice slice;
    bool met = false;
  };
  std::unordered_map<std::string_view, Wanted> wanted_;
};

}  // namespace

std::vector<Selected> select_tensors(const Checkpoint& checkpoint, const LoadRequest& request) {
  Patterns patterns(request.only);
  Slices slices(request.slices);
  std::vector<Selected> selected;
  if (request.only.empty()) selected.reserve(checkpoint.tensor_count());
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    const std::optional<Slice> slice = slices.take(tensor.name);
    const Rows rows = slice ? slice_rows(tensor, *slice) : whole_rows(tensor);
    if (!patterns.match(tensor.name) || (request.select && !request.select(tensor))) continue;
    selected.push_back({i, rows, slice, 0});
  }
  patterns.require_all_matched(checkpoint);
  slices.require_all_met(checkpoint, request.slices);
  const auto is_empty = [](const Selected& one) { return one.rows.size_bytes() == 0; };
  // Most checkpoints have none, and for a million tensors the partition would take as long as the rest of the
  // selection.
  if (std::any_of(selected.begin(), selected.end(), is_empty)) {
    std::stable_partition(selected.begin(), selected.end(), is_empty);
  }
  return selected;
}

}  // namespace inrush::engine
