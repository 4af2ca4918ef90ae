// The products of a tile of 8-bit keys and values, 32 of them: by a warp, with rows of 128 bytes as the copy engine
// lays them down. Dims (of keys) and rows (of values) are taken in the order that widening gives them.
#pragma once

#include "cuda/narrow_numbers.cuh"

namespace attend::cuda {

// S^T = K Q^T. s[e]: keys lane / 4 + e / 2 * 8, rows lane % 4 * 2 + e % 2. Four sums: two of the dims for each half of
// the keys, a quarter of the time from one product to the next.
template <class Stored, int D, int kChunkBytes>
__device__ __forceinline__ void narrow_scores(float (&s)[8], std::uint32_t keys, const std::uint32_t (&q)[D / 8],
                                              int lane) {
  const int row = lane % 16;
  float sums[2][2][4] = {};
#pragma unroll
  for (int n = 0; n < D / 32; ++n) {
    std::uint32_t k[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      load_matrices(k[half],
                    keys + n / 4 * kChunkBytes + (half * 16 + row) * 128 + ((n % 4 * 2 + lane / 16) ^ (row & 7)) * 16);
#pragma unroll
    for (int dims = 0; dims < 2; ++dims)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t low = k[half][2 * dims], high = k[half][2 * dims + 1];
        const std::uint32_t wide[4] = {narrow_keys<Stored, 0>(low), narrow_keys<Stored, 0>(high),
                                       narrow_keys<Stored, 1>(low), narrow_keys<Stored, 1>(high)};
        multiply<Half>(sums[half][dims], wide, q[4 * n + 2 * dims], q[4 * n + 2 * dims + 1]);
      }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) s[e] = sums[e / 4][0][e % 4] + sums[e / 4][1][e % 4];
}

// O^T += V^T P^T, weights as scores above: of every 16 dims the even ones become rows 0 to 7.
template <class Stored, int D, int kChunkBytes>
__device__ __forceinline__ void add_narrow_values(float (&o)[D / 4], std::uint32_t values, const float (&p)[8],
                                                  int lane) {
  const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t low = transposed(pack<Half>(p[4 * half], p[4 * half + 1]));
    const std::uint32_t high = transposed(pack<Half>(p[4 * half + 2], p[4 * half + 3]));
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      std::uint32_t v[4];
      load_transposed(
          v, values + n / 4 * kChunkBytes + (half * 16 + row) * 128 + ((n % 4 * 2 + lane / 8 % 2) ^ (row & 7)) * 16);
#pragma unroll
      for (int dims = 0; dims < 2; ++dims) {
        const std::uint32_t wide[4] = {narrow_values<Stored, 0>(v[dims]), narrow_values<Stored, 1>(v[dims]),
                                       narrow_values<Stored, 0>(v[dims + 2]), narrow_values<Stored, 1>(v[dims + 2])};
        multiply<Half>(*reinterpret_cast<float(*)[4]>(o + 8 * n + 4 * dims), wide, low, high);
      }
    }
  }
}

}  // namespace attend::cuda
