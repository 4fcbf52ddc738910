#include "loader/load_report.hpp"

#include <utility>

namespace inrush::engine {

void LoadReport::begin(Report report) {
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

void LoadReport::end_stage(double Stages::*stage) { end_stage(stage, seconds()); }

void LoadReport::end_stage(double Stages::*stage, double seconds) {
  const std::lock_guard lock(mutex_);
  if (report_.seconds.*stage < 0) report_.seconds.*stage = seconds;
}

void LoadReport::add(const Arrival& arrival, std::uint64_t payload_bytes) {
  const std::lock_guard lock(mutex_);
  bytes_by_route_[static_cast<std::size_t>(arrival.route)] += payload_bytes;
  report_.loaded_bytes += payload_bytes;
  report_.read_bytes += arrival.read_bytes;
  report_.read_count += arrival.read_count;
  report_.copy_count += arrival.copy_count;
  report_.retry_count += arrival.retry_count;
}

void LoadReport::add_tensors(std::uint64_t count) {
  if (count > 0) end_stage(&Stages::first_tensor);
  const std::lock_guard lock(mutex_);
  report_.tensor_count += count;
}

void LoadReport::add_orphans(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  report_.orphan_count += count;
}

void LoadReport::set_staging(StagingUse use) {
  const std::lock_guard lock(mutex_);
  report_.pinned_peak_bytes = use.pinned_bytes;
  report_.staging_peak_bytes = use.used_bytes;
  report_.fallbacks = std::move(use.fallbacks);
}

void LoadReport::set_windows(std::uint64_t peak_bytes) {
  const std::lock_guard lock(mutex_);
  report_.window_peak_bytes = peak_bytes;
}

void LoadReport::set_suspects(std::vector<std::string> names) {
  const std::lock_guard lock(mutex_);
  report_.suspect_tensors = std::move(names);
}

void LoadReport::set_proof(const GdsProof& proof, const std::string& configured) {
  const std::lock_guard lock(mutex_);
  cufile_path_ = proof.path;
  if (bytes_by_route_[static_cast<std::size_t>(Route::cufile)] == 0) {
    report_.path = "staged";
    return;
  }
  report_.notes.push_back(proof.reason);
  report_.path = proof.way == GdsWay::compat     ? "cufile-compat"
                 : proof.way == GdsWay::unproven ? configured + " (unproven)"
                                                 : "gds";
}

std::uint64_t LoadReport::loaded_bytes() const {
  const std::lock_guard lock(mutex_);
  return report_.loaded_bytes;
}

Report LoadReport::snapshot() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  for (std::size_t route = 0; route < route_count; ++route) {
    if (bytes_by_route_[route] == 0) continue;
    const bool is_cufile = static_cast<Route>(route) == Route::cufile;
    report.bytes_by_path.push_back(
        {is_cufile ? cufile_path_ : std::string(route_name(static_cast<Route>(route))),
         bytes_by_route_[route]});
  }
  report.complete = report.seconds.last_byte >= 0;
  const double elapsed = report.complete ? report.seconds.last_byte : seconds();
  if (elapsed > 0) report.bytes_per_second = static_cast<double>(report.loaded_bytes) / elapsed;
  return report;
}

}  // namespace inrush::engine
