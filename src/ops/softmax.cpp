// Softmax over the last dimension, and its gradient.
#include "attend/softmax.hpp"

#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "ops/rows.hpp"
#include "reference/softmax.hpp"

namespace attend {
namespace {

template <class T>
void softmax_row(const Row<T>& x, const MutableRow<T>& y, std::int64_t D) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  float max = kNothing;
  for (std::int64_t j = 0; j < D; ++j) {
    const float value = x[j];
    if (value > max || std::isnan(value)) max = value;  // a NaN stays: nothing is greater
  }
  if (max == kNothing) {
    for (std::int64_t j = 0; j < D; ++j) y.set(j, 0.0F);
    return;
  }
  // exp is made twice, so that y may be x and no row needs memory of its own.
  const double sum = sum_terms(D, [&](std::int64_t j) { return static_cast<double>(std::exp(x[j] - max)); });
  const double scale = 1.0 / sum;
  for (std::int64_t j = 0; j < D; ++j) {
    y.set(j, static_cast<float>(static_cast<double>(std::exp(x[j] - max)) * scale));
  }
}

template <class T>
void softmax_backward_row(const Row<T>& dy, const Row<T>& y, const MutableRow<T>& dx, std::int64_t D) {
  const double sum =
      sum_terms(D, [&](std::int64_t j) { return static_cast<double>(y[j]) * static_cast<double>(dy[j]); });
  for (std::int64_t j = 0; j < D; ++j) {
    dx.set(j, static_cast<float>(static_cast<double>(y[j]) * (static_cast<double>(dy[j]) - sum)));
  }
}

}  // namespace

void softmax(View x, MutableView y) {
  check_readable("softmax", "x", x);
  check_writable("softmax", "y", y);
  check_shape("softmax", "y", y.shape, x.shape);
  check_dtype("softmax", "y", y.dtype, x.dtype);
  check_all_apart("softmax", {{"y", y, "x"}}, {{"x", x}});
  if (x.dtype == DType::f64) return reference::softmax(x, y);

  visit_f32_family(x.dtype, [&](auto element) {
    using T = decltype(element);
    for_each_row(row_count(x.shape), x.dim(),
                 [&](std::int64_t r) { softmax_row(row_of<T>(x, r), row_of<T>(y, r), x.dim()); });
  });
}

void softmax_backward(View dy, View y, MutableView dx) {
  check_readable("softmax_backward", "y", y);
  check_readable("softmax_backward", "dy", dy);
  check_writable("softmax_backward", "dx", dx);
  check_shape("softmax_backward", "dy", dy.shape, y.shape);
  check_shape("softmax_backward", "dx", dx.shape, y.shape);
  check_dtype("softmax_backward", "dy", dy.dtype, y.dtype);
  check_dtype("softmax_backward", "dx", dx.dtype, y.dtype);
  check_all_apart("softmax_backward", {{"dx", dx, "dy"}}, {{"dy", dy}, {"y", y}});
  if (y.dtype == DType::f64) return reference::softmax_backward(dy, y, dx);

  visit_f32_family(y.dtype, [&](auto element) {
    using T = decltype(element);
    for_each_row(row_count(y.shape), y.dim(), [&](std::int64_t r) {
      softmax_backward_row(row_of<T>(dy, r), row_of<T>(y, r), row_of<T>(dx, r), y.dim());
    });
  });
}

}  // namespace attend
