// The softmax of rows whose LSE says too little of it (lse_suffices): the largest logit and the sum are made again from
// the scores, as the CPU makes them (ops/softmax_rows.hpp). By a warp for each such row, and there are few; where there
// is none, one LSE is read for each row.
#pragma once

#include "cuda/plain_scores.cuh"

namespace attend::cuda {

// Two neighbours of a row of half numbers, zeros past its end.
__device__ __forceinline__ std::uint32_t load_pair(const DeviceOperand& x, std::int64_t row, int d, int dims) {
  const auto* const from = static_cast<const std::uint16_t*>(x.data) + row + d;
  if (d + 1 < dims) return *reinterpret_cast<const std::uint32_t*>(from);
  return d < dims ? *from : 0;
}

// Sixteen keys from `j` on against one query: a lane gets those of key lane / 4 and of that plus 8. The same products
// in the same order as in kernels of whole tiles.
template <class T, class Args>
__device__ __forceinline__ float2 score_sixteen(const Args& a, const RowPlace& row, int hk, int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t q = row.b * a.q_rows.batch_stride + row.h * a.q_rows.head_stride + row.i * a.q_rows.row_stride;
  const auto key = [&](int n) {  // past the last one, that
    return row.b * a.k_rows.batch_stride + hk * a.k_rows.head_stride + smaller(n, a.N - 1) * a.k_rows.row_stride;
  };
  const std::int64_t first = key(j + lane / 4), second = key(j + lane / 4 + 8);
  float sums[4] = {};
  for (int c = lane % 4 * 2; c - lane % 4 * 2 < a.D; c += 16) {
    const std::uint32_t keys[4] = {load_pair(a.k_rows, first, c, a.D), load_pair(a.k_rows, second, c, a.D),
                                   load_pair(a.k_rows, first, c + 8, a.D), load_pair(a.k_rows, second, c + 8, a.D)};
    multiply<T>(sums, keys, load_pair(a.q_rows, q, c, a.D), load_pair(a.q_rows, q, c + 8, a.D));
  }
  return make_float2(sums[0], sums[2]);
}

// The largest logit of a query, its sink's among them, and log2 of the sum of exp(logit - largest). An infinite sum
// where it sees nothing: all weights are 0.
template <class T, class Args>
__device__ float2 row_softmax(const Args& a, const RowPlace& row, int hk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Interval seen = seen_in(a.mask, row.b, row.i);
  const RowSlope slope = row_slope(a.mask, a.terms, row);
  const int lo = larger(seen.lo, 0), hi = smaller(seen.hi, a.N);
  float top = -INFINITY, sum = 0;  // of the lane's keys: two lanes of four have one of every sixteen
  for (int j = lo / 16 * 16; j < hi; j += 16) {
    const float2 two = score_sixteen<T>(a, row, hk, j);
    const int key = j + lane / 4 + lane % 4 * 8;
    if (lane % 4 > 1 || key < lo || key >= hi) continue;
    if (a.mask.bits.words && !is_shown(a.mask, row, key)) continue;
    float x = (lane % 4 == 0 ? two.x : two.y) * a.scale;
    if (a.terms.softcap > 0) x = capped(x, a.terms.softcap);
    if (a.terms.bias.data) x += bias_of(a.terms, a.mask, row, key);
    if (a.terms.alibi.data) x = fmaf(-slope.slope, fabsf(slope.position - static_cast<float>(key)), x);
    if (x == -INFINITY) continue;
    sum = x > top ? fmaf(sum, exp2_fast((top - x) * kLog2E), 1.0F) : sum + exp2_fast((x - top) * kLog2E);
    top = fmaxf(top, x);
  }
  float most = top;
  for (int n = 16; n > 0; n /= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, n));
  const float sink = a.sinks.data ? load_float(a.sinks, row.h * a.sinks.head_stride) : -INFINITY;
  most = fmaxf(most, sink);
  if (most == -INFINITY) return make_float2(0.0F, INFINITY);
  sum = sum == 0 ? 0.0F : sum * exp2_fast((top - most) * kLog2E);
  for (int n = 16; n > 0; n /= 2) sum += __shfl_xor_sync(~0U, sum, n);
  return make_float2(most, __log2f(sum + exp2_fast((sink - most) * kLog2E)));
}

// The same, of an LSE that may be of more keys than these: where it stands above what they come to by more than f32
// and scores made twice differ, other keys have that share.
template <class T, class Args>
__device__ __forceinline__ float2 row_softmax(const Args& a, const RowPlace& row, int hk, float lse) {
  float2 made = row_softmax<T>(a, row, hk);
  const float own = fmaf(made.y, kLn2, made.x), above = lse - own;
  if (above > 0x1p-13F * fabsf(own) && above < INFINITY) made.y = fmaf(above, kLog2E, made.y);
  return made;
}

// A warp for every 32 of `count` rows: store(row, softmax) for those of them whose LSE does not suffice.
template <class T, class Args>
__device__ __forceinline__ void each_large_row(const Args& a, std::int64_t count, auto&& place, auto&& kv_head,
                                               auto&& store) {
  const std::int64_t first = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32 * 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float lse = 0;
  if (first + lane < count) {
    const RowPlace row = place(first + lane);
    lse = load_float(a.lse, row.b * a.lse.batch_stride + row.h * a.lse.head_stride + row.i * a.lse.row_stride);
  }
  for (unsigned large = __ballot_sync(~0U, !lse_suffices(lse)); large != 0; large &= large - 1) {
    const int n = __ffs(static_cast<int>(large)) - 1;
    const RowPlace row = place(first + n);
    const float2 made = row_softmax<T>(a, row, kv_head(row.h), __shfl_sync(~0U, lse, n));
    if (lane == 0) store(row, made);
  }
}

}  // namespace attend::cuda
