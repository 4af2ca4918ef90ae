// Sinusoids, learned positions, ALiBi's slopes and T5's relative bias.
#include "attend/positions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attend/add.hpp"
#include "base/check.hpp"
#include "base/elements.hpp"
#include "nn/layer_parts.hpp"
#include "ops/rows.hpp"
#include "reference/positions.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMostPosition = std::int64_t{1} << 53;  // beyond, a double no longer tells neighbours apart

void check_span(const char* op, const char* what, std::int64_t first, std::int64_t count) {
  if (first >= -kMostPosition && first <= kMostPosition - count) return;
  fail(op, std::string(what) + " is " + std::to_string(first) + ", expected " + std::to_string(count) +
               " positions from it to lie within +-2^53");
}

// The table and the rows it is added to, or whose gradient goes there.
void check_table(const char* op, const char* what, const View& table, const char* rows_name, const View& rows,
                 std::int64_t first_position) {
  check_shape(op, what, table.shape, {1, 1, table.length(), rows.dim()});
  if (first_position < 0 || first_position > table.length() - rows.length()) {
    fail(op, "first_position is " + std::to_string(first_position) + " and " + rows_name + " has " +
                 std::to_string(rows.length()) + " rows, expected them within the " + std::to_string(table.length()) +
                 " positions of " + what);
  }
}

// Pairs of sine and cosine, each pair slower than the one before.
double sinusoid(std::int64_t position, std::int64_t d, std::int64_t dim, double theta) {
  const double exponent = -static_cast<double>(d - d % 2) / static_cast<double>(dim);
  const double angle = static_cast<double>(position) * std::pow(theta, exponent);
  return d % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

void check_buckets(const char* op, const T5Buckets& buckets) {
  const std::int64_t least = buckets.bidirectional ? 4 : 2;
  constexpr std::int64_t kMost = 1 << 20;
  if (buckets.count < least || buckets.count > kMost || buckets.count % least != 0) {
    fail(op, "number of buckets is " + std::to_string(buckets.count) + ", expected a multiple of " +
                 std::to_string(least) + " up to " + std::to_string(kMost) +
                 (buckets.bidirectional ? " (half for each direction, half of that by logarithm)"
                                        : " (half of them by logarithm)"));
  }
  const std::int64_t exact = buckets.count / least;
  if (buckets.max_distance <= exact || buckets.max_distance > kMostPosition) {
    fail(op, "max_distance is " + std::to_string(buckets.max_distance) + ", expected more than " +
                 std::to_string(exact) + " (the distances that have a bucket of their own)");
  }
}

// The table [1, 1, buckets, H] and the values by distance [1, H, 1, any].
void check_t5(const char* op, const char* table_name, const View& table, const char* values_name, const View& values,
              std::int64_t first_distance, const T5Buckets& buckets) {
  check_buckets(op, buckets);
  check_shape(op, table_name, table.shape, {1, 1, buckets.count, values.heads()});
  check_shape(op, values_name, values.shape, {1, values.heads(), 1, values.dim()});
  check_span(op, "first_distance", first_distance, values.dim());
}

}  // namespace

void sinusoidal(MutableView out, const SinusoidalOptions& options) {
  const char* op = "sinusoidal";
  check_writable(op, "out", out);
  if (!(options.theta > 0) || !std::isfinite(options.theta)) {
    fail(op, "theta is " + std::to_string(options.theta) + ", expected a finite number above 0");
  }
  if (options.positions.empty()) {
    check_span(op, "first_position", options.first_position, out.length());
  } else {
    check_equal(op, "number of positions", static_cast<std::int64_t>(options.positions.size()), out.length(), "length");
  }
  if (row_count(out.shape) == 0) return;
  for_each_row(out.length(), out.dim(), [&](std::int64_t i) {
    const std::int64_t position =
        options.positions.empty() ? options.first_position + i : options.positions[static_cast<std::size_t>(i)];
    for (std::int64_t d = 0; d < out.dim(); ++d) {
      const double value = sinusoid(position, d, out.dim(), options.theta);
      for (std::int64_t b = 0; b < out.batch(); ++b) {
        for (std::int64_t h = 0; h < out.heads(); ++h) store(out, b, h, i, d, value);
      }
    }
  });
}

void add_positions(View x, View table, MutableView y, std::int64_t first_position) {
  const char* op = "add_positions";
  check_readable(op, "x", x);
  check_readable(op, "table", table);
  check_writable(op, "y", y);
  check_dtype(op, "table", table.dtype, x.dtype);
  check_dtype(op, "y", y.dtype, x.dtype);
  check_shape(op, "y", y.shape, x.shape);
  check_table(op, "table", table, "x", x, first_position);
  check_all_apart(op, {{"y", y, "x"}}, {{"x", x}, {"table", table}});
  if (x.dtype == DType::f64) return reference::add_positions(x, table, y, first_position);
  View rows = slice_length(table, first_position, x.length());
  rows.shape = x.shape;
  rows.strides[0] = rows.strides[1] = 0;
  add(x, rows, y);
}

void add_positions_backward(View dy, MutableView dtable, std::int64_t first_position) {
  const char* op = "add_positions_backward";
  check_readable(op, "dy", dy);
  check_writable(op, "dtable", dtable);
  check_table(op, "dtable", dtable, "dy", dy, first_position);
  check_all_apart(op, {{"dtable", dtable}}, {{"dy", dy}});
  const std::int64_t D = dtable.dim(), rows = row_count(dy.shape) == 0 ? 0 : dy.batch() * dy.heads();
  for_each_row(D == 0 ? 0 : dtable.length(), D, [&](std::int64_t p) {
    const std::int64_t i = p - first_position;
    const bool stood = i >= 0 && i < dy.length();
    for (std::int64_t d = 0; d < D; ++d) {
      double sum = 0;
      for (std::int64_t r = 0; stood && r < rows; ++r) sum += load(dy, r / dy.heads(), r % dy.heads(), i, d);
      store(dtable, 0, 0, p, d, sum);
    }
  });
}

Tensor alibi_slopes(std::int64_t heads) {
  constexpr std::int64_t kMost = 1 << 20;
  if (heads < 1 || heads > kMost) {
    fail("alibi_slopes", "heads is " + std::to_string(heads) + ", expected 1 to " + std::to_string(kMost));
  }
  std::int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  Tensor slopes(DType::f32, {1, heads, 1, 1});
  for (std::int64_t h = 0; h < heads; ++h) {
    const double steps = h < power ? static_cast<double>(h + 1) : static_cast<double>(h - power) + 0.5;
    slopes.data<float>()[h] = static_cast<float>(std::exp2(-8.0 * steps / static_cast<double>(power)));
  }
  return slopes;
}

std::int64_t t5_bucket(std::int64_t distance, const T5Buckets& buckets) {
  check_buckets("t5_bucket", buckets);
  const std::int64_t count = buckets.bidirectional ? buckets.count / 2 : buckets.count, exact = count / 2;
  const std::int64_t later = buckets.bidirectional && distance > 0 ? count : 0;
  // A query looks back, unless both ways count.
  const std::int64_t away = distance > 0 ? (buckets.bidirectional ? distance : 0)
                                         : -std::max(distance, -std::numeric_limits<std::int64_t>::max());
  if (away < exact) return later + away;
  // In f32, as the models were trained with: at the borders one bit decides.
  const float share =
      std::log(static_cast<float>(away) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact)));
  const auto grown = static_cast<std::int64_t>(share * static_cast<float>(count - exact));
  return later + std::min(exact + grown, count - 1);
}

void t5_bias(View table, MutableView out, std::int64_t first_distance, const T5Buckets& buckets) {
  const char* op = "t5_bias";
  check_readable(op, "table", table);
  check_writable(op, "out", out);
  check_t5(op, "table", table, "out", out, first_distance, buckets);
  check_all_apart(op, {{"out", out}}, {{"table", table}});
  for (std::int64_t x = 0; out.heads() > 0 && x < out.dim(); ++x) {
    const std::int64_t bucket = t5_bucket(first_distance + x, buckets);
    for (std::int64_t h = 0; h < out.heads(); ++h) store(out, 0, h, 0, x, load(table, 0, 0, bucket, h));
  }
}

void t5_bias_backward(View dout, MutableView dtable, std::int64_t first_distance, const T5Buckets& buckets) {
  const char* op = "t5_bias_backward";
  check_readable(op, "dout", dout);
  check_writable(op, "dtable", dtable);
  check_t5(op, "dtable", dtable, "dout", dout, first_distance, buckets);
  check_all_apart(op, {{"dtable", dtable}}, {{"dout", dout}});
  const std::int64_t H = dtable.dim();
  std::vector<double> sums(static_cast<std::size_t>(dtable.length() * H));
  for (std::int64_t x = 0; H > 0 && x < dout.dim(); ++x) {
    double* to = sums.data() + t5_bucket(first_distance + x, buckets) * H;
    for (std::int64_t h = 0; h < H; ++h) to[h] += load(dout, 0, h, 0, x);
  }
  for (std::int64_t n = 0; n < dtable.length() * H; ++n)
    store(dtable, 0, 0, n / H, n % H, sums[static_cast<std::size_t>(n)]);
}

}  // namespace attend
