// Activations by their formulas, in double, over views of any dtype.
#include "reference/activation.hpp"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kCubic = 0.044715;

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}
double normal_below(double x) {
  return std::erfc(-x / std::numbers::sqrt2) / 2;
}
double normal_density(double x) {
  return std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}
// What the logistic function of gelu_tanh is given, and its derivative.
const double kTwiceRoot = 2 * std::sqrt(2 / std::numbers::pi);
double inside(double x) {
  return kTwiceRoot * (x + kCubic * x * x * x);
}
double inside_slope(double x) {
  return kTwiceRoot * (1 + 3 * kCubic * x * x);
}

template <class F>
void for_each_element(const Shape& shape, const F& f) {
  for_each_row(shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < shape[3]; ++d) f(b, h, i, d);
  });
}

}  // namespace

double activation(Activation kind, double x) {
  if (x == -kInfinity) return 0;
  if (kind == Activation::silu) return x * logistic(x);
  if (kind == Activation::gelu) return x * normal_below(x);
  if (kind == Activation::gelu_tanh) return x * logistic(inside(x));
  return x < 0 ? 0 : x;
}

double activation_slope(Activation kind, double x) {
  if (std::isinf(x)) return x < 0 ? 0 : 1;
  if (kind == Activation::silu) return logistic(x) * (1 + x * logistic(-x));
  if (kind == Activation::gelu) return normal_below(x) + x * normal_density(x);
  if (kind == Activation::gelu_tanh) return logistic(inside(x)) * (1 + x * inside_slope(x) * logistic(-inside(x)));
  return x > 0 ? 1 : 0;
}

void activation(Activation kind, const View& gate, const std::optional<View>& up, const MutableView& y) {
  for_each_element(gate.shape, [&](auto b, auto h, auto i, auto d) {
    const double factor = up ? load(*up, b, h, i, d) : 1;
    store(y, b, h, i, d, activation(kind, load(gate, b, h, i, d)) * factor);
  });
}

void activation_backward(Activation kind, const View& dy, const View& gate, const std::optional<View>& up,
                         const MutableView& dgate, const std::optional<MutableView>& dup) {
  for_each_element(gate.shape, [&](auto b, auto h, auto i, auto d) {
    const double given = load(dy, b, h, i, d), x = load(gate, b, h, i, d);
    const double factor = up ? load(*up, b, h, i, d) : 1;
    store(dgate, b, h, i, d, given * factor * activation_slope(kind, x));
    if (dup) store(*dup, b, h, i, d, given * activation(kind, x));
  });
}

}  // namespace attend::reference
