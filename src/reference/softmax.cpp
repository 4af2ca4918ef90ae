// Softmax by its formula, in double, over views of any dtype.
#include "reference/softmax.hpp"

#include <cmath>
#include <limits>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

void softmax(const View& x, const MutableView& y) {
  const std::int64_t D = x.dim();
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    double max = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < D; ++j) {
      const double value = load(x, b, h, i, j);
      if (value > max || std::isnan(value)) max = value;  // a NaN stays: nothing is greater
    }
    const bool nothing = max == -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (std::int64_t j = 0; j < D; ++j) sum += std::exp(load(x, b, h, i, j) - max);
    for (std::int64_t j = 0; j < D; ++j) {
      store(y, b, h, i, j, nothing ? 0.0 : std::exp(load(x, b, h, i, j) - max) / sum);
    }
  });
}

void softmax_backward(const View& dy, const View& y, const MutableView& dx) {
  const std::int64_t D = y.dim();
  for_each_row(y.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    double sum = 0;
    for (std::int64_t j = 0; j < D; ++j) sum += load(y, b, h, i, j) * load(dy, b, h, i, j);
    for (std::int64_t j = 0; j < D; ++j) {
      store(dx, b, h, i, j, load(y, b, h, i, j) * (load(dy, b, h, i, j) - sum));
    }
  });
}

}  // namespace attend::reference
