// What the kernels of the lens are given, as plain data, and how they cut their work.
#pragma once

#include <vector_types.h>

#include "cuda/forward_args.hpp"
#include "cuda/plain_shapes.hpp"

namespace attend::cuda {

// Rows are keys, 32 of a warp's own, columns a step's queries.
constexpr PlainShape kLens64{64, 2, 64, 2, 3}, kLens128{128, 2, 64, 2, 2}, kLens256{256, 2, 32, 2, 2};
constexpr int kLensKeys = 32;  // of a warp
constexpr int lens_rows(const PlainShape& s) {
  return 16 * s.row_tiles * kPlainWarps;
}
// The keys, whose memory the steps' queries have later; each query's numbers.
constexpr int lens_tile_bytes(const PlainShape& s) {
  const int keys = lens_rows(s), queries = s.stages * s.columns;
  return (keys > queries ? keys : queries) * s.D * 2;
}
constexpr int lens_bytes(const PlainShape& s) {
  return lens_tile_bytes(s) + s.stages * s.columns * kColumnBytes;
}
static_assert(lens_bytes(kLens128) <= 99 * 1024 && lens_bytes(kLens256) <= 99 * 1024);

// Places cut into cells, as CellAxis has them.
struct DeviceAxis {
  std::int64_t first = 0, length = 0, cells = 1;

  ATTEND_HOST_DEVICE int begin(std::int64_t cell) const { return static_cast<int>(first + cell * length / cells); }
  ATTEND_HOST_DEVICE int cell(std::int64_t place) const {
    return static_cast<int>(((place - first + 1) * cells - 1) / length);
  }
};

// A band of whole rows of cells of one head's map. A piece of a cell is what one warp adds up: of the keys those of a
// warp, of the queries those of a part. So pieces follow from the lengths alone, and each is written by one warp.
struct LensArgs {
  DeviceOperand q_rows, k_rows, lse, sinks;
  DeviceMask mask;
  ScoreTerms terms;
  float scale = 1, scale2 = 1;
  int b = 0, h = 0, hk = 0, M = 0, N = 0, D = 0;
  // Each query's numbers, padded to whole steps: its LSE of base 2, less the top, infinite where it sees nothing; with
  // terms the largest logit where the LSE does not suffice, else 0; p(i), for ALiBi; the keys from x up to y that it
  // sees.
  float* lse2 = nullptr;
  float* top = nullptr;
  float* position = nullptr;
  int2* seen = nullptr;
  int padded = 0;
  DeviceAxis queries, keys;
  int first_row = 0, end_row = 0;  // rows of cells
  int part_queries = 0;            // parts begin at multiples of it
  int first_part = 0, parts = 0;
  int first_tile = 0, tiles = 0;  // of keys, one for each block
  // {mass, peak} of each piece, zero before: [rows and parts, cells and warps' keys]
  float2* pieces = nullptr;
  std::int64_t row_pieces = 0;
  int lanes = 1;             // that add up the pieces of a cell: 1 or 32
  DeviceOperand mass, peak;  // written; peak may be off

  // The piece of a row of cells and a part, of a cell and a warp's keys.
  ATTEND_HOST_DEVICE std::int64_t query_piece(int row, int part) const { return row - first_row + part - first_part; }
  ATTEND_HOST_DEVICE std::int64_t key_piece(int cell, int warp) const {
    return cell + warp - static_cast<int>(keys.first) / kLensKeys;
  }
};

}  // namespace attend::cuda
