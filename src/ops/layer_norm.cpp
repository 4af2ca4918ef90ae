// Layer normalisation over the last dimension, and its gradients.
#include "attend/layer_norm.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "ops/float_rows.hpp"
#include "reference/layer_norm.hpp"

namespace attend {
namespace {

void check_arguments(const char* op, const View& x, const View& weight, double eps) {
  check_readable(op, "x", x);
  check_readable(op, "weight", weight);
  check_shape(op, "weight", weight.shape, {1, 1, 1, x.dim()});
  if (!(eps >= 0) || !std::isfinite(eps))
    fail(op, "eps is " + std::to_string(eps) + ", expected a finite number from 0 up");
}

}  // namespace

void layer_norm(View x, View weight, std::optional<View> bias, MutableView y, double eps) {
  const char* op = "layer_norm";
  check_arguments(op, x, weight, eps);
  if (bias) {
    check_readable(op, "bias", *bias);
    check_shape(op, "bias", bias->shape, weight.shape);
  }
  check_writable(op, "y", y);
  check_shape(op, "y", y.shape, x.shape);
  check_family(op, "y", y.dtype, x.dtype);
  check_all_apart(op, {{"y", y, "x"}}, {{"x", x}, {"weight", weight}, {"bias", bias}});
  if (x.dtype == DType::f64) return reference::layer_norm(x, weight, bias, y, eps);

  const std::int64_t cols = x.dim();
  const FloatRows from(x);
  const MutableFloatRows to(y);
  const FloatVector weights(weight), shifts(bias);
  const RowBuffers buffers(1, cols);
  for_each_row(row_count(x.shape), cols, buffers.workers(), [&](std::int64_t r, int worker) {
    float* buffer = buffers.of(worker, 0);
    kernels().rows.layer_norm(from.read(r, 0, cols, buffer), weights.data(), shifts.data(), eps, cols,
                              to.place(r, 0, buffer));
    to.written(r, 0, cols, buffer);
  });
}

void layer_norm_backward(View dy, View x, View weight, const LayerNormGradients& gradients, double eps) {
  const char* op = "layer_norm_backward";
  const auto& [dx, dweight, dbias] = gradients;
  check_arguments(op, x, weight, eps);
  check_readable(op, "dy", dy);
  check_writable(op, "dx", dx);
  check_writable(op, "dweight", dweight);
  check_shape(op, "dy", dy.shape, x.shape);
  check_shape(op, "dx", dx.shape, x.shape);
  check_shape(op, "dweight", dweight.shape, weight.shape);
  check_family(op, "dy", dy.dtype, x.dtype);
  check_family(op, "dx", dx.dtype, x.dtype);
  if (dbias) {
    check_writable(op, "dbias", *dbias);
    check_shape(op, "dbias", dbias->shape, weight.shape);
  }
  check_all_apart(op, {{"dx", dx, "dy"}, {"dweight", dweight}, {"dbias", dbias}},
                  {{"dy", dy}, {"x", x}, {"weight", weight}});
  if (x.dtype == DType::f64) return reference::layer_norm_backward(dy, x, weight, gradients, eps);

  const std::int64_t cols = x.dim(), bias_at = dbias ? cols : 0;
  const FloatRows given(dy), from(x);
  const MutableFloatRows to(dx);
  const FloatVector weights(weight);
  const RowBuffers buffers(2, cols);
  const std::vector<double> sums =
      sum_rows(row_count(x.shape), cols + bias_at, buffers.workers(), [&](std::int64_t r, double* partial, int worker) {
        float* buffer = buffers.of(worker, 0);
        kernels().rows.layer_norm_backward(given.read(r, 0, cols, buffer), from.read(r, 0, cols, buffers.of(worker, 1)),
                                           weights.data(), eps, cols, to.place(r, 0, buffer), partial,
                                           bias_at > 0 ? partial + cols : nullptr);
        to.written(r, 0, cols, buffer);
      });
  for (std::int64_t j = 0; j < cols; ++j) {
    store(dweight, 0, 0, 0, j, sums[static_cast<std::size_t>(j)]);
    if (dbias) store(*dbias, 0, 0, 0, j, sums[static_cast<std::size_t>(cols + j)]);
  }
}

}  // namespace attend
