// What one load needs of cuFile: the ring that is kept with its staging, and the judgement on which way its
// bytes came. Used by the path's thread alone.
#pragma once

#include <inrush/plan.hpp>

#include "base/fallbacks.hpp"
#include "loader/cufile_opening.hpp"
#include "loader/load_report.hpp"
#include "loader/staging_pool.hpp"
#include "transfer/gds_reads.hpp"

#include <memory>
#include <string_view>

namespace inrush::engine {

class LoadGds {
 public:
  struct Parts {
    const Plan& plan;
    CufileOpening& opening;
    Staging& staging;
    Fallbacks& fallbacks;
    LoadReport& report;
  };

  explicit LoadGds(Parts parts) : parts_(parts) {}
  LoadGds(const LoadGds&) = delete;
  LoadGds& operator=(const LoadGds&) = delete;

  // For the path; it asks this object, which must outlive it.
  [[nodiscard]] OwnSlots slots();
  // Once nothing is in flight: writes into the report which way the bytes came. Where the library went by its
  // compat mode although that was forbidden, no later load of this Loader uses it.
  void judge();

 private:
  [[nodiscard]] GdsReads* reads();
  [[nodiscard]] std::string_view name() const;

  Parts parts_;
  std::unique_ptr<GdsReads> reads_;
  bool has_failed_ = false;
};

}  // namespace inrush::engine
