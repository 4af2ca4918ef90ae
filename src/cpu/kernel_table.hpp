// What an instruction set offers: one entry per kernel, all noexcept in effect, none allocating.
#pragma once

#include <cstdint>

#include "core/attention_problem.hpp"

namespace attend {

struct KeyTile {  // keys [j0, j0 + kKeyTile) of one KV head
  std::int64_t b, hk, j0;
};

// Where the bias gradient of a token (counted from the range's first), a head of the group and a key of the tile goes.
struct BiasPlace {
  std::int64_t token_step, head_step, key_step;
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
};

struct KernelTable {
  const char* name;
  int lanes;  // floats in a vector

  // Attention forward: see kernels/attention_forward.inl.
  std::int64_t (*forward_scratch_bytes)(const AttentionProblem&, std::int64_t rows);
  void (*forward)(const AttentionProblem&, const RowRange&, std::int64_t first_split, std::int64_t last_split,
                  float* partial, void* scratch);
  std::int64_t (*partial_floats)(const AttentionProblem&, std::int64_t rows);
  void (*merge_partials)(const AttentionProblem&, const RowRange&, const float* partials, std::int64_t stride,
                         std::int64_t splits, void* scratch);
  void (*weights)(const AttentionProblem&, const RowRange&, void* scratch);

  // Attention backward: see kernels/attention_backward.inl.
  std::int64_t (*backward_scratch_bytes)(const AttentionProblem&, std::int64_t rows);
  void (*delta_rows)(const AttentionProblem&, const RowRange&, float* delta, void* scratch);
  void (*backward_begin)(const AttentionProblem&, const KeyTile&, void* scratch);
  void (*backward_rows)(const AttentionProblem&, const KeyTile&, const RowRange&, float* dq, void* scratch);
  void (*backward_end)(const AttentionProblem&, const KeyTile&, void* scratch);
  void (*store_dq)(const AttentionProblem&, const Operand& dq, const RowRange&, const float* sums);
  void (*bias_gradient)(const AttentionProblem&, const KeyTile&, const RowRange&, const BiasPlace&, double* sums,
                        void* scratch);

  // rows [row, row + rows) and the kKeyTile columns from n0 on.
  std::int64_t (*matmul_scratch_bytes)(std::int64_t rows);
  void (*matmul)(const MatmulProblem&, std::int64_t row, std::int64_t rows, std::int64_t n0, void* scratch);

  // For tests, which bound its error, and for benchmarks, which print the ceiling beside a figure.
  void (*exp2)(const float* x, float* y, std::int64_t n);
  double (*fma_burst)(std::int64_t rounds);
};

const KernelTable& kernels_scalar();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();

}  // namespace attend
