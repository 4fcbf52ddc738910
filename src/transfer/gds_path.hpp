// Storage -> ring of device memory -> final address, by cuFile. Ranges that are resident, files that cuFile
// refuses and pieces whose read failed come by the staging ring, each piece as a whole; every refusal is
// recorded with its reason.
#pragma once

#include "transfer/piece_run.hpp"
#include "transfer/transfer_path.hpp"

#include <utility>

namespace inrush::engine {

class GdsPath final : public TransferPath {
 public:
  GdsPath(StagedParts parts, OwnSlots gds) : parts_(std::move(parts)), gds_(std::move(gds)) {}
  void run(const Plan& plan, TransferSink& sink) override { run_pieces(parts_, &gds_, plan, sink); }

 private:
  StagedParts parts_;
  OwnSlots gds_;
};

}  // namespace inrush::engine
