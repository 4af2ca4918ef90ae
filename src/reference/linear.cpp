// The matrix product of a projection by its formula, in double, over views of any dtype.
#include "reference/linear.hpp"

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

void linear(const View& x, const View& weight, const std::optional<View>& bias, const MutableView& y) {
  for_each_row(y.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t o = 0; o < y.dim(); ++o) {
      double sum = bias ? load(*bias, 0, 0, 0, o) : 0.0;
      for (std::int64_t j = 0; j < x.dim(); ++j) sum += load(x, b, h, i, j) * load(weight, 0, 0, o, j);
      store(y, b, h, i, o, sum);
    }
  });
}

void linear_backward(const View& dy, const View& x, const View& weight, const LinearGradients& gradients) {
  const std::int64_t in = weight.dim(), out = weight.length();
  if (gradients.dx) {  // dx = dy . W
    for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      for (std::int64_t j = 0; j < in; ++j) {
        double sum = 0;
        for (std::int64_t o = 0; o < out; ++o) sum += load(dy, b, h, i, o) * load(weight, 0, 0, o, j);
        store(*gradients.dx, b, h, i, j, sum);
      }
    });
  }
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t j = 0; gradients.dweight && j < in; ++j) {  // dW = dy^T . x
      double sum = 0;
      for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
        sum += load(dy, b, h, i, o) * load(x, b, h, i, j);
      });
      store(*gradients.dweight, 0, 0, o, j, sum);
    }
    if (gradients.dbias) {  // the column sums of dy
      double sum = 0;
      for_each_row(dy.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) { sum += load(dy, b, h, i, o); });
      store(*gradients.dbias, 0, 0, 0, o, sum);
    }
  }
}

}  // namespace attend::reference
