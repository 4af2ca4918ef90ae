// Root-mean-square normalisation by its formula, in double, over views of any dtype.
#include "reference/rms_norm.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

// 1 / sqrt(mean(x^2) + eps)
double inverse_rms(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, double eps) {
  double squares = 0;
  for (std::int64_t j = 0; j < x.dim(); ++j) squares += load(x, b, h, i, j) * load(x, b, h, i, j);
  return 1.0 / std::sqrt(squares / static_cast<double>(x.dim()) + eps);
}

}  // namespace

void rms_norm(const View& x, const View& weight, const MutableView& y, double eps) {
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const double r = inverse_rms(x, b, h, i, eps);
    for (std::int64_t j = 0; j < x.dim(); ++j) {
      store(y, b, h, i, j, load(x, b, h, i, j) * r * load(weight, 0, 0, 0, j));
    }
  });
}

// With g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)), dweight = sum over rows of dy * x * r.
void rms_norm_backward(const View& dy, const View& x, const View& weight, const MutableView& dx,
                       const MutableView& dweight, double eps) {
  const std::int64_t D = x.dim();
  std::vector<double> sums(static_cast<std::size_t>(D));
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const double r = inverse_rms(x, b, h, i, eps);
    double dot = 0;
    for (std::int64_t j = 0; j < D; ++j) {
      dot += load(dy, b, h, i, j) * load(weight, 0, 0, 0, j) * load(x, b, h, i, j);
      sums[static_cast<std::size_t>(j)] += load(dy, b, h, i, j) * load(x, b, h, i, j) * r;
    }
    for (std::int64_t j = 0; j < D; ++j) {
      const double g = load(dy, b, h, i, j) * load(weight, 0, 0, 0, j);
      store(dx, b, h, i, j, r * (g - load(x, b, h, i, j) * r * r * dot / static_cast<double>(D)));
    }
  });
  for (std::int64_t j = 0; j < D; ++j) store(dweight, 0, 0, 0, j, sums[static_cast<std::size_t>(j)]);
}

}  // namespace attend::reference
