// Copies runs of bytes to places of their own: a warp takes one, then the one that is `warps` further. The
// source may be pinned host memory, of which each byte then crosses the bus once: words are loaded as they are
// aligned there and shifted to how they are aligned at the target.
// tools/make_ptx.sh makes segment_kernel_ptx.cpp of it.

struct Run {
  unsigned long long source;
  unsigned long long target;
  unsigned long long bytes;
};

namespace {

constexpr unsigned lanes = 32;
constexpr unsigned all_lanes = 0xffffffffU;

__device__ unsigned shifted(unsigned low, unsigned high, unsigned bits) {
  return __funnelshift_r(low, high, bits);
}

// 16 bytes of the 32 in `a` and `b`, from byte `shift` on.
__device__ uint4 joined(uint4 a, uint4 b, unsigned shift) {
  const unsigned bits = shift % 4 * 8;
  switch (shift / 4) {
    case 0:
      return make_uint4(shifted(a.x, a.y, bits), shifted(a.y, a.z, bits), shifted(a.z, a.w, bits),
                        shifted(a.w, b.x, bits));
    case 1:
      return make_uint4(shifted(a.y, a.z, bits), shifted(a.z, a.w, bits), shifted(a.w, b.x, bits),
                        shifted(b.x, b.y, bits));
    case 2:
      return make_uint4(shifted(a.z, a.w, bits), shifted(a.w, b.x, bits), shifted(b.x, b.y, bits),
                        shifted(b.y, b.z, bits));
    default:
      return make_uint4(shifted(a.w, b.x, bits), shifted(b.x, b.y, bits), shifted(b.y, b.z, bits),
                        shifted(b.z, b.w, bits));
  }
}

// The block behind `own`: the next lane's, for the last lane the first lane's of `after`.
__device__ uint4 next_block(uint4 own, uint4 after, unsigned lane) {
  const unsigned from = (lane + 1) % lanes;
  const uint4 given = lane == 0 ? after : own;
  return make_uint4(__shfl_sync(all_lanes, given.x, from), __shfl_sync(all_lanes, given.y, from),
                    __shfl_sync(all_lanes, given.z, from), __shfl_sync(all_lanes, given.w, from));
}

__device__ void copy_bytes(const unsigned char* source, unsigned char* target, unsigned long long bytes,
                           unsigned lane) {
  for (unsigned long long i = lane; i < bytes; i += lanes) target[i] = source[i];
}

__device__ void copy_run(const Run& run, unsigned lane) {
  const auto* source = reinterpret_cast<const unsigned char*>(run.source);
  auto* target = reinterpret_cast<unsigned char*>(run.target);
  unsigned long long bytes = run.bytes;
  if (bytes < 64) return copy_bytes(source, target, bytes, lane);
  const unsigned head = (16 - run.target % 16) % 16;
  copy_bytes(source, target, head, lane);
  source += head;
  target += head;
  bytes -= head;
  const unsigned shift = reinterpret_cast<unsigned long long>(source) % 16;
  const auto* from = reinterpret_cast<const uint4*>(source - shift);
  auto* to = reinterpret_cast<uint4*>(target);
  const unsigned long long blocks = bytes / 16;
  if (shift == 0) {
    unsigned long long i = lane;
    for (; i + 3 * lanes < blocks; i += 4 * lanes) {
      const uint4 a = from[i], b = from[i + lanes], c = from[i + 2 * lanes], d = from[i + 3 * lanes];
      to[i] = a;
      to[i + lanes] = b;
      to[i + 2 * lanes] = c;
      to[i + 3 * lanes] = d;
    }
    for (; i < blocks; i += lanes) to[i] = from[i];
  } else {
    // Block i is made of the aligned blocks i and i + 1 of the source. The last of them begins before the
    // run's end, so no byte of another page is touched.
    unsigned long long first = 0;
    for (; first + 4 * lanes <= blocks; first += 4 * lanes) {
      const uint4* const rows = from + first + lane;
      const uint4 a = rows[0], b = rows[lanes], c = rows[2 * lanes], d = rows[3 * lanes];
      const uint4 end = from[first + 4 * lanes];
      to[first + lane] = joined(a, next_block(a, b, lane), shift);
      to[first + lanes + lane] = joined(b, next_block(b, c, lane), shift);
      to[first + 2 * lanes + lane] = joined(c, next_block(c, d, lane), shift);
      to[first + 3 * lanes + lane] = joined(d, next_block(d, end, lane), shift);
    }
    for (; first < blocks; first += lanes) {
      const unsigned long long i = first + lane;
      const uint4 own = i <= blocks ? from[i] : uint4{};
      const uint4 end = from[first + lanes < blocks ? first + lanes : blocks];
      const uint4 next = next_block(own, end, lane);
      if (i < blocks) to[i] = joined(own, next, shift);
    }
  }
  copy_bytes(source + blocks * 16, target + blocks * 16, bytes % 16, lane);
}

}  // namespace

extern "C" __global__ void inrush_copy_runs(const Run* runs, unsigned count) {
  const unsigned lane = threadIdx.x % lanes;
  const unsigned warps = gridDim.x * blockDim.x / lanes;
  unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / lanes;
  if (i >= count) return;
  Run run = runs[i];
  while (true) {
    i += warps;
    // The list lies in host memory too: the next entry comes while this run is copied.
    const Run next = i < count ? runs[i] : Run{};
    copy_run(run, lane);
    if (i >= count) return;
    run = next;
  }
}
