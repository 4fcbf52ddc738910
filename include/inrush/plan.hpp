// How a request will be carried out, decided before a byte moves. Everything here is a value; make_plan() is
// a pure function.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/device.hpp>
#include <inrush/request.hpp>
#include <inrush/version.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace inrush::inline v0 {

// A way for bytes to travel, whether this machine offers it, and why or why not.
struct PathChoice {
  std::string name;  // "staged", "gds", "cufile-compat"
  bool usable = false;
  std::string reason;
  double measured_bytes_per_second = 0;  // 0: never measured here
  double measured_cpu_seconds_per_gb = 0;

  bool operator==(const PathChoice&) const = default;
};

// Facts that a plan depends on. Loader::machine() reads them off the machine; a test states any.
struct Machine {
  std::vector<Device> devices;
  std::uint32_t cpu_count = 1;              // CPUs that the process may run on
  std::uint32_t loading_process_count = 1;  // processes of this node that load at the same time
  std::uint64_t host_free_bytes = 0;        // least of what the host and the cgroups above us have available
  std::uint64_t staging_bytes_max = 512ULL << 20;  // budget for host memory of one load
  bool page_cache_windows = true;  // page cache may be registered with the device while a load runs
  std::uint32_t reader_count_max = 12;
  std::uint64_t piece_bytes_max = 4ULL << 20;
  std::uint64_t slab_bytes_max = 256ULL << 20;
  std::uint64_t own_slab_bytes_min = 64ULL << 20;  // a tensor of this size or more gets memory of its own
  std::vector<PathChoice> paths;

  bool operator==(const Machine&) const = default;
};

// One buffer: to allocate, or a group of targets, the caller's memory.
struct Slab {
  Device device;
  std::uint64_t size_bytes = 0;       // of a group of targets: the bytes of its tensors
  std::uint64_t alignment_bytes = 0;  // 1 where it is a group of targets
  std::uint32_t first_piece = 0;      // its pieces are [first_piece, first_piece + piece_count)
  std::uint32_t piece_count = 0;
  std::uint64_t target_address = 0;  // of the lowest target in it; 0: memory that is allocated

  bool operator==(const Slab&) const = default;
};

// Where one tensor ends up. An empty one has size_bytes 0, no memory and no piece; its slab and offset say 0
// and mean nothing.
struct Placement {
  std::uint64_t tensor = 0;  // index into the Checkpoint
  std::uint32_t slab = 0;
  std::uint64_t slab_offset = 0;  // a multiple of 256; of a target: its address - Slab::target_address
  std::uint64_t size_bytes = 0;   // of the slice, where there is one
  std::optional<Slice> slice = {};

  bool operator==(const Placement&) const = default;
};

// Rows of one piece and the place in the slab that they belong to. A plain run of bytes is one row.
struct Segment {
  std::uint64_t source_offset = 0;       // from the start of the piece
  std::uint64_t source_pitch_bytes = 0;  // from row to row; equal to row_bytes where rows are contiguous
  std::uint64_t slab_offset = 0;
  std::uint64_t slab_pitch_bytes = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t row_count = 1;

  bool operator==(const Segment&) const = default;
};

// One read of one file, at most piece_bytes_max long (by O_DIRECT twice that) unless it is a window, and what
// of it goes where. It fills part of one slab.
struct Piece {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t slab = 0;
  std::uint32_t first_segment = 0;
  std::uint32_t segment_count = 0;
  std::uint32_t first_placement = 0;  // the placements that this piece fills, in whole or in part
  std::uint32_t placement_count = 0;

  bool operator==(const Piece&) const = default;
};

struct Plan {
  std::vector<Slab> slabs;            // those that are allocated, then the groups of targets
  std::vector<Placement> placements;  // empty ones first, then by slab and place in the files
  std::vector<Piece> pieces;          // ordered by slab, then by file position: the order of reading
  std::vector<Segment> segments;
  std::string path;               // the chosen one
  std::string path_rule;          // which rule chose it, with the figures
  bool path_is_forced = false;    // then also ranges that are in the page cache go by it
  std::vector<PathChoice> paths;  // all, with the reasons
  PageCachePolicy page_cache = PageCachePolicy::bypass;  // of cold ranges: keep or bypass
  std::string page_cache_rule;                           // which rule chose it
  // With one or two CPUs: ranges in the page cache are registered and copied from where they lie, a piece a
  // window, so that no byte passes through a CPU.
  bool page_cache_windows = false;
  std::uint32_t reader_count = 1;
  // With few CPUs: the thread that runs the path is one of the readers.
  bool path_reads = false;
  std::uint32_t slot_count = 2;    // slots of the staging ring; 0 where there is no piece
  std::uint64_t slot_bytes = 0;    // a power of two up to 2 MiB, whole huge pages above
  std::uint64_t loaded_bytes = 0;  // bytes of the tensors
  std::uint64_t read_bytes = 0;    // bytes of the pieces: more where rows are skipped

  bool operator==(const Plan&) const = default;
};

// Pure: no I/O, no clock, no environment. Throws invalid_request (a pattern, a slice or a target that fits
// nothing; names the tensor), environment_unfit (a forced path or device that `machine` does not offer;
// gives the reason) and out_of_memory.
[[nodiscard]] INRUSH_API Plan make_plan(const Checkpoint& checkpoint, const LoadRequest& request,
                                        const Machine& machine);

// The plan for people. Tables are cut after `rows_max` rows each.
[[nodiscard]] INRUSH_API std::string describe_plan(const Checkpoint& checkpoint, const Plan& plan,
                                                   std::size_t rows_max = 20);

}  // namespace inrush::inline v0
