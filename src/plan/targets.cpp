#include "plan/targets.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "base/text.hpp"
#include "plan/near_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace inrush::engine {

namespace {

// By hash: a framework gives a target to each of a hundred thousand parameters.
using TargetsByName = std::unordered_map<std::string_view, const Target*>;

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("tensor \"{}\", {} [{}]", printable(tensor.name), dtype_name(tensor.dtype),
                     fmt::join(tensor.shape, ", "));
}

std::string described(const Checkpoint& checkpoint, const Selected& one) {
  std::string text = shape_text(checkpoint.tensor(one.tensor));
  if (one.slice) {
    text += fmt::format(", slice of dimension {}, start {}, length {}", one.slice->dimension,
                        one.slice->start, one.slice->length);
  }
  return text;
}

std::string placed(const Checkpoint& checkpoint, const Selected& one) {
  return fmt::format("{} ({} bytes at {:#x})", described(checkpoint, one), one.rows.size_bytes(),
                     one.target_address);
}

std::uint64_t address_of(const Checkpoint& checkpoint, const Selected& one, const Target& target) {
  const std::uint64_t size_bytes = one.rows.size_bytes();
  const auto refuse = [&](const std::string& cause) {
    throw Error(ErrorCode::invalid_request, fmt::format("{}: {}", described(checkpoint, one), cause));
  };
  if (target.size_bytes != size_bytes) {
    refuse(fmt::format("its target has {} bytes, and {} are loaded; give it memory of that size",
                       target.size_bytes, size_bytes));
  }
  if (size_bytes == 0) return 0;
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(target.pointer);
  if (address == 0) {
    refuse(fmt::format("its target is null; give it memory of {} bytes, or no target", size_bytes));
  }
  if (!checked_add(address, size_bytes)) {
    refuse(fmt::format("its target of {} bytes at {:#x} ends beyond all memory", size_bytes, address));
  }
  return address;
}

// `left` are the targets that no selected tensor has.
void require_none_left(const Checkpoint& checkpoint, const Targets& targets, const TargetsByName& left) {
  if (left.empty()) return;
  const auto first = std::find_if(targets.by_name.begin(), targets.by_name.end(),
                                  [&](const auto& target) { return left.contains(target.first); });
  const std::string& name = first->first;
  const std::string more = left.size() > 1 ? fmt::format(" (and {} more)", left.size() - 1) : "";
  const std::optional<std::size_t> tensor = checkpoint.find(name);
  if (!tensor) {
    throw Error(ErrorCode::invalid_request,
                fmt::format("a target of {} bytes is given for tensor \"{}\"{}, which {} does not have: {}",
                            first->second.size_bytes, printable(name), more, printable(checkpoint.path()),
                            near_names(checkpoint, name)));
  }
  throw Error(ErrorCode::invalid_request,
              fmt::format("a target of {} bytes is given for {}{}, which the request does not select; select "
                          "it, or leave its target out",
                          first->second.size_bytes, shape_text(checkpoint.tensor(*tensor)), more));
}

// One that overlaps any other overlaps its neighbour in the order of addresses.
void require_apart(const Checkpoint& checkpoint, const std::vector<Selected>& selected) {
  std::vector<const Selected*> bound;
  for (const Selected& one : selected) {
    if (one.target_address != 0) bound.push_back(&one);
  }
  std::sort(bound.begin(), bound.end(),
            [](const Selected* a, const Selected* b) { return a->target_address < b->target_address; });
  const auto overlap =
      std::adjacent_find(bound.begin(), bound.end(), [](const Selected* a, const Selected* b) {
        return a->target_address + a->rows.size_bytes() > b->target_address;
      });
  if (overlap == bound.end()) return;
  throw Error(
      ErrorCode::invalid_request,
      fmt::format("the targets of {} and {} overlap; give each memory of its own, or load one of them",
                  placed(checkpoint, **overlap), placed(checkpoint, **(overlap + 1))));
}

}  // namespace

void bind_targets(const Checkpoint& checkpoint, const Targets& targets, std::vector<Selected>& selected) {
  if (targets.by_name.empty()) return;
  TargetsByName left;
  left.reserve(targets.by_name.size());
  for (const auto& [name, target] : targets.by_name) left.emplace(name, &target);
  for (Selected& one : selected) {
    const auto found = left.find(checkpoint.tensor(one.tensor).name);
    if (found == left.end()) continue;
    one.target_address = address_of(checkpoint, one, *found->second);
    left.erase(found);
  }
  require_none_left(checkpoint, targets, left);
  require_apart(checkpoint, selected);
  std::stable_partition(selected.begin(), selected.end(),
                        [](const Selected& one) { return one.target_address == 0; });
}

}  // namespace inrush::engine
