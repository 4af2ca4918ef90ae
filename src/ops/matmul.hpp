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

// c = a . b (+ bias, one value per column of c). All of one dtype (bias may be any); accumulation in f32, in f64 for
// f64. Each element is summed over the inner dimension in a fixed order: it depends on its row of a and its column of
// b alone, to the bit. Overwrites c.
void matmul(const Matrix& a, const Matrix& b, const std::optional<Matrix>& bias, const MutableMatrix& c);

}  // namespace attend
