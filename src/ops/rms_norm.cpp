// Root-mean-square normalisation over the last dimension, and its gradients.
#include "attend/rms_norm.hpp"

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "ops/float_rows.hpp"
#include "reference/add.hpp"
#include "reference/rms_norm.hpp"

namespace attend {
namespace {

void check_arguments(const std::string& op, const View& x, const View& weight, double eps) {
  check_readable(op, "x", x);
  check_readable(op, "weight", weight);
  check_shape(op, "weight", weight.shape, {1, 1, 1, x.dim()});
  if (!(eps >= 0) || !std::isfinite(eps)) {
    fail(op, "eps is " + std::to_string(eps) + ", expected a finite number from 0 up");
  }
}

void backward_f64(const View& dy, const View& x, const View& weight, const MutableView& dx, const MutableView& dweight,
                  double eps, const std::optional<View>& plus) {
  if (!plus) return reference::rms_norm_backward(dy, x, weight, dx, dweight, eps);
  Tensor gradient(DType::f64, x.shape);
  reference::rms_norm_backward(dy, x, weight, gradient.view(), dweight, eps);
  reference::add(*plus, gradient, dx);
}

}  // namespace

void rms_norm(View x, View weight, MutableView y, double eps) {
  check_arguments("rms_norm", x, weight, eps);
  check_writable("rms_norm", "y", y);
  check_shape("rms_norm", "y", y.shape, x.shape);
  check_family("rms_norm", "y", y.dtype, x.dtype);
  check_all_apart("rms_norm", {{"y", y, "x"}}, {{"x", x}, {"weight", weight}});
  if (x.dtype == DType::f64) return reference::rms_norm(x, weight, y, eps);

  walk_in_order(x, y);
  const std::int64_t cols = x.dim();
  const FloatRows from(x);
  const MutableFloatRows to(y);
  const FloatVector weights(weight);
  const RowBuffers buffers(1, kRowsTogether * cols);
  const bool no_gaps = from.no_gaps() && to.no_gaps();
  for_each_chunk(row_count(x.shape), cols, buffers.workers(), [&](std::int64_t first, std::int64_t end, int worker) {
    float* buffer = buffers.of(worker, 0);
    for_rows_together(x.shape, no_gaps, first, end, [&](std::int64_t r, std::int64_t rows) {
      kernels().rows.rms_norm(from.read(r, 0, rows * cols, buffer), rows, weights.data(), eps, cols,
                              to.place(r, 0, buffer));
      to.written(r, 0, rows * cols, buffer);
    });
  });
}

void rms_norm_backward(View dy, View x, View weight, MutableView dx, MutableView dweight, double eps,
                       std::optional<View> plus) {
  check_arguments("rms_norm_backward", x, weight, eps);
  check_readable("rms_norm_backward", "dy", dy);
  check_writable("rms_norm_backward", "dx", dx);
  check_writable("rms_norm_backward", "dweight", dweight);
  check_shape("rms_norm_backward", "dy", dy.shape, x.shape);
  check_shape("rms_norm_backward", "dx", dx.shape, x.shape);
  check_shape("rms_norm_backward", "dweight", dweight.shape, weight.shape);
  check_family("rms_norm_backward", "dy", dy.dtype, x.dtype);
  check_family("rms_norm_backward", "dx", dx.dtype, x.dtype);
  if (plus) {
    check_readable("rms_norm_backward", "plus", *plus);
    check_shape("rms_norm_backward", "plus", plus->shape, x.shape);
    check_family("rms_norm_backward", "plus", plus->dtype, x.dtype);
  }
  check_all_apart("rms_norm_backward", {{"dx", dx, "dy", "plus"}, {"dweight", dweight}},
                  {{"dy", dy}, {"x", x}, {"weight", weight}, {"plus", plus}});
  if (x.dtype == DType::f64) return backward_f64(dy, x, weight, dx, dweight, eps, plus);

  View sum = plus.value_or(dy);
  walk_in_order(x, dy, dx, sum);
  const std::int64_t cols = x.dim();
  const FloatRows given(dy), from(x), with(sum);
  const MutableFloatRows to(dx);
  const FloatVector weights(weight);
  const RowBuffers buffers(3, kRowsTogether * cols);
  const bool no_gaps = given.no_gaps() && from.no_gaps() && with.no_gaps() && to.no_gaps();
  const auto add_rows = [&](std::int64_t first, std::int64_t end, double* partial, int worker) {
    float *buffer = buffers.of(worker, 0), *other = buffers.of(worker, 1), *third = buffers.of(worker, 2);
    for_rows_together(x.shape, no_gaps, first, end, [&](std::int64_t r, std::int64_t rows) {
      kernels().rows.rms_norm_backward(given.read(r, 0, rows * cols, buffer), from.read(r, 0, rows * cols, other), rows,
                                       weights.data(), eps, cols, plus ? with.read(r, 0, rows * cols, third) : nullptr,
                                       to.place(r, 0, buffer), partial);
      to.written(r, 0, rows * cols, buffer);
    });
  };
  const std::vector<double> sums = sum_blocks(row_count(x.shape), cols, buffers.workers(), add_rows);
  for (std::int64_t j = 0; j < cols; ++j) store(dweight, 0, 0, 0, j, sums[static_cast<std::size_t>(j)]);
}

}  // namespace attend
