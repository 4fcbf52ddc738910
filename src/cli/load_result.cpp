#include "cli/load_result.hpp"

#include "cli/output.hpp"

#include <fmt/format.h>
#include <boost/json.hpp>

namespace inrush::engine {

namespace {

boost::json::array json_choices(const std::vector<PathChoice>& choices) {
  boost::json::array array;
  for (const PathChoice& choice : choices) {
    array.push_back({{"name", choice.name}, {"usable", choice.usable}, {"reason", choice.reason}});
  }
  return array;
}

boost::json::array json_placements(const Checkpoint& checkpoint, const Plan& plan) {
  boost::json::array array;
  for (const Placement& placement : plan.placements) {
    array.push_back({{"name", checkpoint.tensor(placement.tensor).name},
                     {"slab", placement.slab},
                     {"slab_offset", placement.slab_offset},
                     {"size_bytes", placement.size_bytes}});
  }
  return array;
}

}  // namespace

std::string plan_json(const Checkpoint& checkpoint, const Plan& plan, const Device& device) {
  boost::json::array slabs;
  for (const Slab& slab : plan.slabs) slabs.emplace_back(slab.size_bytes);
  const boost::json::object object = {
      {"checkpoint", json_path(checkpoint.path())},
      {"device", device_name(device)},
      {"path", plan.path},
      {"paths", json_choices(plan.paths)},
      {"page_cache", plan.page_cache == PageCachePolicy::keep ? "keep" : "bypass"},
      {"page_cache_rule", plan.page_cache_rule},
      {"reader_count", plan.reader_count},
      {"slot_count", plan.slot_count},
      {"slot_bytes", plan.slot_bytes},
      {"loaded_bytes", plan.loaded_bytes},
      {"read_bytes", plan.read_bytes},
      {"piece_count", plan.pieces.size()},
      {"segment_count", plan.segments.size()},
      {"slab_bytes", slabs},
      {"placements", json_placements(checkpoint, plan)},
  };
  return boost::json::serialize(object);
}

std::string load_result_text(const Report& report, const std::optional<CheckResult>& check) {
  std::string text = report_to_text(report);
  if (check) {
    text += fmt::format("every byte equal: {} bytes in {} compared with the files in {:.2f} s\n",
                        grouped(check->bytes), counted(check->tensor_count, "tensor"), check->seconds);
  }
  return text;
}

std::string load_result_json(const std::string& path, const Report& report,
                             const std::optional<CheckResult>& check) {
  boost::json::value checked = nullptr;
  if (check) {
    checked = {{"equal", true},
               {"bytes", check->bytes},
               {"tensor_count", check->tensor_count},
               {"seconds", check->seconds}};
  }
  return fmt::format(R"({{"checkpoint":{},"report":{},"check":{}}})",
                     boost::json::serialize(boost::json::string(path)), report_to_json(report),
                     boost::json::serialize(checked));
}

}  // namespace inrush::engine
