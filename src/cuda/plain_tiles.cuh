// Tiles in shared memory and products of a warp (mma.sync), from sm_80 on. A tile lies in chunks of 64 columns: rows of
// 128 bytes, whose sixteens of bytes change places by the row, so that eight rows of one column meet different banks.
#pragma once

#include "cuda/forward_args.hpp"
#include "cuda/plain_shapes.hpp"
#include "cuda/ptx.cuh"

namespace attend::cuda {

template <class Element, PlainShape S, bool kTerms_>
struct PlainTraits {
  using T = Element;
  static constexpr PlainShape kShape = S;
  static constexpr int D = S.D, kRowTiles = S.row_tiles, kColumns = S.columns, kStages = S.stages, kBlocks = S.blocks;
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = forward_rows(S);
  static constexpr bool kTerms = kTerms_;  // or holes
};

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

// A block's copies of rows of one head to tiles: a thread has the same sixteen of every few rows.
template <int kD>
struct RowCopies {
  static constexpr int kSixteens = kD / 8, kPass = kPlainThreads / kSixteens;  // rows at once
  const char* from;  // this thread's sixteen of the head's first row
  std::int64_t row_bytes;
  int rows, row, c;  // rows of the head; the thread's first, and its sixteen
  bool wide;         // the head has that sixteen

  __device__ __forceinline__ RowCopies(const DeviceOperand& x, int b, int h, int length, int dims)
      : row_bytes(2 * x.row_stride),
        rows(length),
        row(static_cast<int>(threadIdx.x) / kSixteens),
        c(static_cast<int>(threadIdx.x) % kSixteens),
        wide(8 * c < dims) {
    from = static_cast<const char*>(x.data) + 2 * (b * x.batch_stride + h * x.head_stride) + 16 * c;
  }
  // Zeros to the columns of a tile that no row has: they stay.
  template <int kRows>
  __device__ __forceinline__ void clear(std::uint32_t tile) const {
    if (wide) return;
#pragma unroll
    for (int n = 0; n < kRows / kPass; ++n) store_shared(tile + tile_place<kRows>(row + n * kPass, c), uint4{});
  }
  // Rows from `first` on to a tile; past the last, zeros.
  template <int kRows>
  __device__ __forceinline__ void copy(std::uint32_t tile, int first) const {
    static_assert(kRows % kPass == 0);
    if (!wide) return;
    const char* at = from + (first + row) * row_bytes;
    if (first + kRows <= rows) {
#pragma unroll
      for (int n = 0; n < kRows / kPass; ++n, at += kPass * row_bytes)
        copy_sixteen(tile + tile_place<kRows>(row + n * kPass, c), at);
      return;
    }
#pragma unroll 1
    for (int n = row; n < kRows; n += kPass, at += kPass * row_bytes) {
      const bool there = first + n < rows;
      copy_sixteen_if(there, tile + tile_place<kRows>(n, c), there ? at : from);
    }
  }
};

// copy(x) and step(x) for each of `count` steps, the copies ahead of the steps where there are two stages.
template <class Tr>
__device__ __forceinline__ void walk_steps(int count, auto&& copy, auto&& step) {
  const auto copy_if = [&](int x) {
    if (x < count) copy(x);
    commit_copies();
  };
  copy_if(0);
  for (int x = 0; x < count; ++x) {
    wait_copies();
    __syncthreads();  // it is there, and nobody needs what lay in the other stage
    if constexpr (Tr::kStages > 1) copy_if(x + 1);
    step(x);
    if constexpr (Tr::kStages == 1) {
      __syncthreads();
      copy_if(x + 1);
    }
  }
  wait_copies();
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
// The same, where the first tile's rows are held in registers: a warp's matrices of 16 columns each.
template <int kRowTiles, int kSteps>
using HeldRows = std::uint32_t[kSteps][kRowTiles][4];
template <int kARows, int kRowTiles, int kSteps>
__device__ __forceinline__ void hold_rows(HeldRows<kRowTiles, kSteps>& x, std::uint32_t a) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_matrices(x[k][m], moved<kARows>(a, 16 * m, k));
}
template <class T, int kBRows, int kRowTiles, int kScores, int kSteps>
__device__ __forceinline__ void multiply_held(float (&s)[kRowTiles][kScores], const HeldRows<kRowTiles, kSteps>& x,
                                              std::uint32_t b) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int e = 0; e < kScores; ++e) s[m][e] = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      std::uint32_t y[4];
      load_matrices(y, moved<kBRows>(b, 16 * n, k));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply<T>(four(s[m] + 8 * n), x[k][m], y[0], y[1]);
        multiply<T>(four(s[m] + 8 * n + 4), x[k][m], y[2], y[3]);
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
