// Joins the results of several parts of the keys, always in the same order, and the sink.
#include "cuda/combine_args.hpp"
#include "cuda/score_terms.cuh"

using namespace attend::cuda;

namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ void store_half(const DeviceOperand& to, std::int64_t at, float x) {
  if (to.dtype == 1)
    static_cast<Half*>(const_cast<void*>(to.data))[at] = __float2half_rn(x);
  else
    static_cast<Bf16*>(const_cast<void*>(to.data))[at] = __float2bfloat16_rn(x);
}

// A row for each block of threads: a warp takes every eighth part, a lane kEach of every 32 * kEach columns.
template <int kEach>
__device__ __forceinline__ void combine(const CombineArgs& a) {
  __shared__ float sums[kWarps];
  __shared__ float columns[kWarps][32 * kEach];
  const std::int64_t rows = static_cast<std::int64_t>(a.B) * a.H * a.M, row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int i = static_cast<int>(row % a.M), h = static_cast<int>(row / a.M % a.H),
            b = static_cast<int>(row / a.M / a.H);
  wait_for_kernel();
  const float sink = a.sinks.data ? load_float(a.sinks, h * a.sinks.head_stride) : -INFINITY;
  float top = sink;
  for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, a.partial_lse[s * rows + row]);
  for (int n = 16; n; n /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, n));
  const float base = top == -INFINITY ? 0.0F : top;
  float sum = 0, x[kEach] = {};
#pragma unroll 4
  for (int s = warp; s < a.splits; s += kWarps) {
    const float weight = exp2_fast((a.partial_lse[s * rows + row] - base) * kLog2E);
    const float* from = a.partial_out + (s * rows + row) * a.row_floats;
    sum += weight;
#pragma unroll
    for (int n = 0; n < kEach; ++n) x[n] = fmaf(weight, from[lane + 32 * n], x[n]);
  }
  if (lane == 0) sums[warp] = sum;
#pragma unroll
  for (int n = 0; n < kEach; ++n) columns[warp][lane + 32 * n] = x[n];
  __syncthreads();
  float total = exp2_fast((sink - base) * kLog2E);
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  const float inverse = total > 0 ? 1.0F / total : 0.0F;
  const std::int64_t to = b * a.out.batch_stride + h * a.out.head_stride + i * a.out.row_stride;
  for (int e = static_cast<int>(threadIdx.x); e < a.E; e += 32 * kWarps) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += columns[w][e];
    store_half(a.out, to + e * a.out.dim_stride, value * inverse);
  }
  if (threadIdx.x == 0 && a.lse)
    a.lse[b * a.lse_batch_stride + h * a.lse_head_stride + i * a.lse_row_stride] =
        total > 0 ? base + __logf(total) : -INFINITY;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) attention_combine_64(const __grid_constant__ CombineArgs a) {
  combine<2>(a);
}
extern "C" __global__ void __launch_bounds__(256) attention_combine_128(const __grid_constant__ CombineArgs a) {
  combine<4>(a);
}
extern "C" __global__ void __launch_bounds__(256) attention_combine_256(const __grid_constant__ CombineArgs a) {
  combine<8>(a);
}
