// Layer normalisation by its formula, in double, over views of any dtype.
#include "reference/layer_norm.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

// A row with mean 0 and variance 1 (but for eps), and 1 / sqrt(variance + eps).
struct Normed {
  Normed(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, double eps) {
    const auto D = static_cast<double>(x.dim());
    double mean = 0, squares = 0;
    for (std::int64_t j = 0; j < x.dim(); ++j) mean += load(x, b, h, i, j) / D;
    for (std::int64_t j = 0; j < x.dim(); ++j) squares += std::pow(load(x, b, h, i, j) - mean, 2);
    r = 1 / std::sqrt(squares / D + eps);
    for (std::int64_t j = 0; j < x.dim(); ++j) z.push_back((load(x, b, h, i, j) - mean) * r);
  }

  double r;
  std::vector<double> z;
};

}  // namespace

void layer_norm(const View& x, const View& weight, const std::optional<View>& bias, const MutableView& y, double eps) {
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Normed row(x, b, h, i, eps);
    for (std::int64_t j = 0; j < x.dim(); ++j) {
      const double shift = bias ? load(*bias, 0, 0, 0, j) : 0;
      store(y, b, h, i, j, row.z[static_cast<std::size_t>(j)] * load(weight, 0, 0, 0, j) + shift);
    }
  });
}

// With g = dy * weight: dx = r * (g - mean(g) - z * mean(g * z)), dweight = sum over rows of dy * z, dbias of dy.
void layer_norm_backward(const View& dy, const View& x, const View& weight, const LayerNormGradients& gradients,
                         double eps) {
  const std::int64_t D = x.dim();
  std::vector<double> dweight(static_cast<std::size_t>(D)), dbias(static_cast<std::size_t>(D));
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Normed row(x, b, h, i, eps);
    double shift = 0, pull = 0;
    for (std::int64_t j = 0; j < D; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double given = load(dy, b, h, i, j), g = given * load(weight, 0, 0, 0, j);
      shift += g / static_cast<double>(D);
      pull += g * row.z[at] / static_cast<double>(D);
      dweight[at] += given * row.z[at];
      dbias[at] += given;
    }
    for (std::int64_t j = 0; j < D; ++j) {
      const double g = load(dy, b, h, i, j) * load(weight, 0, 0, 0, j);
      store(gradients.dx, b, h, i, j, row.r * (g - shift - row.z[static_cast<std::size_t>(j)] * pull));
    }
  });
  for (std::int64_t j = 0; j < D; ++j) {
    store(gradients.dweight, 0, 0, 0, j, dweight[static_cast<std::size_t>(j)]);
    if (gradients.dbias) store(*gradients.dbias, 0, 0, 0, j, dbias[static_cast<std::size_t>(j)]);
  }
}

}  // namespace attend::reference
