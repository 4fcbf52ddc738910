#include <inrush/plan.hpp>

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "plan/choices.hpp"
#include "plan/pieces.hpp"
#include "plan/ring_choice.hpp"
#include "plan/select.hpp"
#include "plan/slabs.hpp"
#include "plan/targets.hpp"

#include <new>
#include <utility>
#include <vector>

namespace inrush::inline v0 {

namespace {

Plan plan_of(const Checkpoint& checkpoint, const LoadRequest& request, const Machine& machine) {
  engine::require_device(request.device, machine);
  Plan plan;
  engine::PathDecision path = engine::choose_path(request.path, machine);
  plan.path = std::move(path.name);
  plan.path_rule = std::move(path.rule);
  plan.path_is_forced = request.path != PathPreference::automatic;
  plan.paths = machine.paths;

  std::vector<engine::Selected> selected = engine::select_tensors(checkpoint, request);
  engine::bind_targets(checkpoint, request.targets, selected);
  engine::SlabLayout layout =
      engine::lay_slabs(selected, request.device, engine::slab_limits(request, machine));
  plan.slabs = std::move(layout.slabs);
  plan.placements = std::move(layout.placements);
  for (const Placement& placement : plan.placements) plan.loaded_bytes += placement.size_bytes;

  const bool is_host = request.device.kind == DeviceKind::cpu;
  // On the CPU the tensors take host memory beside the pages that are kept; targets have theirs already.
  const auto page_cache_for = [&](std::uint64_t read_bytes) {
    return engine::choose_page_cache(request.page_cache,
                                     read_bytes + (is_host ? engine::allocated_bytes(plan) : 0), machine);
  };
  plan.page_cache_windows = !is_host && plan.path == "staged" && engine::takes_windows(machine);
  const engine::RingChoice ring =
      plan.page_cache_windows
          ? engine::choose_window_ring(machine, plan.loaded_bytes)
          : engine::choose_ring(machine, plan.loaded_bytes, page_cache_for(plan.loaded_bytes).policy);
  engine::lay_pieces(selected, ring.piece_bytes, plan);
  engine::fit_ring(ring, plan);
  for (const Piece& piece : plan.pieces) plan.read_bytes += piece.size_bytes;

  engine::PageCacheChoice page_cache = page_cache_for(plan.read_bytes);
  plan.page_cache = page_cache.policy;
  plan.page_cache_rule = std::move(page_cache.rule);
  return plan;
}

}  // namespace

Plan make_plan(const Checkpoint& checkpoint, const LoadRequest& request, const Machine& machine) {
  try {
    return plan_of(checkpoint, request, machine);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, engine::printable(checkpoint.path()) +
                                              ": the host has no memory for the plan of its load; free some");
  }
}

}  // namespace inrush::inline v0
