// The matrix product of a projection, and its gradients, on top of matmul.
#include "attend/linear.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "ops/float_rows.hpp"
#include "ops/matmul.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

// The stride from row to row when all rows of [batch, heads, length] lie evenly apart, in that order.
template <class Void>
std::optional<std::int64_t> even_row_stride(const BasicView<Void>& x) {
  std::int64_t rows = 1, stride = x.strides[2];
  if (row_count({x.batch(), x.heads(), x.length(), 1}) == 0) return stride;  // the other sizes may be anything
  for (const std::size_t d : {2U, 1U, 0U}) {
    if (x.shape[d] == 1) continue;
    if (rows == 1) {
      stride = x.strides[d];
    } else if (x.strides[d] % rows != 0 || x.strides[d] / rows != stride) {
      return std::nullopt;
    }
    rows *= x.shape[d];
  }
  return stride;
}

// All rows as one matrix; they must lie evenly.
template <class Void>
BasicMatrix<Void> all_rows(const BasicView<Void>& x) {
  const std::int64_t rows = row_count({x.batch(), x.heads(), x.length(), 1});
  return {x.dtype, x.data, rows, x.dim(), *even_row_stride(x), x.strides[3]};
}

// The rows of one (batch, head) as a matrix.
template <class Void>
BasicMatrix<Void> rows_of(const BasicView<Void>& x, std::int64_t b, std::int64_t h) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  // Strides of a view without elements may be anything.
  const std::int64_t start = row_count(x.shape) == 0 ? 0 : b * x.strides[0] + h * x.strides[1];
  Byte* data = static_cast<Byte*>(x.data) + start * size_of(x.dtype);
  return {x.dtype, data, x.length(), x.dim(), x.strides[2], x.strides[3]};
}

Matrix transposed(const Matrix& a) {
  return {a.dtype, a.data, a.cols, a.rows, a.col_stride, a.row_stride};
}

// y = x . w (+ bias) for every row of x: one product where the rows of both lie evenly, else one per (batch, head).
void multiply_rows(const View& x, const Matrix& w, const std::optional<Matrix>& bias, const MutableView& y) {
  if (y.batch() == 0 || y.heads() == 0 || y.length() == 0 || y.dim() == 0) return;
  if (even_row_stride(x) && even_row_stride(y)) return matmul(all_rows(x), w, bias, all_rows(y));
  for (std::int64_t b = 0; b < y.batch(); ++b) {
    for (std::int64_t h = 0; h < y.heads(); ++h) matmul(rows_of(x, b, h), w, bias, rows_of(y, b, h));
  }
}

// The same elements with evenly spaced rows: x itself where it has them, else a copy kept in `storage`.
View with_even_rows(const View& x, Tensor& storage) {
  if (even_row_stride(x)) return x;
  storage = Tensor(x.dtype, x.shape);
  copy_rows(x, storage);
  return storage;
}

// dw = dy^T . x sums over all rows at once, so rows that do not lie evenly are gathered first.
void multiply_gradient(const View& dy, const View& x, const MutableView& dw, bool add) {
  if (dw.length() == 0 || dw.dim() == 0) return;
  Tensor dy_storage, x_storage;
  const View dy_even = with_even_rows(dy, dy_storage), x_even = with_even_rows(x, x_storage);
  matmul(transposed(all_rows(dy_even)), all_rows(x_even), std::nullopt, rows_of(dw, 0, 0), add);
}

// The column sums of dy, in double.
void sum_columns(const View& dy, const MutableView& dbias, bool add) {
  std::vector<double> sums;
  const std::int64_t rows = row_count(dy.shape), cols = dy.dim();
  if (dy.dtype == DType::f64) {
    sums = sum_rows(rows, cols, thread_count(), [&](std::int64_t r, double* partial, int) {
      const std::int64_t start = row_start(dy.shape, dy.strides, r);
      for (std::int64_t j = 0; j < cols; ++j) partial[j] += load_element(dy.dtype, dy.data, start + j * dy.strides[3]);
    });
  } else {
    const FloatRows from(dy);
    const RowBuffers buffers(1, cols);
    sums = sum_rows(rows, cols, buffers.workers(), [&](std::int64_t r, double* partial, int worker) {
      kernels().rows.accumulate(from.read(r, 0, cols, buffers.of(worker, 0)), cols, partial);
    });
  }
  for (std::int64_t j = 0; j < cols; ++j)
    store(dbias, 0, 0, 0, j, sums[static_cast<std::size_t>(j)] + (add ? load(dbias, 0, 0, 0, j) : 0.0));
}

// What forward and backward ask of x, weight and the rows on the other side.
void check_operands(const std::string& op, const View& x, const View& weight, const std::string& what, const View& y) {
  check_readable(op, "x", x);
  check_readable(op, "weight", weight);
  check_readable(op, what, y);
  check_shape(op, "weight", weight.shape, {1, 1, weight.length(), x.dim()});
  check_shape(op, what, y.shape, {x.batch(), x.heads(), x.length(), weight.length()});
  check_dtype(op, "weight", weight.dtype, x.dtype);
  check_dtype(op, what, y.dtype, x.dtype);
}

}  // namespace

void linear(View x, View weight, std::optional<View> bias, MutableView y) {
  check_operands("linear", x, weight, "y", y);
  check_writable("linear", "y", y);
  std::optional<Matrix> row;
  if (bias) {
    check_readable("linear", "bias", *bias);
    check_shape("linear", "bias", bias->shape, {1, 1, 1, weight.length()});
    row = rows_of(*bias, 0, 0);
  }
  check_all_apart("linear", {{"y", y}}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  multiply_rows(x, transposed(rows_of(weight, 0, 0)), row, y);
}

void linear_backward(View dy, View x, View weight, const LinearGradients& gradients) {
  const std::string op = "linear_backward";
  check_operands(op, x, weight, "dy", dy);
  const auto& [dx, dweight, dbias, add] = gradients;
  if (dx) {
    check_writable(op, "dx", *dx);
    check_shape(op, "dx", dx->shape, x.shape);
    check_dtype(op, "dx", dx->dtype, x.dtype);
  }
  if (dweight) {
    check_writable(op, "dweight", *dweight);
    check_shape(op, "dweight", dweight->shape, weight.shape);
    if (add && weight.dtype != DType::f64)
      check_dtype(op, "dweight that is added to", dweight->dtype, DType::f32);
    else
      check_result_dtype(op, "dweight", dweight->dtype, weight.dtype);
  }
  if (dbias) {
    check_writable(op, "dbias", *dbias);
    check_shape(op, "dbias", dbias->shape, {1, 1, 1, weight.length()});
  }
  check_all_apart(op, {{"dx", dx}, {"dweight", dweight}, {"dbias", dbias}}, {{"dy", dy}, {"x", x}, {"weight", weight}});
  if (dweight) multiply_gradient(dy, x, *dweight, add);
  if (dbias) sum_columns(dy, *dbias, add);
  if (dx) multiply_rows(dy, rows_of(weight, 0, 0), std::nullopt, *dx);
}

}  // namespace attend
