// The sink of the transfer tests: allocates every slab at once, hands out pieces in order, poisons
// destinations, and counts.
#pragma once

#include "gpu/gpu.hpp"
#include "transfer/transfer_path.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace inrush::fakes {

class PlanSink final : public engine::TransferSink {
 public:
  // `files` by their index in the checkpoint; only those with pieces are used.
  PlanSink(const Plan& plan, engine::Gpu& gpu, std::vector<std::shared_ptr<const engine::File>> files);

  std::optional<engine::Work> take() override;
  bool exhausted() const override { return next_ == plan_.pieces.size(); }
  void wait_for_work(engine::Clock::time_point) override {}
  std::byte* slab_of(std::uint32_t piece) const override;
  void wait_for_slab(engine::Clock::time_point) override {}
  std::string describe(std::uint32_t piece) const override { return "piece " + std::to_string(piece); }
  void first_byte() override { ++first_byte_count; }
  void submitted(std::uint32_t) override {}
  void arrived(const engine::Arrival& arrival) override;
  void orphaned(std::uint64_t count) noexcept override { orphan_count += count; }

  // The bytes of one placement as the device holds them.
  [[nodiscard]] std::string placed(const Placement& placement) const;
  [[nodiscard]] std::uint64_t arrived_count() const { return arrived_.size(); }

  // How often the path asks before a slab of a device is there; 0: it comes with the piece.
  std::uint64_t slab_questions = 0;
  std::function<void(std::uint64_t)> on_arrival;  // called with the count of arrivals so far
  std::uint64_t first_byte_count = 0;
  std::uint64_t orphan_count = 0;
  std::uint64_t retry_count = 0;
  std::map<engine::Route, std::uint64_t> pieces_by_route;

 private:
  const Plan& plan_;
  engine::Gpu& gpu_;
  std::vector<std::shared_ptr<const engine::File>> files_;
  std::vector<std::shared_ptr<void>> slabs_;
  std::size_t next_ = 0;
  mutable std::uint64_t asked_count_ = 0;
  std::map<std::uint32_t, std::uint64_t> arrived_;
};

}  // namespace inrush::fakes
