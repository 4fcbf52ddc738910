// Storage -> staging ring -> device: what works everywhere, and what every other path falls back to.
#pragma once

#include "transfer/piece_run.hpp"
#include "transfer/transfer_path.hpp"

#include <utility>

namespace inrush::engine {

class StagedPath final : public TransferPath {
 public:
  explicit StagedPath(StagedParts parts) : parts_(std::move(parts)) {}
  void run(const Plan& plan, TransferSink& sink) override { run_pieces(parts_, nullptr, plan, sink); }

 private:
  StagedParts parts_;
};

}  // namespace inrush::engine
