// How the plain kernels cut their work, for each class of head dims: what the host and the kernels agree on. A block of
// every kernel fits the 99 KB of shared memory that each card of compute capability 8.0 and later has.
#pragma once

namespace attend::cuda {

constexpr int kPlainWarps = 4, kPlainThreads = 32 * kPlainWarps;

// Of a warp's products: 16 * row_tiles rows, each with `columns` columns a step.
struct PlainShape {
  int D;  // keys' and values' dims up to this
  int row_tiles;
  int columns;
  int stages;  // tiles of columns under way
  int blocks;  // on a multiprocessor: what registers are cut to
};

// Forward: rows are queries, every warp has its own.
constexpr PlainShape kPlainForward64{64, 2, 64, 1, 2}, kPlainForward128{128, 2, 64, 1, 2},
    kPlainForward256{256, 1, 64, 1, 2};
constexpr int forward_rows(const PlainShape& s) {
  return 16 * s.row_tiles * kPlainWarps;
}
constexpr int forward_bytes(const PlainShape& s) {
  return (forward_rows(s) + 2 * s.columns) * s.D * 2;
}

// dK and dV: rows are keys, which two warps share: one makes the weights and has dV, the other has dK.
constexpr PlainShape kPlainKeys64{64, 2, 64, 2, 2}, kPlainKeys128{128, 2, 32, 2, 2}, kPlainKeys256{256, 1, 32, 1, 2};
constexpr int keys_rows(const PlainShape& s) {
  return 16 * s.row_tiles * kPlainWarps / 2;
}
// A query's numbers beside its columns: four floats or ints. Here its LSE, delta and the keys it sees.
constexpr int kColumnBytes = 16;
constexpr int keys_bytes(const PlainShape& s) {
  const int columns = s.stages * s.columns * (2 * s.D * 2 + kColumnBytes), weights = keys_rows(s) * s.columns * 4;
  return 2 * keys_rows(s) * s.D * 2 + columns + weights;
}

// dQ: rows are queries, every warp has its own.
constexpr PlainShape kPlainQueries64{64, 2, 64, 2, 2}, kPlainQueries128{128, 2, 32, 2, 2},
    kPlainQueries256{256, 1, 32, 1, 2};
constexpr int queries_bytes(const PlainShape& s) {
  return 2 * (forward_rows(s) + s.stages * s.columns) * s.D * 2;
}

// Sums of rows, as they leave.
constexpr int sums_bytes(const PlainShape& s) {
  return forward_rows(s) * (s.D + 8) * 4;
}
static_assert(sums_bytes(kPlainKeys64) <= keys_bytes(kPlainKeys64) &&
              sums_bytes(kPlainKeys128) <= keys_bytes(kPlainKeys128) &&
              sums_bytes(kPlainKeys256) <= keys_bytes(kPlainKeys256) &&
              sums_bytes(kPlainQueries64) <= queries_bytes(kPlainQueries64) &&
              sums_bytes(kPlainQueries128) <= queries_bytes(kPlainQueries128) &&
              sums_bytes(kPlainQueries256) <= queries_bytes(kPlainQueries256));

static_assert(forward_bytes(kPlainForward256) <= 99 * 1024 && keys_bytes(kPlainKeys128) <= 99 * 1024 &&
              keys_bytes(kPlainKeys256) <= 99 * 1024 && queries_bytes(kPlainQueries128) <= 99 * 1024 &&
              queries_bytes(kPlainQueries256) <= 99 * 1024);

}  // namespace attend::cuda
