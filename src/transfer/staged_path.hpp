// Storage -> staging ring -> device: what works everywhere, and what every other path falls back to.
#pragma once

#include "transfer/own_slots.hpp"
#include "transfer/piece_run.hpp"
#include "transfer/transfer_path.hpp"

#include <optional>
#include <utility>

namespace inrush::engine {

class StagedPath final : public TransferPath {
 public:
  // `windows`: over the page cache, where the plan wants them.
  explicit StagedPath(StagedParts parts, std::optional<OwnSlots> windows = {})
      : parts_(std::move(parts)), windows_(std::move(windows)) {}
  void run(const Plan& plan, TransferSink& sink) override {
    run_pieces(parts_, windows_ ? &*windows_ : nullptr, plan, sink);
  }

 private:
  StagedParts parts_;
  std::optional<OwnSlots> windows_;
};

}  // namespace inrush::engine
