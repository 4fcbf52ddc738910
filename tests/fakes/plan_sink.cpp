#include "fakes/plan_sink.hpp"

#include <stdexcept>

namespace inrush::fakes {

using namespace engine;

namespace {

constexpr char poison = '\xA5';

}  // namespace

PlanSink::PlanSink(const Plan& plan, Gpu& gpu, std::vector<std::shared_ptr<const File>> files)
    : plan_(plan), gpu_(gpu), files_(std::move(files)) {
  const std::unique_ptr<CopyStream> stream = gpu.open_stream();
  for (const Slab& slab : plan.slabs) {
    slabs_.push_back(gpu.allocate(slab.size_bytes, slab.alignment_bytes));
    const std::string bytes(slab.size_bytes, poison);
    stream->copy(std::vector<Copy>{{.source = reinterpret_cast<const std::byte*>(bytes.data()),
                                    .target = slabs_.back().get(),
                                    .row_bytes = bytes.size()}});
    stream->wait(stream->record());
  }
}

std::optional<Work> PlanSink::take() {
  if (exhausted()) return std::nullopt;
  const auto index = static_cast<std::uint32_t>(next_++);
  const Piece& piece = plan_.pieces[index];
  const std::shared_ptr<void>& slab = slabs_[piece.slab];
  if (gpu_.is_host()) return Work{index, files_[piece.file], static_cast<std::byte*>(slab.get()), slab};
  return Work{index, files_[piece.file], slab_questions == 0 ? static_cast<std::byte*>(slab.get()) : nullptr,
              nullptr};
}

std::byte* PlanSink::slab_of(std::uint32_t piece) const {
  if (asked_count_++ < slab_questions) return nullptr;
  return static_cast<std::byte*>(slabs_[plan_.pieces[piece].slab].get());
}

void PlanSink::arrived(const Arrival& arrival) {
  if (++arrived_[arrival.piece] != 1) throw std::logic_error("a piece arrived twice");
  ++pieces_by_route[arrival.route];
  retry_count += arrival.retry_count;
  if (on_arrival) on_arrival(arrived_.size());
}

std::string PlanSink::placed(const Placement& placement) const {
  std::string bytes(placement.size_bytes, '\0');
  if (bytes.empty()) return bytes;
  const auto* const start =
      static_cast<const std::byte*>(slabs_[placement.slab].get()) + placement.slab_offset;
  gpu_.copy_to_host(start, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace inrush::fakes
