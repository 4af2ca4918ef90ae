// What backward does before and after its main kernel: a row's numbers, sums of dq to dq, the sinks' gradient.
#include "cuda/backward_args.hpp"
#include "cuda/row_softmax.cuh"

using namespace attend::cuda;

namespace {

// The sum of products of eight elements of either half type.
template <class T>
__device__ __forceinline__ float multiply_eight(const uint4& x, const uint4& y, float sum) {
  const T *const first = reinterpret_cast<const T*>(&x), *const second = reinterpret_cast<const T*>(&y);
#pragma unroll
  for (int n = 0; n < 8; ++n) sum = fmaf(widen(first[n]), widen(second[n]), sum);
  return sum;
}

// A query of one head for every kLanes lanes.
template <int kLanes>
__device__ __forceinline__ void backward_begin(const BackwardArgs& a) {
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / kLanes} + threadIdx.x / kLanes;
  if (row >= static_cast<std::int64_t>(a.B) * a.H * a.padded) return;  // whole warps: rows are padded
  const int lane = static_cast<int>(threadIdx.x) % kLanes, i = static_cast<int>(row % a.padded);
  const int h = static_cast<int>(row / a.padded % a.H), b = static_cast<int>(row / a.padded / a.H);
  float delta = 0, lse2 = INFINITY;
  if (i < a.M) {
    const std::int64_t out = b * a.out.batch_stride + h * a.out.head_stride + i * a.out.row_stride;
    const std::int64_t dout = b * a.dout_rows.batch_stride + h * a.dout_rows.head_stride + i * a.dout_rows.row_stride;
    if (a.by_eight) {
      uint4 x[2]{}, y[2]{};  // all loads before the first product
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int e = 8 * (lane + n * kLanes);
        if (e >= a.E) continue;
        x[n] = *reinterpret_cast<const uint4*>(static_cast<const Half*>(a.out.data) + out + e);
        y[n] = *reinterpret_cast<const uint4*>(static_cast<const Half*>(a.dout_rows.data) + dout + e);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
        delta = a.out.dtype == 1 ? multiply_eight<Half>(x[n], y[n], delta) : multiply_eight<Bf16>(x[n], y[n], delta);
    } else {
      for (int e = lane; e < a.E; e += kLanes)
        delta = fmaf(load_float(a.out, out + e * a.out.dim_stride),
                     load_float(a.dout_rows, dout + e * a.dout_rows.dim_stride), delta);
    }
    lse2 = load_float(a.lse, b * a.lse.batch_stride + h * a.lse.head_stride + i * a.lse.row_stride) * kLog2E;
    if (lse2 == -INFINITY) lse2 = INFINITY;  // nothing is seen: all weights are 0
  }
  for (int n = kLanes / 2; n; n /= 2) delta += __shfl_xor_sync(~0U, delta, n);
  if (lane != 0) return;
  a.rows.lse2[row] = lse2;
  if (a.tops) a.tops[row] = 0;
  a.rows.delta[row] = delta;
  if (a.turns && i % a.step_queries == 0) a.turns[row / a.step_queries] = 0;
  if (h != 0) return;
  const std::int64_t at = static_cast<std::int64_t>(b) * a.padded + i;
  const Interval seen = i < a.M ? seen_by(a.mask, b, i) : Interval{0, 0};
  a.rows.seen[at] = make_int2(seen.lo, smaller(seen.hi, a.N));
  if (a.rows.position) {
    const int offset =
        i < a.M ? position_offset(a.mask, a.terms.alibi_offsets, a.terms.alibi_last_key, b, run_of(a.mask, i)) : 0;
    a.rows.position[at] = static_cast<float>(i + offset);
  }
  if (i % a.step_queries == 0) {
    const int lo = larger(seen.lo, 0), hi = smaller(seen_by(a.mask, b, smaller(i + a.step_queries, a.M) - 1).hi, a.N);
    const int first = smaller(lo / a.block_keys, a.key_blocks - 1);
    a.rows.blocks[b * a.steps + i / a.step_queries] =
        make_int2(first, larger(first, (hi + a.block_keys - 1) / a.block_keys - 1));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) backward_begin_4(const __grid_constant__ BackwardArgs a) {
  backward_begin<4>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_begin_8(const __grid_constant__ BackwardArgs a) {
  backward_begin<8>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_begin_16(const __grid_constant__ BackwardArgs a) {
  backward_begin<16>(a);
}

namespace {

template <class T>
__device__ __forceinline__ void backward_tops(const BackwardArgs& a) {
  const auto place = [&](std::int64_t row) {
    return RowPlace{static_cast<int>(row / a.M / a.H), static_cast<int>(row / a.M % a.H), static_cast<int>(row % a.M)};
  };
  each_large_row<T>(
      a, static_cast<std::int64_t>(a.B) * a.H * a.M, place, [&](int h) { return h / a.G; },
      [&](const RowPlace& row, const float2& softmax) {
        const std::int64_t at = (static_cast<std::int64_t>(row.b) * a.H + row.h) * a.padded + row.i;
        a.tops[at] = softmax.x, a.rows.lse2[at] = softmax.y;
      });
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) backward_tops_bf16(const __grid_constant__ BackwardArgs a) {
  backward_tops<Bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_tops_f16(const __grid_constant__ BackwardArgs a) {
  backward_tops<Half>(a);
}

namespace {

// Two registers of neighbouring lanes change places: one's `y` and the other's `x`.
__device__ __forceinline__ void exchange(std::uint32_t& x, std::uint32_t& y, int distance) {
  const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
  const std::uint32_t other = __shfl_xor_sync(~0U, upper ? x : y, distance);
  (upper ? x : y) = other;
}

// Of four pairs of columns in each of four lanes, eight neighbouring columns to each lane.
template <class T>
__device__ __forceinline__ uint4 gather_eight(const float4 (&x)[4], int r, float scale) {
  std::uint32_t pairs[4];
#pragma unroll
  for (int n = 0; n < 4; ++n)
    pairs[n] = r == 0 ? pack<T>(x[n].x * scale, x[n].y * scale) : pack<T>(x[n].z * scale, x[n].w * scale);
  exchange(pairs[0], pairs[1], 1), exchange(pairs[2], pairs[3], 1);
  exchange(pairs[0], pairs[2], 2), exchange(pairs[1], pairs[3], 2);
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// A tile of 64 rows of sums for each block of threads, in the order of the accumulators: parts of 64 x kColumns, each a
// warpgroup's. Where a step has 128 queries its second part is of the second 64, else of the next columns.
template <int kD, int kColumns>
__device__ __forceinline__ void backward_end(const BackwardArgs& a) {
  wait_for_kernel();
  const int tiles = a.padded / 64, tile = static_cast<int>(blockIdx.x) % tiles,
            head = static_cast<int>(blockIdx.x) / tiles;
  const int h = head % a.H, b = head / a.H, thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  constexpr int kPart = 64 * kColumns / 4;  // float4s of a warpgroup
  constexpr int kFours = kColumns / 32;     // of a part: four times eight columns
  const auto* from = reinterpret_cast<const float4*>(a.dq_sums) + static_cast<std::int64_t>(blockIdx.x) * 64 * kD / 4;
  for (int n = static_cast<int>(threadIdx.x) / kWarpgroup; n < kD / 32; n += 256 / kWarpgroup) {
    const int part = n / kFours, first = part * kColumns + n % kFours * 32;
    float4 x[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) x[v] = from[part * kPart + (n % kFours * 4 + v) * kWarpgroup + thread];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = tile * 64 + thread / 32 * 16 + lane / 4 + r * 8;
      const std::int64_t at = b * a.dq.batch_stride + h * a.dq.head_stride + i * a.dq.row_stride;
      if (a.dq_by_eight) {
        const uint4 eight = a.dq.dtype == 1 ? gather_eight<Half>(x, r, a.scale) : gather_eight<Bf16>(x, r, a.scale);
        const int column = first + lane % 4 * 8;
        if (i < a.M && column < a.D)
          *reinterpret_cast<uint4*>(static_cast<Half*>(const_cast<void*>(a.dq.data)) + at + column) = eight;
        continue;
      }
      if (i >= a.M) continue;
#pragma unroll
      for (int v = 0; v < 4; ++v)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = first + v * 8 + lane % 4 * 2 + e;
          const float value = r == 0 ? (e == 0 ? x[v].x : x[v].y) : (e == 0 ? x[v].z : x[v].w);
          if (column < a.D) store_float(a.dq, at + column * a.dq.dim_stride, value * a.scale);
        }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) backward_end_64(const __grid_constant__ BackwardArgs a) {
  backward_end<64, 64>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_end_64_halves(const __grid_constant__ BackwardArgs a) {
  backward_end<64, 32>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_end_128(const __grid_constant__ BackwardArgs a) {
  backward_end<128, 64>(a);
}
extern "C" __global__ void __launch_bounds__(256) backward_end_256(const __grid_constant__ BackwardArgs a) {
  backward_end<256, 128>(a);
}

// A head for each block of threads, always in the same order: -sum of the sink's weight * delta.
extern "C" __global__ void __launch_bounds__(256) backward_sinks(const __grid_constant__ BackwardArgs a) {
  __shared__ float sums[256];
  const int h = static_cast<int>(blockIdx.x);
  const float sink = load_float(a.sinks, h * a.sinks.head_stride);
  float sum = 0;
  for (int b = 0; b < a.B; ++b) {
    const std::int64_t rows = (static_cast<std::int64_t>(b) * a.H + h) * a.padded;
    for (int i = static_cast<int>(threadIdx.x); i < a.M; i += 256)
      sum = fmaf(exp2_fast(weight_exponent(sink, a.tops ? a.tops[rows + i] : 0.0F, a.rows.lse2[rows + i])),
                 a.rows.delta[rows + i], sum);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int n = 128; n; n /= 2) {
    if (static_cast<int>(threadIdx.x) < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    __syncthreads();
  }
  if (threadIdx.x == 0) store_float(a.dsinks, h * a.dsinks.head_stride, -sums[0]);
}

// Zero to a gradient of a bias, of whose elements only those that are seen are written.
extern "C" __global__ void __launch_bounds__(256) backward_clear(const __grid_constant__ BackwardArgs a) {
  const std::int64_t count = static_cast<std::int64_t>(a.B) * a.H * a.M * a.N;
  for (std::int64_t n = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t j = n % a.N, i = n / a.N % a.M, h = n / a.N / a.M % a.H, b = n / a.N / a.M / a.H;
    store_float(a.dbias,
                b * a.dbias.batch_stride + h * a.dbias.head_stride + i * a.dbias.row_stride + j * a.dbias.dim_stride,
                0.0F);
  }
}
