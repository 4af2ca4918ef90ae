// Wilson's interval of a rate.
#pragma once

#include <algorithm>
#include <cmath>

namespace attend::llm {

struct Interval {
  double low = 0, high = 1;
};

// The z beyond which `tail` of a normal distribution lies, by bisection.
inline double normal_quantile_above(double tail) {
  double low = 0, high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  return low;
}

// Of `rate` over n cases, which may be a fraction; wrong with probability `miss` on both sides together.
inline Interval wilson_interval(double rate, double n, double miss) {
  if (!(n > 0)) return {};
  const double z = normal_quantile_above(miss / 2), zz = z * z / n;
  const double middle = (rate + zz / 2) / (1 + zz);
  const double half = z * std::sqrt(rate * (1 - rate) / n + zz / (4 * n)) / (1 + zz);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

}  // namespace attend::llm
