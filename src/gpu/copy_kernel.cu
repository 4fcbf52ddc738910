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
    for (unsigned long long first = 0; first < blocks; first += lanes) {
      const unsigned long long i = first + lane;
      const uint4 own = i <= blocks ? from[i] : uint4{};
      uint4 next;
      next.x = __shfl_down_sync(all_lanes, own.x, 1);
      next.y = __shfl_down_sync(all_lanes, own.y, 1);
      next.z = __shfl_down_sync(all_lanes, own.z, 1);
      next.w = __shfl_down_sync(all_lanes, own.w, 1);
      if (lane == lanes - 1 && i < blocks) next = from[i + 1];
      if (i < blocks) to[i] = joined(own, next, shift);
    }
  }
  copy_bytes(source + blocks * 16, target + blocks * 16, bytes % 16, lane);
}

}  // namespace

extern "C" __global__ void inrush_copy_runs(const Run* runs, unsigned count) {
  const unsigned lane = threadIdx.x % lanes;
  const unsigned warps = gridDim.x * blockDim.x / lanes;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / lanes; i < count; i += warps)
    copy_run(runs[i], lane);
}
