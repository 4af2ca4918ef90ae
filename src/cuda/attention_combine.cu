// Joins the results of several parts of the keys, in rising order, and the sink.
#include "cuda/combine_args.hpp"
#include "cuda/score_terms.cuh"

using namespace attend::cuda;

// A row for each warp.
extern "C" __global__ void __launch_bounds__(128) attention_combine(const __grid_constant__ CombineArgs a) {
  const std::int64_t rows = static_cast<std::int64_t>(a.B) * a.H * a.M;
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / 32} + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= rows) return;
  const int i = static_cast<int>(row % a.M), h = static_cast<int>(row / a.M % a.H), b = static_cast<int>(row / a.M / a.H);
  const float sink = a.sinks.data ? load_float(a.sinks, h * a.sinks.head_stride) : -INFINITY;
  float top = sink;
  for (int s = lane; s < a.splits; s += 32) top = fmaxf(top, a.partial_lse[s * rows + row]);
  for (int n = 16; n; n /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, n));
  const float base = top == -INFINITY ? 0.0F : top;
  float sum = exp2_fast((sink - base) * kLog2E);
  constexpr int kMost = 8;  // 256 / 32
  float x[kMost] = {};
  for (int s = 0; s < a.splits; ++s) {
    const float weight = exp2_fast((a.partial_lse[s * rows + row] - base) * kLog2E);
    sum += weight;
    const float* from = a.partial_out + (s * rows + row) * a.row_floats;
#pragma unroll
    for (int n = 0; n < kMost; ++n)
      if (lane + 32 * n < a.E) x[n] = fmaf(weight, from[lane + 32 * n], x[n]);
  }
  const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
  const std::int64_t to = b * a.out.batch_stride + h * a.out.head_stride + i * a.out.row_stride;
#pragma unroll
  for (int n = 0; n < kMost; ++n) {
    if (lane + 32 * n >= a.E) continue;
    const std::int64_t at = to + (lane + 32 * n) * a.out.dim_stride;
    if (a.out.dtype == 1)
      static_cast<Half*>(const_cast<void*>(a.out.data))[at] = __float2half_rn(x[n] * inverse);
    else
      static_cast<Bf16*>(const_cast<void*>(a.out.data))[at] = __float2bfloat16_rn(x[n] * inverse);
  }
  if (lane == 0 && a.lse)
    a.lse[b * a.lse_batch_stride + h * a.lse_head_stride + i * a.lse_row_stride] =
        sum > 0 ? base + __logf(sum) : -INFINITY;
}
