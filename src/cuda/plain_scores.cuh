// What the plain kernels do to a tile of scores, element by element, whichever of queries and keys its rows are: a
// thread has rows `lane / 4` and that plus 8 of each tile of 16, and of every eight columns two neighbours.
#pragma once

#include "cuda/score_terms.cuh"

namespace attend::cuda {

// f(score, n, c): of the thread's n-th row, `c` columns from its first.
template <int kRowTiles, int kScores>
__device__ __forceinline__ void each_score(float (&s)[kRowTiles][kScores], auto&& f) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int e = 0; e < kScores; ++e) f(s[m][e], 2 * m + (e >> 1 & 1), e / 4 * 8 + (e & 1));
}

// Products to logits. place(n, c): the query; key(n, c); slope(n, c): what ALiBi takes.
template <int kRowTiles, int kScores>
__device__ __forceinline__ void add_terms(float (&s)[kRowTiles][kScores], const ScoreTerms& terms,
                                          const DeviceMask& mask, float scale, auto&& place, auto&& key, auto&& slope) {
  each_score(s, [&](float& x, int, int) { x *= scale; });
  if (terms.softcap > 0) each_score(s, [&](float& x, int, int) { x = capped(x, terms.softcap); });
  if (terms.bias.data)
    each_score(s, [&](float& x, int n, int c) { x += bias_of(terms, mask, place(n, c), key(n, c)); });
  if (terms.alibi.data)
    each_score(s, [&](float& x, int n, int c) {
      const RowSlope of = slope(n, c);
      x = fmaf(-of.slope, fabsf(of.position - static_cast<float>(key(n, c))), x);
    });
}
// A bit for each of a row's scores, in the order of its columns: f(c), by a loop, since what it asks is long.
template <int kScores>
__device__ __forceinline__ std::uint32_t row_bits(auto&& f) {
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < kScores / 4; ++i) bits |= (f(8 * i) ? 1U : 0U) << 2 * i | (f(8 * i + 1) ? 2U : 0U) << 2 * i;
  return bits;
}
// f(score, whether has(n, c)).
template <int kRowTiles, int kScores>
__device__ __forceinline__ void each_asked(float (&s)[kRowTiles][kScores], auto&& has, auto&& f) {
#pragma unroll
  for (int n = 0; n < 2 * kRowTiles; ++n) {
    const std::uint32_t bits = row_bits<kScores>([&](int c) { return has(n, c); });
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) f(s[n / 2][i / 2 * 4 + n % 2 * 2 + i % 2], (bits >> i & 1) != 0);
  }
}
// Whether bits show a key.
__device__ __forceinline__ bool is_shown(const DeviceMask& mask, const RowPlace& row, int key) {
  if (row.i >= mask.M || key >= mask.N) return true;
  const MaskBits& bits = mask.bits;
  const std::uint32_t word = bits.words[row.b * bits.batch_stride + row.h * bits.head_stride +
                                        static_cast<std::int64_t>(row.i) * bits.row_words + key / 32];
  return (word >> key % 32 & 1) != 0;
}
__device__ __forceinline__ bool is_kept(const ScoreTerms& terms, const RowPlace& row, int key) {
  return (kept_pair(terms, row, key & ~1) >> (key & 1) & 1) != 0;
}

}  // namespace attend::cuda
