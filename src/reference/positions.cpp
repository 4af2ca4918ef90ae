// Positions by their formulas, in double, over views of any dtype.
#include "reference/positions.hpp"

#include <cmath>
#include <cstddef>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

double sinusoid(std::int64_t position, std::int64_t d, std::int64_t dim, double theta) {
  const auto pair = static_cast<double>(d - d % 2);
  const double angle = static_cast<double>(position) * std::pow(theta, -pair / static_cast<double>(dim));
  return d % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

void sinusoidal(const MutableView& out, const SinusoidalOptions& options) {
  for_each_row(out.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t position =
        options.positions.empty() ? options.first_position + i : options.positions[static_cast<std::size_t>(i)];
    for (std::int64_t d = 0; d < out.dim(); ++d) {
      store(out, b, h, i, d, sinusoid(position, d, out.dim(), options.theta));
    }
  });
}

void add_positions(const View& x, const View& table, const MutableView& y, std::int64_t first_position) {
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < x.dim(); ++d) {
      store(y, b, h, i, d, load(x, b, h, i, d) + load(table, 0, 0, first_position + i, d));
    }
  });
}

void add_positions_backward(const View& dy, const MutableView& dtable, std::int64_t first_position) {
  for_each_row(dtable.shape, [&](std::int64_t, std::int64_t, std::int64_t p) {
    const std::int64_t i = p - first_position;
    for (std::int64_t d = 0; d < dtable.dim(); ++d) {
      double sum = 0;
      for (std::int64_t b = 0; b < dy.batch() && i >= 0 && i < dy.length(); ++b) {
        for (std::int64_t h = 0; h < dy.heads(); ++h) sum += load(dy, b, h, i, d);
      }
      store(dtable, 0, 0, p, d, sum);
    }
  });
}

void t5_bias(const View& table, const MutableView& out, std::int64_t first_distance, const T5Buckets& buckets) {
  for_each_row(out.shape, [&](std::int64_t, std::int64_t h, std::int64_t) {
    for (std::int64_t x = 0; x < out.dim(); ++x)
      store(out, 0, h, 0, x, load(table, 0, 0, t5_bucket(first_distance + x, buckets), h));
  });
}

void t5_bias_backward(const View& dout, const MutableView& dtable, std::int64_t first_distance,
                      const T5Buckets& buckets) {
  for_each_row(dtable.shape, [&](std::int64_t, std::int64_t, std::int64_t bucket) {
    for (std::int64_t h = 0; h < dtable.dim(); ++h) {
      double sum = 0;
      for (std::int64_t x = 0; x < dout.dim(); ++x)
        if (t5_bucket(first_distance + x, buckets) == bucket) sum += load(dout, 0, h, 0, x);
      store(dtable, 0, 0, bucket, h, sum);
    }
  });
}

}  // namespace attend::reference
