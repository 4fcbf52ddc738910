// Collects what happens in one load into its Report. Thread-safe.
#pragma once

#include <inrush/report.hpp>

#include "base/clock.hpp"
#include "transfer/gds_proof.hpp"
#include "transfer/transfer_path.hpp"

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace inrush::engine {

// What the staging of a load was, known once the load is over.
struct StagingUse {
  std::uint64_t pinned_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::vector<Fallback> fallbacks;
};

class LoadReport {
 public:
  explicit LoadReport(Clock::time_point start) : start_(start) {}

  // Sets what is known before the first byte.
  void begin(Report report);
  // The stage ends now; only its first end counts.
  void end_stage(double Stages::*stage);
  void end_stage(double Stages::*stage, double seconds);
  void add(const Arrival& arrival, std::uint64_t payload_bytes);
  void add_tensors(std::uint64_t count);
  void add_orphans(std::uint64_t count);
  void set_staging(StagingUse use);
  // Of the page cache, registered at one time.
  void set_windows(std::uint64_t peak_bytes);
  void set_suspects(std::vector<std::string> names);
  // What is known of the reads by cuFile. `configured`: the path of the plan.
  void set_proof(const GdsProof& proof, const std::string& configured);

  [[nodiscard]] double seconds() const { return seconds_between(start_, Clock::now()); }
  [[nodiscard]] std::uint64_t loaded_bytes() const;
  [[nodiscard]] Report snapshot() const;

 private:
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  Report report_;
  std::array<std::uint64_t, route_count> bytes_by_route_ = {};
  std::string cufile_path_{route_name(Route::cufile)};
};

}  // namespace inrush::engine
