// What a lens shows of dense weights, in double.
#include "reference/lens.hpp"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <numeric>

namespace attend::reference {

using std::int64_t;

void pool_row(std::span<const double> weights, int64_t cells, double* mass, double* peak) {
  const int64_t N = std::ssize(weights);
  for (int64_t cell = 0; cell < cells; ++cell)
    for (int64_t j = cell * N / cells; j < (cell + 1) * N / cells; ++j) {
      const double w = weights[static_cast<std::size_t>(j)];
      mass[cell] += w;
      peak[cell] = std::max(peak[cell], w);
    }
}

void top_row(std::span<const double> weights, int64_t first, int64_t count, int64_t* keys, double* largest) {
  std::vector<int64_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto weight = [&](int64_t j) { return weights[static_cast<std::size_t>(j)]; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const std::weak_ordering heavier = std::weak_order(weight(b), weight(a));  // an order even where one is NaN
    return heavier != 0 ? heavier < 0 : a < b;
  });
  for (int64_t n = 0; n < count; ++n) {
    const bool there = n < std::ssize(order) && weight(order[static_cast<std::size_t>(n)]) > 0;
    keys[n] = there ? first + order[static_cast<std::size_t>(n)] : -1;
    largest[n] = there ? weight(order[static_cast<std::size_t>(n)]) : 0;
  }
}

void count_row(std::span<const double> weights, std::span<const char> visible, int64_t bins, int64_t* counts) {
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (visible[j] == 0) continue;
    int exponent = 0;
    std::frexp(weights[j], &exponent);  // in [2^(exponent - 1), 2^exponent)
    const int64_t bin = weights[j] == 0 ? bins : std::clamp<int64_t>(-exponent, 0, bins);
    ++counts[bin];
  }
}

}  // namespace attend::reference
