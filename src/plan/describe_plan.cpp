#include <inrush/plan.hpp>

#include "base/text.hpp"
#include "plan/slabs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inrush::inline v0 {

namespace {

using engine::bytes_text;
using engine::printable;

constexpr std::size_t name_bytes_max = 64;  // of a name in a table

// Code points: what a terminal shows of most names.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Columns are as wide as their widest cell. The first `number_count` ones hold numbers, which stand to the
// right.
class Table final {
 public:
  Table(std::string_view title, std::size_t number_count, std::vector<std::string> heads)
      : title_(title), number_count_(number_count), rows_{std::move(heads)} {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // `left_out_count` rows were not added.
  void print(std::string& out, std::size_t left_out_count) const {
    fmt::format_to(std::back_inserter(out), "{}\n", title_);
    std::vector<std::size_t> widths(rows_[0].size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
    }
    for (const auto& row : rows_) {
      std::string line = " ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - width(row[i]), ' ');
        line += "  " + (i < number_count_ ? padding + row[i] : row[i] + padding);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + '\n';
    }
    if (left_out_count > 0) fmt::format_to(std::back_inserter(out), "   ... and {} more\n", left_out_count);
  }

 private:
  std::string title_;
  std::size_t number_count_;
  std::vector<std::vector<std::string>> rows_;
};

std::string ratio_text(const Plan& plan) {
  if (plan.loaded_bytes == 0) return "";
  return fmt::format(", {:.2f} times what is loaded",
                     static_cast<double>(plan.read_bytes) / static_cast<double>(plan.loaded_bytes));
}

std::string path_text(const PathChoice& path, const Plan& plan) {
  const std::string_view state = path.name == plan.path ? "chosen"
                                 : path.usable          ? "usable, not chosen"
                                                        : "not usable";
  std::string text = fmt::format("{}: {}", path.name, state);
  if (!path.reason.empty()) text += fmt::format(" ({})", path.reason);
  if (path.measured_bytes_per_second > 0) {
    text += fmt::format(", {}/s at {:.2g} CPU-s/GB measured",
                        bytes_text(static_cast<std::uint64_t>(path.measured_bytes_per_second)),
                        path.measured_cpu_seconds_per_gb);
  }
  return text;
}

bool is_target(const Plan& plan, const Placement& placement) {
  return placement.size_bytes > 0 && plan.slabs[placement.slab].target_address != 0;
}

// Empty where there is none.
std::string targets_text(const Plan& plan) {
  const auto count = std::count_if(plan.placements.begin(), plan.placements.end(),
                                   [&](const Placement& placement) { return is_target(plan, placement); });
  if (count == 0) return "";
  return fmt::format("{}, {}, go to memory of the caller",
                     counted(static_cast<std::uint64_t>(count), "tensor"),
                     bytes_text(plan.loaded_bytes - engine::allocated_bytes(plan)));
}

void describe_choices(const Plan& plan, std::string& out) {
  const auto line = [&out](std::string_view head, std::string_view text) {
    fmt::format_to(std::back_inserter(out), "  {:<12}{}\n", head, text);
  };
  if (!plan.slabs.empty()) line("device", printable(device_name(plan.slabs[0].device)));
  if (const std::string targets = targets_text(plan); !targets.empty()) line("targets", targets);
  std::string_view head = "path";
  for (const PathChoice& path : plan.paths) line(std::exchange(head, ""), path_text(path, plan));
  line("", fmt::format("{}, since: {}", plan.path, plan.path_rule));
  line("page cache", fmt::format("{} ({})", plan.page_cache == PageCachePolicy::keep ? "keep" : "bypass",
                                 plan.page_cache_rule));
  line("ring", fmt::format("{}{}, {} of {}, {} together", counted(plan.reader_count, "reader"),
                           plan.path_reads ? " (one of them the path's own thread: there are few CPUs)" : "",
                           counted(plan.slot_count, "slot"), bytes_text(plan.slot_bytes),
                           bytes_text(plan.slot_count * plan.slot_bytes)));
  if (plan.page_cache_windows)
    line("windows",
         fmt::format("of up to {} over the page cache, copied from where they lie: there are few CPUs",
                     bytes_text(plan.slot_bytes)));
  line("reads", fmt::format("{}, {}{}; {}", counted(plan.pieces.size(), "piece"), bytes_text(plan.read_bytes),
                            ratio_text(plan), counted(plan.segments.size(), "segment")));
}

void describe_slabs(const Plan& plan, std::size_t rows_max, std::string& out) {
  if (plan.slabs.empty()) return;
  Table table("Slabs", 3, {"slab", "size", "pieces", "memory"});
  const std::size_t row_count = std::min(rows_max, plan.slabs.size());
  for (std::size_t i = 0; i < row_count; ++i) {
    const Slab& slab = plan.slabs[i];
    table.add(
        {fmt::to_string(i), bytes_text(slab.size_bytes), fmt::to_string(slab.piece_count),
         slab.target_address == 0 ? "allocated" : fmt::format("targets from {:#x}", slab.target_address)});
  }
  table.print(out, plan.slabs.size() - row_count);
}

std::string file_name(std::string_view path) {
  return printable(path.substr(path.find_last_of('/') + 1), name_bytes_max);
}

void describe_pieces(const Checkpoint& checkpoint, const Plan& plan, const std::size_t rows_max,
                     std::string& out) {
  if (plan.pieces.empty()) return;
  Table table("Pieces", 5, {"piece", "slab", "tensors", "segments", "size", "file", "range"});
  const std::size_t row_count = std::min(rows_max, plan.pieces.size());
  for (std::size_t i = 0; i < row_count; ++i) {
    const Piece& piece = plan.pieces[i];
    table.add({fmt::to_string(i), fmt::to_string(piece.slab), fmt::to_string(piece.placement_count),
               fmt::to_string(piece.segment_count), bytes_text(piece.size_bytes),
               file_name(checkpoint.files()[piece.file].path),
               engine::range_text(piece.offset, piece.size_bytes)});
  }
  table.print(out, plan.pieces.size() - row_count);
}

std::string slice_text(const std::optional<Slice>& slice) {
  if (!slice) return "all";
  return fmt::format("dimension {}, [{}, {})", slice->dimension, slice->start, slice->start + slice->length);
}

void describe_placements(const Checkpoint& checkpoint, const Plan& plan, std::size_t rows_max,
                         std::string& out) {
  if (plan.placements.empty()) return;
  Table table("Tensors", 3, {"slab", "offset", "size", "dtype", "name", "shape", "part"});
  const std::size_t row_count = std::min(rows_max, plan.placements.size());
  for (std::size_t i = 0; i < row_count; ++i) {
    const Placement& placement = plan.placements[i];
    const TensorInfo tensor = checkpoint.tensor(placement.tensor);
    // An empty tensor has no memory.
    const bool is_empty = placement.size_bytes == 0;
    table.add({is_empty ? "-" : fmt::to_string(placement.slab),
               is_empty ? "-" : fmt::to_string(placement.slab_offset), bytes_text(placement.size_bytes),
               std::string(dtype_name(tensor.dtype)), printable(tensor.name, name_bytes_max),
               fmt::format("[{}]", fmt::join(tensor.shape, ", ")), slice_text(placement.slice)});
  }
  table.print(out, plan.placements.size() - row_count);
}

}  // namespace

std::string describe_plan(const Checkpoint& checkpoint, const Plan& plan, std::size_t rows_max) {
  std::string out = fmt::format("Plan: {}, {}, from {}\n", counted(plan.placements.size(), "tensor"),
                                bytes_text(plan.loaded_bytes), printable(checkpoint.path()));
  describe_choices(plan, out);
  describe_slabs(plan, rows_max, out);
  describe_pieces(checkpoint, plan, rows_max, out);
  describe_placements(checkpoint, plan, rows_max, out);
  return out;
}

}  // namespace inrush::inline v0
