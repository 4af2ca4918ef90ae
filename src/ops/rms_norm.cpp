// Root-mean-square normalisation over the last dimension, and its gradients.
#include "attend/rms_norm.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "ops/rows.hpp"
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

std::vector<float> to_floats(const View& weight) {
  std::vector<float> values(static_cast<std::size_t>(weight.dim()));
  for (std::int64_t j = 0; j < weight.dim(); ++j) {
    values[static_cast<std::size_t>(j)] = static_cast<float>(load(weight, 0, 0, 0, j));
  }
  return values;
}

// 1 / sqrt(mean(x^2) + eps). Squares are summed in double: those of large f32 values would overflow.
template <class T>
double inverse_rms(const Row<T>& x, std::int64_t D, double eps) {
  const double squares =
      sum_terms(D, [&](std::int64_t j) { return static_cast<double>(x[j]) * static_cast<double>(x[j]); });
  return 1.0 / std::sqrt(squares / static_cast<double>(D) + eps);
}

template <class T>
void norm_row(const Row<T>& x, const float* weight, const MutableRow<T>& y, std::int64_t D, double eps) {
  const double r = inverse_rms(x, D, eps);
  for (std::int64_t j = 0; j < D; ++j) {
    y.set(j, static_cast<float>(static_cast<double>(x[j]) * r * static_cast<double>(weight[j])));
  }
}

// With g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)); dweight gains dy * x * r.
template <class T>
void norm_backward_row(const Row<T>& dy, const Row<T>& x, const float* weight, const MutableRow<T>& dx, double* dweight,
                       std::int64_t D, double eps) {
  const double r = inverse_rms(x, D, eps);
  const double dot = sum_terms(D, [&](std::int64_t j) {
    return static_cast<double>(dy[j]) * static_cast<double>(weight[j]) * static_cast<double>(x[j]);
  });
  const double pull = r * r * dot / static_cast<double>(D);
  for (std::int64_t j = 0; j < D; ++j) {
    const double gradient = static_cast<double>(dy[j]), value = static_cast<double>(x[j]);
    dweight[j] += gradient * value * r;
    dx.set(j, static_cast<float>(r * (gradient * static_cast<double>(weight[j]) - value * pull)));
  }
}

}  // namespace

void rms_norm(View x, View weight, MutableView y, double eps) {
  check_arguments("rms_norm", x, weight, eps);
  check_writable("rms_norm", "y", y);
  check_shape("rms_norm", "y", y.shape, x.shape);
  check_dtype("rms_norm", "y", y.dtype, x.dtype);
  check_all_apart("rms_norm", {{"y", y, "x"}}, {{"x", x}, {"weight", weight}});
  if (x.dtype == DType::f64) return reference::rms_norm(x, weight, y, eps);

  const std::vector<float> weights = to_floats(weight);
  visit_f32_family(x.dtype, [&](auto element) {
    using T = decltype(element);
    for_each_row(row_count(x.shape), x.dim(),
                 [&](std::int64_t r) { norm_row(row_of<T>(x, r), weights.data(), row_of<T>(y, r), x.dim(), eps); });
  });
}

void rms_norm_backward(View dy, View x, View weight, MutableView dx, MutableView dweight, double eps) {
  check_arguments("rms_norm_backward", x, weight, eps);
  check_readable("rms_norm_backward", "dy", dy);
  check_writable("rms_norm_backward", "dx", dx);
  check_writable("rms_norm_backward", "dweight", dweight);
  check_shape("rms_norm_backward", "dy", dy.shape, x.shape);
  check_shape("rms_norm_backward", "dx", dx.shape, x.shape);
  check_shape("rms_norm_backward", "dweight", dweight.shape, weight.shape);
  check_dtype("rms_norm_backward", "dy", dy.dtype, x.dtype);
  check_dtype("rms_norm_backward", "dx", dx.dtype, x.dtype);
  check_all_apart("rms_norm_backward", {{"dx", dx, "dy"}, {"dweight", dweight}},
                  {{"dy", dy}, {"x", x}, {"weight", weight}});
  if (x.dtype == DType::f64) return reference::rms_norm_backward(dy, x, weight, dx, dweight, eps);

  const std::vector<float> weights = to_floats(weight);
  visit_f32_family(x.dtype, [&](auto element) {
    using T = decltype(element);
    const std::vector<double> sums = sum_rows(row_count(x.shape), x.dim(), [&](std::int64_t r, double* partial) {
      norm_backward_row(row_of<T>(dy, r), row_of<T>(x, r), weights.data(), row_of<T>(dx, r), partial, x.dim(), eps);
    });
    for (std::int64_t j = 0; j < x.dim(); ++j) store(dweight, 0, 0, 0, j, sums[static_cast<std::size_t>(j)]);
  });
}

}  // namespace attend
