// What a kernel does to a tile of scores between the products: terms, masks, dropout. A thread holds, of a tile of 64
// rows, rows `lane / 4` and that plus 8 of its warp's sixteen, and of every eight columns two neighbours.
#pragma once

#include "cuda/forward_args.hpp"
#include "cuda/ptx.cuh"

namespace attend::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
constexpr float kLargestFloat = 3.402823466e38F;

// An LSE in f32 moves the weights of its row by up to |LSE| * 2^-24 of themselves: up to here by 2^-14. As on the CPU
// (core/softmax_state.hpp), beyond it the row's largest logit and the sum are kept apart, or made again. A NaN
// suffices, it stays one, and so does -inf: such a row saw nothing.
constexpr float kLargestLse = 1024.0F;
__device__ __forceinline__ bool lse_suffices(float lse) {
  return !(fabsf(lse) > kLargestLse) || lse == -INFINITY;
}
// What an LSE of max + log(sum) does not hold of it, where it does not suffice.
__device__ __forceinline__ float lse_rest(float max, float sum, float lse) {
  return lse_suffices(lse) ? 0.0F : fmaf(__log2f(sum), kLn2, max - lse);
}
// The exponent of 2 of a weight, from its logit, the row's `top` and what log2(sum) is beside it: 0 and the LSE of base
// 2 where that suffices. No weight is above 1, though a large score may be, if it was made another way than the top.
__device__ __forceinline__ float weight_exponent(float logit, float top, float rest2) {
  return smaller_or_nan(fmaf(logit - top, kLog2E, -rest2), 0.0F);
}

__device__ __forceinline__ float load_float(const DeviceOperand& x, std::int64_t at) {
  if (x.dtype == 0) return static_cast<const float*>(x.data)[at];
  if (x.dtype == 1) return widen(static_cast<const Half*>(x.data)[at]);
  return widen(static_cast<const Bf16*>(x.data)[at]);
}
__device__ __forceinline__ void store_float(const DeviceOperand& to, std::int64_t at, float x) {
  void* const data = const_cast<void*>(to.data);
  if (to.dtype == 0)
    static_cast<float*>(data)[at] = x;
  else if (to.dtype == 1)
    static_cast<Half*>(data)[at] = __float2half_rn(x);
  else
    static_cast<Bf16*>(data)[at] = __float2bfloat16_rn(x);
}

// seen_by, whose general form is long and seldom needed: nobody waits for its instructions.
__device__ __noinline__ Interval seen_by_rules(const DeviceMask& mask, int b, int i) {
  return seen_by(mask, b, i);
}
__device__ __forceinline__ Interval seen_in(const DeviceMask& mask, int b, int i) {
  return mask.simple.is ? seen_simply(mask.simple, i) : seen_by_rules(mask, b, i);
}

// tanh to about 1e-7, absolute.
__device__ __forceinline__ float tanh_exact(float x) {
  return fmaf(-2.0F, inverse_fast(1.0F + exp2_fast(2.0F * kLog2E * x)), 1.0F);
}

// Philox4x32-10, as base/random.hpp has it: words of {j / 4, i, h, b} under the seed.
__device__ __forceinline__ uint4 philox(uint4 c, std::uint64_t seed) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll 2  // ten rounds at each of a hundred places take long to compile
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53U, c.x), low0 = 0xD2511F53U * c.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57U, c.z), low1 = 0xCD9E8D57U * c.z;
    c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

// A query: h counts all query heads; i = M where there is none.
struct RowPlace {
  int b, h, i;
};
// What ALiBi takes from a row's scores: slope * |position - j|.
struct RowSlope {
  float slope = 0, position = 0;
};

__device__ __forceinline__ RowSlope row_slope(const DeviceMask& mask, const ScoreTerms& terms, const RowPlace& row) {
  if (terms.alibi.data == nullptr) return {};
  const int offset = position_offset(mask, terms.alibi_offsets, terms.alibi_last_key, row.b, run_of(mask, row.i));
  return {load_float(terms.alibi, row.b * terms.alibi.batch_stride + row.h * terms.alibi.head_stride),
          static_cast<float>(row.i + offset)};
}

// cap * tanh(x / cap); small beside the cap by the series, right to a part of x however large the cap is.
__device__ __forceinline__ float capped(float x, float cap) {
  const float y = __fdividef(x, cap), square = y * y;
  const float small = x * fmaf(square, fmaf(square, 0.13333333F, -0.33333333F), 1.0F);
  return fabsf(y) <= 0x1p-5F ? small : cap * tanh_exact(y);
}
// The slope of capped. It is 1 - tanh^2, of which no digits are left near the cap; with z = exp(-2 |x / cap|) it is
// 4 z / (1 + z)^2.
__device__ __forceinline__ float cap_slope(float x, float cap) {
  const float z = exp2_fast(-2.0F * kLog2E * fabsf(__fdividef(x, cap))), inverse = inverse_fast(1.0F + z);
  return 4.0F * z * inverse * inverse;
}
__device__ __forceinline__ float bias_of(const ScoreTerms& terms, const DeviceMask& mask, const RowPlace& row,
                                         int col) {
  if (row.i >= mask.M || col >= mask.N) return 0.0F;
  const std::int64_t at = row.b * terms.bias.batch_stride + row.h * terms.bias.head_stride +
                          row.i * terms.bias.row_stride + col * terms.bias.dim_stride;
  const bool wide = terms.bias.dtype == 0;
  const std::uint32_t word = wide ? static_cast<const std::uint32_t*>(terms.bias.data)[at]
                                  : static_cast<const std::uint16_t*>(terms.bias.data)[at];
  const float half = __half2float(__ushort_as_half(static_cast<std::uint16_t>(word)));
  return terms.bias.dtype == 1 ? half : __uint_as_float(wide ? word : word << 16);
}

// Whether dropout keeps (row, col); col even: two neighbours at once, as bits 0 and 1.
__device__ __forceinline__ int kept_pair(const ScoreTerms& terms, const RowPlace& row, int col) {
  const uint4 words = philox(make_uint4(static_cast<std::uint32_t>(col >> 2), static_cast<std::uint32_t>(row.i),
                                        static_cast<std::uint32_t>(row.h), static_cast<std::uint32_t>(row.b)),
                             terms.dropout_seed);
  const std::uint32_t first = (col & 2) ? words.z : words.x, second = (col & 2) ? words.w : words.y;
  return (first >= terms.dropout_threshold ? 1 : 0) | (second >= terms.dropout_threshold ? 2 : 0);
}

}  // namespace attend::cuda
