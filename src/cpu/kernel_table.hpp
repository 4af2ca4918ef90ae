// What an instruction set offers: one entry per kernel, all noexcept in effect, none allocating.
#pragma once

#include <cstdint>

#include "attend/row_statistics.hpp"
#include "core/attention_problem.hpp"
#include "core/lens_sweep.hpp"
#include "core/weight_layout.hpp"
#include "cpu/linear_attention_kernels.hpp"
#include "cpu/row_kernels.hpp"

namespace attend {

struct KeyTile {  // keys [j0, j0 + kKeyTile) of one KV head
  std::int64_t b, hk, j0;
};

// A tile of keys on its way through backward, from backward_begin to backward_end, in memory of the caller's: its keys
// and values as the products read them, and the gradients that backward_rows adds to. Dp and Ep are D and E rounded up
// to whole vectors; elements are those of the packed operand format, floats or pairs of bf16.
struct BackwardTile {
  KeyTile keys;
  void *k_t, *v_t;  // elements, to sum over dimensions: [depth(D)][kKeyTile], [depth(E)][kKeyTile]
  void* k;          // elements, to sum over keys: [kKeyTile / kPack][Dp]
  bool k_finite;    // no inf or NaN among the keys
  float *dk, *dv;   // [kKeyTile][Dp], [kKeyTile][Ep]
  // The same over up to kChainRows rows: two levels of sums keep long chains of f32 exact. Null: one chain.
  float *dk_of_chain, *dv_of_chain;
  std::int64_t chain;  // the rows from chain * kChainRows on
};

// Where the bias gradient of a token (counted from the range's first), a head of the group and a key of the tile goes.
struct BiasPlace {
  std::int64_t token_step, head_step, key_step;
};

// Of a row, over some keys: sum of weight * gradient of the weight, and sum of weights.
struct DeltaSums {
  double delta = 0, weights = 0;
};

// Where a tile's part of the gradient of a bias by distance goes: key j0 + c and token i at [c + M - 1 - i].
struct DistanceSums {
  double* sums;  // null: not asked for
  std::int64_t head_step;
};

// What a tile of a KV cache holds.
struct CacheShape {
  DType dtype;
  bool int8;
  std::int64_t D, E;
};

struct MatrixRef {
  DType dtype;
  void* data;  // only c is written
  std::int64_t row_stride, col_stride;
};
struct MatmulProblem {
  std::int64_t rows, cols, inner;
  MatrixRef a, b, c;
  const MatrixRef* bias;  // one row; null: none
  bool add = false;       // c += a . b; f32 alone
};

// Queries against the kKeyTile keys of a tile, for additive attention.
struct AdditiveTile {
  bool exponents;  // q and k hold e^2x of their values x, else x
  std::int64_t rows, D;
  std::int64_t stride;  // D rounded up to whole vectors of any instruction set
  const float* q;       // [rows][stride]
  const float* k;       // scores: [D][kKeyTile]; gradients: [kKeyTile][stride]
};

struct KernelTable {
  const char* name;
  int lanes;       // floats in a vector
  int block_rows;  // rows a kernel works on at once: items of work are best whole multiples

  // Attention forward: see kernels/attention_forward.inl.
  std::int64_t (*forward_scratch_bytes)(const AttentionProblem&, std::int64_t rows);
  std::int64_t (*tile_bytes)(const AttentionProblem&);
  void (*pack_tile)(const AttentionProblem&, const KeyTile&, char* dst, void* scratch);
  void (*forward)(const AttentionProblem&, const RowRange&, std::int64_t first_split, std::int64_t last_split,
                  float* partial, void* scratch);
  // Tiles of a KV cache: see kernels/tiles.inl. cache_write puts rows [i, i + count) of head hk into keys from `at` on.
  StoredAs (*cache_stored_as)(const CacheShape&);
  std::int64_t (*cache_tile_bytes)(const CacheShape&);
  void (*cache_clear)(const CacheShape&, char* tile);
  void (*cache_write)(const CacheShape&, const Operand& k, const Operand& v, std::int64_t hk, std::int64_t i,
                      std::int64_t count, std::int64_t at, char* tile, float* row);
  void (*cache_read)(const CacheShape&, char* tile, std::int64_t at, float* k, float* v);
  std::int64_t (*partial_floats)(const AttentionProblem&, std::int64_t rows);
  // Of the rows of a range, those from `first` up to `last`.
  void (*merge_partials)(const AttentionProblem&, const RowRange&, std::int64_t first, std::int64_t last,
                         const float* partials, std::int64_t stride, std::int64_t splits, void* scratch);
  void (*weights)(const AttentionProblem&, const RowRange&, void* scratch);
  // Rows of one head of a problem whose groups are of one head each. Scratch as forward's. See kernels/lens.inl.
  void (*lens)(const AttentionProblem&, const RowRange&, const LensSweep&, void* scratch);
  // Fills states, [B, H, M], where the LSE does not suffice, from scores as forward and backward make them or, with
  // `as_floats`, as weights and bias_gradient do. Scratch as forward's. See kernels/row_states.inl.
  void (*row_states)(const AttentionProblem&, const RowRange&, const float* lse, bool as_floats, RowState* states,
                     void* scratch);

  // Attention backward: see kernels/attention_backward.inl.
  std::int64_t (*backward_tile_bytes)(const AttentionProblem&);  // of the `memory` of a BackwardTile
  std::int64_t (*backward_scratch_bytes)(const AttentionProblem&, std::int64_t rows);
  void (*delta_rows)(const AttentionProblem&, const RowRange&, float* delta, void* scratch);
  BackwardTile (*backward_begin)(const AttentionProblem&, const KeyTile&, void* memory, void* scratch);
  // Ranges come in rising order; kChainRows is a multiple of their rows.
  void (*backward_rows)(const AttentionProblem&, BackwardTile&, const RowRange&, float* dq, const DistanceSums&,
                        void* scratch);
  void (*backward_end)(const AttentionProblem&, BackwardTile&);
  void (*store_dq)(const AttentionProblem&, const Operand& dq, const RowRange&, const float* sums);
  void (*bias_gradient)(const AttentionProblem&, const KeyTile&, const RowRange&, const BiasPlace&, double* sums,
                        void* memory, void* scratch);
  // Adds a tile's part to `sums`, one for each row of the range. Computes in f32, as bias_gradient does.
  void (*delta_sums)(const AttentionProblem&, const KeyTile&, const RowRange&, DeltaSums* sums, void* memory,
                     void* scratch);

  // Rows [row, row + rows) of columns [n0, n1), n0 a multiple of kKeyTile; `packed` holds these columns of b, tile by
  // tile, or is null.
  std::int64_t (*matmul_scratch_bytes)(std::int64_t rows);
  std::int64_t (*matmul_packed_bytes)(const MatmulProblem&);
  void (*matmul_pack)(const MatmulProblem&, std::int64_t n0, char* dst, void* scratch);
  void (*matmul)(const MatmulProblem&, std::int64_t row, std::int64_t rows, std::int64_t n0, std::int64_t n1,
                 const char* packed, void* scratch);

  // Projections: see kernels/weight.inl. round_row rounds runs of x; weight_product makes rows [row, row + rows) of
  // the columns of tile n.
  void (*round_row)(const char* x, std::int64_t stride, std::int64_t runs, RoundedRun* to);
  std::int64_t (*weight_scratch_bytes)(std::int64_t rows);
  void (*weight_product)(const WeightProduct&, std::int64_t row, std::int64_t rows, std::int64_t n, void* scratch);

  LinearAttentionKernels linear_attention;  // see kernels/linear_attention.inl
  RowKernels rows;  // see kernels/rms_norm.inl, layer_norm.inl, activation.inl and their neighbours
  // Additive attention: see kernels/additive.inl.
  void (*additive_exponents)(const float* x, float* y, std::int64_t n);
  void (*additive_scores)(const AdditiveTile&, const float* w, float half_sum, float factor, float* scores);
  void (*additive_gradients)(const AdditiveTile&, const float* ds, float* dq, float* dk, float* dw);

  // For tests, which bound their errors, and for benchmarks, which print the ceiling beside a figure. exp2_bf16 makes
  // weights that are rounded to bf16; it is exp2 where there are none.
  void (*exp2)(const float* x, float* y, std::int64_t n);
  void (*exp2_bf16)(const float* x, float* y, std::int64_t n);
  void (*exp)(const float* x, float* y, std::int64_t n);
  double (*fma_burst)(std::int64_t rounds);
  double (*pair_burst)(std::int64_t rounds);  // products of bf16; the same as fma_burst where there are none
  double (*byte_burst)(std::int64_t rounds);  // products of bytes
};

const KernelTable& kernels_scalar();
const KernelTable& kernels_neon();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();
const KernelTable& kernels_avx512_bf16();
const KernelTable& kernels_amx();

}  // namespace attend
