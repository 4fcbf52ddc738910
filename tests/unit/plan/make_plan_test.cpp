// Properties of plans of random checkpoints, requests and machines: every byte asked for, each exactly once,
// within every limit.
#include <inrush/error.hpp>
#include <inrush/plan.hpp>

#include "plan/pieces.hpp"
#include "plan/rows.hpp"
#include "plan/slabs.hpp"
#include "unit/plan/checkpoint_builder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace inrush::tests {

namespace {

using engine::gap_bytes_max;
using Bytes = std::vector<std::uint8_t>;

// One entry a file of the checkpoint.
std::vector<Bytes> random_files(const Checkpoint& checkpoint, std::mt19937_64& random) {
  std::vector<Bytes> files;
  for (const CheckpointFile& file : checkpoint.files()) {
    Bytes& bytes = files.emplace_back(file.identity.size_bytes);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  }
  return files;
}

std::uint64_t product(std::span<const std::uint64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1}, std::multiplies<>());
}

// The ranges of elements, in the order of the result, that the slice takes: one for each index of the
// dimensions before its own.
struct ElementRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

std::vector<ElementRange> taken_elements(const TensorInfo& tensor, const std::optional<Slice>& slice) {
  if (!slice) return {{0, product(tensor.shape)}};
  const std::uint64_t outer = product(tensor.shape.first(slice->dimension));
  const std::uint64_t inner = product(tensor.shape.subspan(slice->dimension + 1));
  std::vector<ElementRange> ranges;
  for (std::uint64_t i = 0; i < outer; ++i) {
    const std::uint64_t first = (i * tensor.shape[slice->dimension] + slice->start) * inner;
    ranges.push_back({first, slice->length * inner});
  }
  return ranges;
}

// Whether every row of the slice starts and ends on a byte.
bool is_on_bytes(const TensorInfo& tensor, const Slice& slice) {
  if (slice.length == tensor.shape[slice.dimension]) return true;
  const auto ranges = taken_elements(tensor, slice);
  return std::all_of(ranges.begin(), ranges.end(), [&](const ElementRange& range) {
    const std::uint64_t bits = dtype_bits(tensor.dtype);
    return range.count == 0 || (range.first * bits % 8 == 0 && range.count * bits % 8 == 0);
  });
}

// Element by element, by the definition of C order; bit by bit where an element has no byte of its own.
Bytes sliced(const TensorInfo& tensor, const Bytes& file, const std::optional<Slice>& slice) {
  const std::uint64_t bits = dtype_bits(tensor.dtype);
  Bytes result;
  std::uint64_t written_bits = 0;
  const auto put_bit = [&](std::uint64_t bit) {
    const std::uint8_t value = (file[tensor.offset + bit / 8] >> (bit % 8)) & 1;
    if (written_bits % 8 == 0) result.push_back(0);
    result.back() = static_cast<std::uint8_t>(result.back() | (value << (written_bits++ % 8)));
  };
  for (const ElementRange& range : taken_elements(tensor, slice)) {
    if (bits % 8 != 0) {
      for (std::uint64_t bit = range.first * bits; bit < (range.first + range.count) * bits; ++bit)
        put_bit(bit);
      continue;
    }
    for (std::uint64_t i = range.first; i < range.first + range.count; ++i) {
      for (std::uint64_t byte = 0; byte < bits / 8; ++byte)
        result.push_back(file[tensor.offset + i * bits / 8 + byte]);
    }
  }
  return result;
}

bool is_group(const Slab& slab) { return slab.target_address != 0; }

void check_slabs(const Plan& plan, const Device& device) {
  std::uint32_t next_piece = 0;
  for (std::size_t i = 0; i < plan.slabs.size(); ++i) {
    const Slab& slab = plan.slabs[i];
    EXPECT_EQ(slab.device, device);
    EXPECT_GT(slab.size_bytes, 0U);
    EXPECT_EQ(slab.alignment_bytes, is_group(slab) ? 1 : engine::tensor_alignment_bytes);
    EXPECT_LE(i > 0 && is_group(plan.slabs[i - 1]), is_group(slab)) << "groups of targets come last";
    EXPECT_EQ(slab.first_piece, next_piece);
    EXPECT_GT(slab.piece_count, 0U);
    next_piece += slab.piece_count;
    for (std::uint32_t k = slab.first_piece; k < next_piece; ++k) EXPECT_EQ(plan.pieces.at(k).slab, i);
  }
  EXPECT_EQ(next_piece, plan.pieces.size());
}

// Two neighbours of one slab that is allocated.
void check_neighbours(const Placement& first, const Placement& second) {
  EXPECT_EQ(second.slab_offset % engine::tensor_alignment_bytes, 0U);
  EXPECT_LE(first.slab_offset + first.size_bytes, second.slab_offset);
}

void check_placements(const Plan& plan) {
  std::uint64_t loaded_bytes = 0;
  std::vector<std::uint64_t> group_bytes(plan.slabs.size());
  const Placement* last = nullptr;
  for (const Placement& placement : plan.placements) {
    loaded_bytes += placement.size_bytes;
    if (placement.size_bytes == 0) {
      EXPECT_EQ(last, nullptr) << "empty tensors come first";
      EXPECT_EQ(placement.slab, 0U);
      EXPECT_EQ(placement.slab_offset, 0U);
      continue;
    }
    const Slab& slab = plan.slabs.at(placement.slab);
    group_bytes[placement.slab] += placement.size_bytes;
    if (!is_group(slab)) {
      EXPECT_LE(placement.slab_offset + placement.size_bytes, slab.size_bytes);
    }
    if (last != nullptr) {
      EXPECT_LE(last->slab, placement.slab);
      if (is_group(plan.slabs[last->slab]) == is_group(slab)) {
        EXPECT_LT(last->tensor, placement.tensor);
      }
      if (last->slab == placement.slab && !is_group(slab)) check_neighbours(*last, placement);
    }
    last = &placement;
  }
  EXPECT_EQ(loaded_bytes, plan.loaded_bytes);
  for (std::size_t i = 0; i < plan.slabs.size(); ++i) {
    if (is_group(plan.slabs[i])) {
      EXPECT_EQ(plan.slabs[i].size_bytes, group_bytes[i]);
    }
  }
}

// Every target is where the request says, and nothing else has one.
void check_targets(const Checkpoint& checkpoint, const LoadRequest& request, const Plan& plan) {
  for (const Placement& placement : plan.placements) {
    if (placement.size_bytes == 0) continue;
    const Slab& slab = plan.slabs[placement.slab];
    const auto target = request.targets.by_name.find(std::string(checkpoint.tensor(placement.tensor).name));
    ASSERT_EQ(is_group(slab), target != request.targets.by_name.end());
    if (!is_group(slab)) continue;
    EXPECT_EQ(slab.target_address + placement.slab_offset,
              reinterpret_cast<std::uintptr_t>(target->second.pointer));
  }
}

// The piece reads nothing at its ends that it does not need, and no long gap.
void check_piece_is_needed(const Plan& plan, const Piece& piece) {
  std::uint64_t reached = 0;
  for (std::uint32_t i = 0; i < piece.segment_count; ++i) {
    const Segment& segment = plan.segments.at(piece.first_segment + i);
    EXPECT_GT(segment.row_bytes, 0U);
    EXPECT_GE(segment.source_pitch_bytes, segment.row_bytes);
    EXPECT_GE(segment.slab_pitch_bytes, segment.row_bytes);
    for (std::uint64_t row = 0; row < segment.row_count; ++row) {
      const std::uint64_t offset = segment.source_offset + row * segment.source_pitch_bytes;
      ASSERT_GE(offset, reached);
      EXPECT_LE(offset - reached, reached == 0 ? 0 : gap_bytes_max);
      reached = offset + segment.row_bytes;
    }
  }
  EXPECT_EQ(reached, piece.size_bytes);
}

// What plan.hpp promises of order and limits.
void check_plan(const Checkpoint& checkpoint, const Plan& plan, const Machine& machine) {
  check_slabs(plan, machine.devices.front());
  check_placements(plan);
  std::uint64_t read_bytes = 0;
  std::uint32_t next_segment = 0;
  const Piece* last = nullptr;
  for (const Piece& piece : plan.pieces) {
    read_bytes += piece.size_bytes;
    EXPECT_GT(piece.size_bytes, 0U);
    const std::uint64_t factor = plan.page_cache == PageCachePolicy::bypass ? 2 : 1;  // O_DIRECT
    EXPECT_LE(piece.size_bytes, machine.piece_bytes_max * factor);
    EXPECT_LE((piece.offset + piece.size_bytes + 4095) / 4096 * 4096 - piece.offset / 4096 * 4096,
              plan.slot_bytes);
    EXPECT_GE(piece.offset, checkpoint.files()[piece.file].data_offset);
    EXPECT_LE(piece.offset + piece.size_bytes, checkpoint.files()[piece.file].identity.size_bytes);
    EXPECT_EQ(piece.first_segment, next_segment);
    next_segment += piece.segment_count;
    check_piece_is_needed(plan, piece);
    if (last != nullptr) {
      const std::uint64_t end = last->offset + last->size_bytes;
      EXPECT_LE(std::tie(last->slab, last->file, end), std::tie(piece.slab, piece.file, piece.offset));
    }
    last = &piece;
  }
  EXPECT_EQ(next_segment, plan.segments.size());
  EXPECT_EQ(read_bytes, plan.read_bytes);
  EXPECT_LE(plan.slot_count * plan.slot_bytes, machine.staging_bytes_max);
  EXPECT_EQ(plan.slot_bytes % 4096, 0U);
  EXPECT_GE(plan.slot_count, plan.pieces.empty() ? 0U : 2U);
  EXPECT_GE(plan.reader_count, 1U);
  EXPECT_LE(plan.reader_count, machine.reader_count_max);
}

// Carries the plan out on bytes in memory.
void check_bytes(const Checkpoint& checkpoint, const Plan& plan, const std::vector<Bytes>& files) {
  std::vector<Bytes> slabs;
  std::vector<Bytes> write_counts;
  std::vector<std::uint64_t> extents(plan.slabs.size());
  for (const Placement& placement : plan.placements) {
    if (placement.size_bytes == 0) continue;
    std::uint64_t& extent = extents[placement.slab];
    extent = std::max(extent, placement.slab_offset + placement.size_bytes);
  }
  for (const std::uint64_t extent : extents) {
    slabs.emplace_back(extent);
    write_counts.emplace_back(extent);
  }
  // By placement: bytes that its pieces bring, in pieces that name it.
  std::vector<std::uint64_t> arrived_bytes(plan.placements.size());
  for (const Piece& piece : plan.pieces) {
    std::set<std::uint32_t> filled;
    for (std::uint32_t i = piece.first_segment; i < piece.first_segment + piece.segment_count; ++i) {
      const Segment& segment = plan.segments[i];
      std::uint32_t owner = piece.first_placement;
      for (std::uint64_t row = 0; row < segment.row_count; ++row) {
        for (std::uint64_t k = 0; k < segment.row_bytes; ++k) {
          const std::uint64_t from =
              piece.offset + segment.source_offset + row * segment.source_pitch_bytes + k;
          const std::uint64_t to = segment.slab_offset + row * segment.slab_pitch_bytes + k;
          slabs[piece.slab].at(to) = files[piece.file].at(from);
          ++write_counts[piece.slab][to];
          const auto holds = [&](const Placement& placement) {
            return placement.slab_offset <= to && to < placement.slab_offset + placement.size_bytes;
          };
          while (!holds(plan.placements[owner]))
            ASSERT_LT(++owner, piece.first_placement + piece.placement_count);
          ++arrived_bytes[owner];
          filled.insert(owner);
        }
      }
    }
    EXPECT_EQ(filled.size(), piece.placement_count);
  }
  for (std::size_t i = 0; i < plan.placements.size(); ++i) {
    const Placement& placement = plan.placements[i];
    const TensorInfo tensor = checkpoint.tensor(placement.tensor);
    const Bytes expected = sliced(tensor, files[tensor.file], placement.slice);
    ASSERT_EQ(placement.size_bytes, expected.size()) << tensor.name;
    EXPECT_EQ(arrived_bytes[i], expected.size()) << tensor.name;
    if (expected.empty()) continue;
    const auto at = static_cast<std::ptrdiff_t>(placement.slab_offset);
    const Bytes& slab = slabs[placement.slab];
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), slab.begin() + at)) << tensor.name;
    Bytes& counts = write_counts[placement.slab];
    const auto size = static_cast<std::ptrdiff_t>(expected.size());
    EXPECT_EQ(std::count(counts.begin() + at, counts.begin() + at + size, 1), size) << tensor.name;
    std::fill_n(counts.begin() + at, size, std::uint8_t{0});
  }
  // What is left is padding, which nobody writes.
  for (const Bytes& counts : write_counts) {
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), static_cast<std::ptrdiff_t>(counts.size()));
  }
}

bool is_selected(const LoadRequest& request, const TensorInfo& tensor) {
  const bool named = std::find(request.only.begin(), request.only.end(), tensor.name) != request.only.end();
  return (named || request.only.empty()) && (!request.select || request.select(tensor));
}

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random(seed) {}

  std::uint64_t below(std::uint64_t end) { return random() % end; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

  // `extent_max` decides whether rows and gaps are short, or long enough to be skipped.
  Checkpoint checkpoint(std::uint64_t extent_max) {
    CheckpointBuilder builder;
    const std::uint64_t file_count = 1 + below(3);
    for (std::uint64_t file = 0; file < file_count; ++file) {
      builder.file(fmt::format("dir/model-{}.safetensors", file), 8 + below(300));
      const std::uint64_t tensor_count = below(extent_max > 100 ? 4 : 12);
      for (std::uint64_t i = 0; i < tensor_count; ++i) {
        const auto dtype = static_cast<DType>(below(dtype_count));
        builder.tensor(fmt::format("layer.{}.{}", file, i), dtype, shape(dtype, extent_max));
      }
    }
    return builder.build();
  }

  std::vector<std::uint64_t> shape(DType dtype, std::uint64_t extent_max) {
    std::vector<std::uint64_t> extents(below(5));
    for (std::uint64_t& extent : extents) extent = one_in(25) ? 0 : 1 + below(6);
    if (!extents.empty() && one_in(2)) extents.back() = 1 + below(extent_max);
    // The format allows no tensor that ends inside a byte.
    while (product(extents) * dtype_bits(dtype) % 8 != 0) {
      if (extents.empty()) extents.push_back(1);
      extents[below(extents.size())] *= 2;
    }
    return extents;
  }

  LoadRequest request(const Checkpoint& checkpoint) {
    LoadRequest request;
    if (one_in(3) && checkpoint.tensor_count() > 0) {
      for (int i = 0; i < 3; ++i)
        request.only.emplace_back(checkpoint.tensor(below(checkpoint.tensor_count())).name);
    }
    if (one_in(3)) request.select = [](const TensorInfo& tensor) { return tensor.offset % 3 != 0; };
    if (one_in(3)) request.window_bytes_max = 1 + below(8000);
    for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
      const TensorInfo tensor = checkpoint.tensor(i);
      if (tensor.shape.empty() || one_in(2)) continue;
      const auto dimension = static_cast<std::uint32_t>(below(tensor.shape.size()));
      const std::uint64_t start = below(tensor.shape[dimension] + 1);
      const Slice slice = {dimension, start, below(tensor.shape[dimension] - start + 1)};
      if (is_on_bytes(tensor, slice)) {
        request.slices[std::string(tensor.name)] = slice;
      } else {
        EXPECT_THROW(static_cast<void>(engine::slice_rows(tensor, slice)), Error) << tensor.name;
      }
    }
    if (one_in(2)) add_targets(checkpoint, request);
    return request;
  }

  // For most of the selected tensors; in the order of the file or mixed, side by side or apart. Nothing is
  // written to these addresses.
  void add_targets(const Checkpoint& checkpoint, LoadRequest& request) {
    std::vector<TensorInfo> tensors;
    for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
      if (is_selected(request, checkpoint.tensor(i)) && !one_in(4)) tensors.push_back(checkpoint.tensor(i));
    }
    if (one_in(2)) std::shuffle(tensors.begin(), tensors.end(), random);
    std::uint64_t address = 1 + below(5'000);
    for (const TensorInfo& tensor : tensors) {
      const auto slice = request.slices.find(std::string(tensor.name));
      const std::uint64_t size_bytes = slice == request.slices.end()
                                           ? tensor.size_bytes
                                           : engine::slice_rows(tensor, slice->second).size_bytes();
      if (one_in(3)) address += below(300);
      request.targets.by_name[std::string(tensor.name)] = {reinterpret_cast<void*>(address), size_bytes};
      address += size_bytes;
    }
  }

  Machine machine() {
    Machine machine;
    machine.devices = {Device{}};
    machine.paths = {{"staged", true, "", 0}};
    machine.cpu_count = 1 + static_cast<std::uint32_t>(below(32));
    machine.loading_process_count = 1 + static_cast<std::uint32_t>(below(3));
    machine.reader_count_max = 1 + static_cast<std::uint32_t>(below(16));
    machine.host_free_bytes = below(20'000);
    if (one_in(4)) machine.staging_bytes_max = 24'576 + below(100'000);
    if (one_in(2)) machine.slab_bytes_max = below(10'000);
    if (one_in(2)) machine.own_slab_bytes_min = below(3'000);
    if (one_in(4)) machine.piece_bytes_max = 4096 * (1 + below(50));
    if (one_in(2)) machine.piece_bytes_max = 1 + below(one_in(2) ? 40 : 5'000);
    return machine;
  }

  std::mt19937_64 random;
};

void check_selection(const Checkpoint& checkpoint, const LoadRequest& request, const Plan& plan) {
  std::set<std::uint64_t> expected;
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    if (is_selected(request, tensor)) expected.insert(i);
  }
  std::set<std::uint64_t> placed;
  for (const Placement& placement : plan.placements) {
    placed.insert(placement.tensor);
    const auto slice = request.slices.find(std::string(checkpoint.tensor(placement.tensor).name));
    EXPECT_EQ(placement.slice, slice == request.slices.end() ? std::nullopt : std::optional(slice->second));
  }
  EXPECT_EQ(placed, expected);
  EXPECT_EQ(placed.size(), plan.placements.size());
}

void check_slab_limits(const LoadRequest& request, const Machine& machine, const Plan& plan) {
  std::uint64_t slab_bytes_max = machine.slab_bytes_max;
  if (request.window_bytes_max > 0) slab_bytes_max = std::min(slab_bytes_max, request.window_bytes_max / 4);
  std::vector<std::uint32_t> tensor_counts(plan.slabs.size());
  for (const Placement& placement : plan.placements) {
    if (placement.size_bytes > 0) ++tensor_counts[placement.slab];
  }
  for (const Placement& placement : plan.placements) {
    if (placement.size_bytes == 0) continue;
    const Slab& slab = plan.slabs[placement.slab];
    if (tensor_counts[placement.slab] == 1) {
      EXPECT_EQ(slab.size_bytes, placement.size_bytes);
    } else if (is_group(slab)) {
      EXPECT_LE(slab.size_bytes, machine.slab_bytes_max);
    } else {
      EXPECT_LE(slab.size_bytes, slab_bytes_max);
      EXPECT_LT(placement.size_bytes, machine.own_slab_bytes_min);
    }
  }
}

void check_random_plan(std::uint64_t seed, std::uint64_t extent_max) {
  Generator generator(seed);
  const Checkpoint checkpoint = generator.checkpoint(extent_max);
  const LoadRequest request = generator.request(checkpoint);
  const Machine machine = generator.machine();
  const Plan plan = make_plan(checkpoint, request, machine);
  EXPECT_EQ(plan, make_plan(checkpoint, request, machine));
  check_plan(checkpoint, plan, machine);
  check_selection(checkpoint, request, plan);
  check_targets(checkpoint, request, plan);
  check_slab_limits(request, machine, plan);
  check_bytes(checkpoint, plan, random_files(checkpoint, generator.random));
}

Machine plain_machine() {
  Machine machine;
  machine.devices = {Device{}};
  machine.paths = {{"staged", true, "", 0}};
  machine.cpu_count = 16;
  return machine;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t fewer = 10;  // ThreadSanitizer takes ten times as long
#else
constexpr std::uint64_t fewer = 1;
#endif

TEST(MakePlanProperties, SmallTensorsCutEverywhere) {
  for (std::uint64_t seed = 0; seed < 4'000 / fewer && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    check_random_plan(seed, 60);
  }
}

TEST(MakePlanProperties, RowsFartherApartThanTheGap) {
  for (std::uint64_t seed = 0; seed < 200 / fewer && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    check_random_plan(1'000'000 + seed, 30'000);
  }
}

TEST(MakePlan, OnlyEmptyTensorsNeedNoSlab) {
  CheckpointBuilder builder;
  builder.file("a", 100).tensor("x", DType::f32, {0}).tensor("y", DType::f32, {0, 5});
  const Checkpoint checkpoint = builder.build();
  const Plan plan = make_plan(checkpoint, {}, plain_machine());
  EXPECT_EQ(plan.placements.size(), 2U);
  EXPECT_TRUE(plan.slabs.empty());
  EXPECT_TRUE(plan.pieces.empty());
  EXPECT_EQ(plan.slot_bytes, 0U);
  EXPECT_EQ(make_plan(Checkpoint(), {}, plain_machine()).placements.size(), 0U);
}

TEST(MakePlan, AdjacentTensorsAreOneSegment) {
  CheckpointBuilder builder;
  builder.file("a", 100);
  for (int i = 0; i < 10; ++i) builder.tensor(fmt::format("t{}", i), DType::f32, {64});
  const Checkpoint checkpoint = builder.build();
  const Plan plan = make_plan(checkpoint, {}, plain_machine());
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_EQ(plan.segments, (std::vector<Segment>{{0, 2560, 0, 2560, 2560, 1}}));
  EXPECT_EQ(plan.pieces[0].placement_count, 10U);
}

TEST(MakePlan, PaddingBetweenTensorsIsStillOneRead) {
  CheckpointBuilder builder;
  builder.file("a", 100)
      .tensor("x", DType::u8, {3})
      .tensor("y", DType::f32, {4})
      .tensor("z", DType::f64, {2});
  const Checkpoint checkpoint = builder.build();
  const Plan plan = make_plan(checkpoint, {}, plain_machine());
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_EQ(plan.segments.size(), 3U);
  EXPECT_EQ(plan.slabs[0].size_bytes, 512U + 16);
}

TEST(MakePlan, GapsAreReadThroughUpToTheLimitAndNoFarther) {
  for (const std::uint64_t excess : {0U, 1U}) {
    CheckpointBuilder builder;
    builder.file("a", 100).tensor("x", DType::u8, {512});
    builder.tensor("gap", DType::u8, {gap_bytes_max + excess}).tensor("y", DType::u8, {256});
    const Checkpoint checkpoint = builder.build();
    LoadRequest request;
    request.only = {"x", "y"};
    const Plan plan = make_plan(checkpoint, request, plain_machine());
    EXPECT_EQ(plan.pieces.size(), 1U + excess);
    EXPECT_EQ(plan.read_bytes, 768 + (excess == 0 ? gap_bytes_max : 0));
  }
}

TEST(MakePlan, InnerSliceIsOneStridedSegment) {
  CheckpointBuilder builder;
  builder.file("a", 100).tensor("w", DType::bf16, {128, 1024});
  const Checkpoint checkpoint = builder.build();
  LoadRequest request;
  request.slices = {{"w", {1, 256, 128}}};
  const Plan plan = make_plan(checkpoint, request, plain_machine());
  EXPECT_EQ(plan.segments, (std::vector<Segment>{{0, 2048, 0, 256, 256, 128}}));
  ASSERT_EQ(plan.pieces.size(), 1U);
  EXPECT_EQ(plan.pieces[0].offset, 100U + 512);
  EXPECT_EQ(plan.pieces[0].size_bytes, 127U * 2048 + 256);
  EXPECT_EQ(plan.loaded_bytes, 128U * 256);
}

TEST(MakePlan, PiecesAreCutAtMultiplesOfTheirSizeInTheFile) {
  CheckpointBuilder builder;
  builder.file("a", 1000).tensor("w", DType::u8, {40ULL << 20});
  const Checkpoint checkpoint = builder.build();
  Machine machine = plain_machine();
  machine.cpu_count = 1;
  const Plan plan = make_plan(checkpoint, {.page_cache = PageCachePolicy::keep}, machine);
  ASSERT_EQ(plan.pieces.size(), 21U);
  for (std::size_t i = 1; i < plan.pieces.size(); ++i) EXPECT_EQ(plan.pieces[i].offset, i * (2ULL << 20));
}

// A sparse file may claim any size; the plan for it must not eat the memory of the machine.
TEST(MakePlan, RefusesMoreReadsThanAPlanMayHold) {
  CheckpointBuilder builder;
  builder.file("a", 8).tensor("w", DType::u8, {1ULL << 50});
  const Checkpoint checkpoint = builder.build();
  Machine machine = plain_machine();
  EXPECT_THROW(static_cast<void>(make_plan(checkpoint, {}, machine)), Error);
}

}  // namespace inrush::tests
