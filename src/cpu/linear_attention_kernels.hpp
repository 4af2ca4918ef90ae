// The kernels under linear attention: rows and small matrices of floats, beside the products.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend {

enum class FeatureKernel : std::int32_t { elu_plus_one, relu };

// Rows in memory that are wanted soon: a product prefetches them, some with every few rows of its own, so that memory
// works while it does. No more rows of them are prefetched than the product has.
struct RowsAhead {
  const void* data = nullptr;  // null: none
  std::int64_t row_bytes = 0;  // from row to row
  std::int64_t bytes = 0;      // of a row
};

// c = a . b, or c += a . b, over a[r * a_row + k * a_inner], b[k * b_row + n * b_col] and c[r * c_row + n].
struct LinearAttentionProduct {
  const float* a;
  std::int64_t a_row, a_inner;
  const float* b;
  std::int64_t b_row, b_col;
  float* c;
  std::int64_t c_row;
  std::int64_t rows, cols, inner;
  bool add;
  RowsAhead ahead[2];
};

struct LinearAttentionKernels {
  // Straight from where the matrices lie, if their sizes are whole vectors; else it does nothing and is false.
  // `scratch` as for matmul, of 96 rows.
  bool (*product)(const LinearAttentionProduct& p, void* scratch);

  // Rows of any dtype and strides (in elements) to [rows][n] floats, and back, times a factor a row (null: one for
  // all).
  void (*load_rows)(DType dtype, const void* from, std::int64_t row_stride, std::int64_t stride, std::int64_t rows,
                    std::int64_t n, float* to);
  void (*store_rows)(DType dtype, void* to, std::int64_t row_stride, std::int64_t stride, std::int64_t rows,
                     std::int64_t n, const float* from, const float* factors, float factor);

  // x becomes phi(x); dy, the gradient of y = phi(x), becomes that of x.
  void (*features)(FeatureKernel kind, float* x, std::int64_t n);
  void (*feature_gradient)(FeatureKernel kind, const float* y, float* dy, std::int64_t n);

  // slot, run = run, a * run + slot: one link of the chain of states.
  void (*chain)(float* run, float* slot, float a, std::int64_t n);
  void (*scale)(float* x, float a, std::int64_t n);
  // y[r] = factors[r] * x[r], or y[r] += ...; rows of n, with x[r] at x + r * x_row.
  void (*scale_rows)(const float* x, std::int64_t x_row, const float* factors, std::int64_t rows, std::int64_t n,
                     float* y, bool add);
  // x[r] = factors[r] * x[r] + terms[r].
  void (*shift_rows)(float* x, const float* factors, const float* terms, std::int64_t rows, std::int64_t n);
  // y += factors[r] * x[r] over all rows; null factors: 1.
  void (*sum_rows)(const float* x, const float* factors, std::int64_t rows, std::int64_t n, float* y);
  // sums[r] = x[r] . y[r], with y[r] at y + r * y_row.
  void (*dot_rows)(const float* x, const float* y, std::int64_t y_row, std::int64_t rows, std::int64_t n, float* sums);

  // s[n][n] *= m (null: 1) where column < row + ahead, and 0 elsewhere. sums[r] (unless null) is the sum of row r.
  void (*cut_rows)(float* s, const float* m, std::int64_t n, std::int64_t ahead, float* sums);
  // (I + t) x = y in place over x[n][cols], t[n][n] strictly lower triangular; or its transpose.
  void (*solve)(const float* t, bool transposed, std::int64_t n, float* x, std::int64_t cols);

  // y = s^T q over s[rows][cols], rows of s_row floats; and the same after s = (a + rest) s + k u^T, where the small
  // part of the sum is rounded before the large one: a decay near 1 is multiplied in thousands of times.
  void (*read_state)(const float* s, std::int64_t s_row, std::int64_t rows, std::int64_t cols, const float* q,
                     float* y);
  void (*step_state)(float* s, std::int64_t s_row, std::int64_t rows, std::int64_t cols, float a, float rest,
                     const float* k, const float* u, const float* q, float* y);
};

}  // namespace attend
