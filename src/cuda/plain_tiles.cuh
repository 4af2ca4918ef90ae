// Tiles in shared memory and products of a warp (mma.sync), from sm_80 on. A tile lies in chunks of 64 columns: rows of
// 128 bytes, whose sixteens of bytes change places by the row, so that eight rows of one column meet different banks.
#pragma once

#include "cuda/ptx.cuh"

namespace attend::cuda {

// Sixteen `c` of a row.
template <int kRows>
__device__ __forceinline__ int tile_place(int row, int c) {
  return c / 8 * kRows * 128 + row * 128 + (c % 8 ^ (row & 7)) * 16;
}

// A lane's row of four matrices: as the first operand (16 rows x 16 columns), or as the second, transposed.
__device__ __forceinline__ std::uint32_t lane_of_rows(std::uint32_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return tile + tile_place<0>(lane % 16, lane / 16);
}
// The same as the second operand: two times 8 rows.
__device__ __forceinline__ std::uint32_t lane_of_columns(std::uint32_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return tile + tile_place<0>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
// That lane's place `rows` further down and `step` times 16 columns to the right, in a tile of kRows rows.
template <int kRows>
__device__ __forceinline__ std::uint32_t moved(std::uint32_t lane, int rows, int step) {
  return (lane ^ (step % 4 * 32)) + (step / 4 * kRows + rows) * 128;
}

__device__ __forceinline__ float (&four(float* x))[4] {
  return *reinterpret_cast<float(*)[4]>(x);
}
__device__ __forceinline__ const std::uint32_t (&four(const std::uint32_t* x))[4] {
  return *reinterpret_cast<const std::uint32_t(*)[4]>(x);
}

// kRows rows of at most kD columns to a tile, by the whole block. `row_at(n)`: where row n lies, or null: zeros.
template <class T, int kRows, int kD, int kThreads>
__device__ __forceinline__ void copy_tile(std::uint32_t tile, int dims, const void* somewhere, auto&& row_at) {
  constexpr int kSixteens = kD / 8;
  static_assert(kThreads % kSixteens == 0 && kRows * kSixteens % kThreads == 0);
  const int c = static_cast<int>(threadIdx.x) % kSixteens, bytes = min(16, max(0, 2 * (dims - 8 * c)));
#pragma unroll
  for (int n = 0; n < kRows * kSixteens / kThreads; ++n) {
    const int row = static_cast<int>(threadIdx.x) / kSixteens + n * (kThreads / kSixteens);
    const T* const from = row_at(row);
    const bool there = from != nullptr && bytes > 0;
    copy_sixteen(tile + tile_place<kRows>(row, c), there ? from + 8 * c : somewhere, there ? bytes : 0);
  }
}

// S = A B^T: rows of two tiles, their columns summed over.
template <class T, int kD, int kARows, int kBRows, int kRowTiles, int kScores>
__device__ __forceinline__ void multiply_rows(float (&s)[kRowTiles][kScores], std::uint32_t a, std::uint32_t b) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int e = 0; e < kScores; ++e) s[m][e] = 0;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    std::uint32_t x[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(x[m], moved<kARows>(a, 16 * m, k));
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      std::uint32_t y[4];
      load_matrices(y, moved<kBRows>(b, 16 * n, k));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply<T>(four(s[m] + 8 * n), x[m], y[0], y[1]);
        multiply<T>(four(s[m] + 8 * n + 4), x[m], y[2], y[3]);
      }
    }
  }
}
// O += P B: P's columns are B's rows.
template <class T, int kBRows, int kRowTiles, int kPairs, int kSums>
__device__ __forceinline__ void add_products(float (&o)[kRowTiles][kSums], const std::uint32_t (&p)[kRowTiles][kPairs],
                                             std::uint32_t b) {
#pragma unroll
  for (int k = 0; k < kPairs / 4; ++k)
#pragma unroll
    for (int n = 0; n < kSums / 8; ++n) {
      std::uint32_t y[4];
      load_transposed(y, moved<kBRows>(b, 16 * k, n));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply<T>(four(o[m] + 8 * n), four(p[m] + 4 * k), y[0], y[1]);
        multiply<T>(four(o[m] + 8 * n + 4), four(p[m] + 4 * k), y[2], y[3]);
      }
    }
}
// Accumulators to the first operand of the next product.
template <class T, int kRowTiles, int kPairs>
__device__ __forceinline__ void pack_rows(std::uint32_t (&p)[kRowTiles][kPairs],
                                          const float (&s)[kRowTiles][2 * kPairs]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kPairs; ++n) p[m][n] = pack<T>(s[m][2 * n], s[m][2 * n + 1]);
}

}  // namespace attend::cuda
