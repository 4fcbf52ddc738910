// A file of any bytes is refused as corrupt, or its tensors cover the data without hole and overlap, each as
// large as its shape says.
#include "checkpoint/discover.hpp"
#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"
#include "fuzz/require.hpp"

#include <inrush/error.hpp>
#include <inrush/plan.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace inrush::fuzz {

namespace {

constexpr std::size_t control_bytes = 3;
constexpr unsigned fitting_flag = 1;  // the rest is a header's text; length prefix and data are made to fit
constexpr unsigned small_caps_flag = 2;

std::string file_of(unsigned flags, std::size_t data_bytes, std::string_view rest) {
  if ((flags & fitting_flag) == 0) return std::string(rest);
  return fakes::length_prefix(rest.size()) + std::string(rest) + std::string(data_bytes, '\0');
}

DiscoverOptions options_of(unsigned flags) {
  if ((flags & small_caps_flag) == 0) return {};
  DiscoverOptions options;
  options.header_bytes_max = 1000;
  options.tensor_count_max = 4;
  options.name_bytes_max = 8;
  options.metadata_count_max = 2;
  options.dimension_count_max = 5;
  options.rank_max = 3;
  options.nesting_max = 4;
  return options;
}

void require_size(const TensorInfo& tensor) {
  std::uint64_t bits = dtype_bits(tensor.dtype);
  const bool is_empty = std::ranges::find(tensor.shape, 0U) != tensor.shape.end();
  for (const std::uint64_t extent : tensor.shape) {
    if (!is_empty) require(!__builtin_mul_overflow(bits, extent, &bits), "a size fits 64 bits");
  }
  if (is_empty) bits = 0;
  require(bits % 8 == 0 && bits / 8 == tensor.size_bytes, "a tensor has the bytes of its shape");
}

void require_layout(const Checkpoint& checkpoint, std::uint64_t file_bytes) {
  std::uint64_t end = checkpoint.files()[0].data_offset;
  std::uint64_t total_bytes = 0;
  require(end <= file_bytes, "the data starts in the file");
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    require(tensor.offset == end, "a tensor starts where the one before ended");
    require(tensor.size_bytes <= file_bytes - end, "a tensor ends in the file");
    require_size(tensor);
    require(checkpoint.find(tensor.name) == i, "a name leads to its tensor");
    end += tensor.size_bytes;
    total_bytes += tensor.size_bytes;
  }
  require(end == file_bytes, "the last tensor ends where the file ends");
  require(checkpoint.size_bytes() == total_bytes, "sizes add up");
}

void require_caps(const Checkpoint& checkpoint, const DiscoverOptions& options) {
  std::uint64_t dimension_count = 0;
  require(checkpoint.tensor_count() <= options.tensor_count_max, "tensor_count_max");
  require(checkpoint.files()[0].metadata.size() <= options.metadata_count_max, "metadata_count_max");
  for (std::size_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const TensorInfo tensor = checkpoint.tensor(i);
    require(tensor.name.size() <= options.name_bytes_max, "name_bytes_max");
    require(tensor.shape.size() <= options.rank_max, "rank_max");
    dimension_count += tensor.shape.size();
  }
  require(dimension_count <= options.dimension_count_max, "dimension_count_max");
}

// What was taken can be planned, and each piece lies in the file.
void require_plan(const Checkpoint& checkpoint, std::uint64_t file_bytes) {
  const Machine machine = {.devices = {Device{}},
                           .paths = {{.name = "staged", .usable = true, .reason = ""}}};
  const Plan plan = make_plan(checkpoint, {}, machine);
  require(plan.loaded_bytes == checkpoint.size_bytes(), "a plan loads all bytes");
  for (const Piece& piece : plan.pieces) {
    require(piece.offset <= file_bytes && piece.size_bytes <= file_bytes - piece.offset,
            "a piece lies in the file");
  }
}

}  // namespace

}  // namespace inrush::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace inrush;
  if (size < fuzz::control_bytes) return -1;
  const unsigned flags = data[0];
  const std::size_t data_bytes = data[1] | static_cast<std::size_t>(data[2]) << 8;
  const std::string file =
      fuzz::file_of(flags, data_bytes, fuzz::text_of(data + fuzz::control_bytes, size - fuzz::control_bytes));
  const DiscoverOptions options = fuzz::options_of(flags);
  fakes::MemoryStore store;
  store.set("f.safetensors", file);
  std::optional<Checkpoint> checkpoint;
  try {
    checkpoint = engine::discover_in(store, "f.safetensors", options);
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::corrupt_checkpoint, "what is refused is corrupt");
    return 0;
  }
  fuzz::require_layout(*checkpoint, file.size());
  fuzz::require_caps(*checkpoint, options);
  fuzz::require_plan(*checkpoint, file.size());
  return 0;
}
