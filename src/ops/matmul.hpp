// The strided matrix product under linear and its gradients.
#pragma once

#include <cstdint>
#include <optional>

#include "attend/tensor.hpp"

namespace attend {

template <class Void>
struct BasicMatrix {
  DType dtype;
  Void* data;
  std::int64_t rows, cols;
  std::int64_t row_stride, col_stride;  // in elements
};
using Matrix = BasicMatrix<const void>;
using MutableMatrix = BasicMatrix<void>;

// c = a . b (+ bias, one value per column of c), or c += a . b for c in f32 or f64. All f64 or none; where both a and b
// are bf16 they are multiplied as pairs if the CPU can. Accumulation in f32, in f64 for f64. Each element is summed
// over the inner dimension in a fixed order: it depends on its row of a and its column of b alone, to the bit.
void matmul(const Matrix& a, const Matrix& b, const std::optional<Matrix>& bias, const MutableMatrix& c,
            bool add = false);

// A matrix of floats inside a larger array.
struct FloatMatrix {
  float* data;  // only results are written
  std::int64_t rows, cols;
  std::int64_t row_stride, col_stride = 1;

  FloatMatrix transposed() const { return {data, cols, rows, col_stride, row_stride}; }
  FloatMatrix part(std::int64_t row, std::int64_t count) const {  // rows [row, row + count)
    return {data + row * row_stride, count, cols, row_stride, col_stride};
  }
};

// c = a . b, or c += a . b, on the calling thread, for products inside a parallel_for. Nothing is allocated: `scratch`
// has block_product_scratch_bytes(), 64-byte aligned, for the worker alone. f32, with the same sums as matmul.
std::int64_t block_product_scratch_bytes();
void block_product(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, bool add, void* scratch);

}  // namespace attend
