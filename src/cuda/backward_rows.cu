// What backward does before and after its main kernel: a row's numbers, sums of dq to dq, the sinks' gradient.
#include "cuda/backward_args.hpp"
#include "cuda/score_terms.cuh"

using namespace attend::cuda;

namespace {

__device__ __forceinline__ void store_float(const DeviceOperand& to, std::int64_t at, float x) {
  void* const data = const_cast<void*>(to.data);
  if (to.dtype == 0)
    static_cast<float*>(data)[at] = x;
  else if (to.dtype == 1)
    static_cast<Half*>(data)[at] = __float2half_rn(x);
  else
    static_cast<Bf16*>(data)[at] = __float2bfloat16_rn(x);
}

}  // namespace

// A query of one head for each warp.
extern "C" __global__ void __launch_bounds__(256) backward_begin(const __grid_constant__ BackwardArgs a) {
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (row >= static_cast<std::int64_t>(a.B) * a.H * a.padded) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, i = static_cast<int>(row % a.padded);
  const int h = static_cast<int>(row / a.padded % a.H), b = static_cast<int>(row / a.padded / a.H);
  float delta = 0, lse2 = INFINITY;
  if (i < a.M) {
    const std::int64_t out = b * a.out.batch_stride + h * a.out.head_stride + i * a.out.row_stride;
    const std::int64_t dout = b * a.dout_rows.batch_stride + h * a.dout_rows.head_stride + i * a.dout_rows.row_stride;
    for (int e = lane; e < a.E; e += 32)
      delta = fmaf(load_float(a.out, out + e * a.out.dim_stride),
                   load_float(a.dout_rows, dout + e * a.dout_rows.dim_stride), delta);
    for (int n = 16; n; n /= 2) delta += __shfl_xor_sync(~0U, delta, n);
    lse2 = load_float(a.lse, b * a.lse.batch_stride + h * a.lse.head_stride + i * a.lse.row_stride) * kLog2E;
    if (lse2 == -INFINITY) lse2 = INFINITY;  // nothing is seen: all weights are 0
  }
  if (lane != 0) return;
  a.rows.lse2[row] = lse2;
  a.rows.delta[row] = delta;
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

// A tile of 64 rows of sums for each block of threads, in the order of the accumulators: parts of 64 x kColumns, each a
// warpgroup's. Where a step has 128 queries its second part is of the second 64, else of the next columns.
template <int kD, int kColumns>
__device__ __forceinline__ void backward_end(const BackwardArgs& a) {
  const int tiles = a.padded / 64, tile = static_cast<int>(blockIdx.x) % tiles,
            head = static_cast<int>(blockIdx.x) / tiles;
  const int h = head % a.H, b = head / a.H;
  constexpr int kPart = 64 * kColumns / 4;  // float4s of a warpgroup
  const auto* from = reinterpret_cast<const float4*>(a.dq_sums) + static_cast<std::int64_t>(blockIdx.x) * 64 * kD / 4;
  for (int n = static_cast<int>(threadIdx.x); n < 64 * kD / 4; n += static_cast<int>(blockDim.x)) {
    const float4 x = from[n];
    const int v = n % kPart / kWarpgroup, thread = n % kWarpgroup, lane = thread % 32;
    const int row = tile * 64 + thread / 32 * 16 + lane / 4, column = n / kPart * kColumns + 8 * v + lane % 4 * 2;
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = row + r * 8;
      if (i >= a.M || column >= a.D) continue;
      const std::int64_t at =
          b * a.dq.batch_stride + h * a.dq.head_stride + i * a.dq.row_stride + column * a.dq.dim_stride;
      store_float(a.dq, at, values[2 * r] * a.scale);
      if (column + 1 < a.D) store_float(a.dq, at + a.dq.dim_stride, values[2 * r + 1] * a.scale);
    }
  }
}

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
  const float sink = load_float(a.sinks, h * a.sinks.head_stride) * kLog2E;
  float sum = 0;
  for (int b = 0; b < a.B; ++b) {
    const std::int64_t rows = (static_cast<std::int64_t>(b) * a.H + h) * a.padded;
    for (int i = static_cast<int>(threadIdx.x); i < a.M; i += 256)
      sum = fmaf(exp2_fast(sink - a.rows.lse2[rows + i]), a.rows.delta[rows + i], sum);
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
