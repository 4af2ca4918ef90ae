// Rotary position embedding, and its gradient: the rotation backwards.
#include "attend/rope.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ops/float_rows.hpp"
#include "reference/rope.hpp"

namespace attend {
namespace {

void check_style(const char* op, RopeStyle style) {
  if (style != RopeStyle::half_split && style != RopeStyle::interleaved)
    fail(op, "style is " + std::to_string(static_cast<int>(style)) + ", expected half_split or interleaved");
}

// Rows of `dim` numbers at `length` positions, `what` by name.
void check_options(const char* op, const char* what, std::int64_t dim, std::int64_t length,
                   const RopeOptions& options) {
  check_style(op, options.style);
  const std::int64_t R = options.rotary_dim == 0 ? dim : options.rotary_dim;
  if (R < 0 || R > dim || R % 2 != 0) {
    fail(op, "rotary_dim is " + std::to_string(R) + ", expected an even number from 0 to " + std::to_string(dim) +
                 " (dim of " + what + ")");
  }
  if (!options.positions.empty()) {
    check_equal(op, "number of positions", static_cast<std::int64_t>(options.positions.size()), length, "length");
  } else if (options.first_position > std::numeric_limits<std::int64_t>::max() - length) {
    fail(op, "first_position is " + std::to_string(options.first_position) + ", expected " + std::to_string(length) +
                 " positions from it to fit in 63 bits");
  }
  rope_frequencies(2, options.theta, options.scaling);  // refuses what makes no sense
}

void check_rows(const char* op, const char* in, const View& x, const char* out, const MutableView& y) {
  check_readable(op, in, x);
  check_writable(op, out, y);
  check_shape(op, out, y.shape, x.shape);
  check_dtype(op, out, y.dtype, x.dtype);
  check_all_apart(op, {{out, y, in}}, {{in, x}});
}

void check_table(const char* op, const char* in, const View& x, const RopeTable& table, std::int64_t first) {
  if (first < 0 || first > table.length() || x.length() > table.length() - first) {
    fail(op, std::string(in) + " has " + std::to_string(x.length()) + " rows from " + std::to_string(first) +
                 " on, expected rows 0 to " + std::to_string(table.length()) + " of the table");
  }
  if (2 * table.pairs() > x.dim()) {
    fail(op, std::string(in) + " dim is " + std::to_string(x.dim()) + ", expected at least " +
                 std::to_string(2 * table.pairs()) + " (the table rotates as many)");
  }
}

void rotate_rows(View x, MutableView y, const RopeTable& table, std::int64_t first, bool backward) {
  const std::int64_t D = x.dim(), P = table.pairs(), rows = row_count(x.shape);
  if (rows == 0) return;
  const bool interleaved = table.style() == RopeStyle::interleaved;
  const bool by_position = walk_in_order(x, y);  // the angles are then read once for all heads
  const FloatRows from(x);
  const MutableFloatRows to(y);
  const bool no_gaps = by_position && from.no_gaps() && to.no_gaps();
  const RowBuffers buffers(1, kRowsTogether * D);
  for_each_chunk(rows, D, buffers.workers(), [&](std::int64_t begin, std::int64_t end, int worker) {
    for_rows_together(x.shape, no_gaps, begin, end, [&](std::int64_t r, std::int64_t count) {
      const std::int64_t position = by_position ? r / x.shape[2] % x.shape[1] : r % x.shape[2];
      const std::int64_t at = (first + position) * P;
      float* buffer = buffers.of(worker, 0);
      const float* numbers = from.read(r, 0, count * D, buffer);
      float* place = to.place(r, 0, buffer);
      kernels().rows.rope({numbers, place, count, D}, table.cosines() + at, table.sines() + at, P, interleaved,
                          backward);
      to.written(r, 0, count * D, place);
    });
  });
}

}  // namespace

RopeTable::RopeTable(std::int64_t dim, std::int64_t length, const RopeOptions& options) {
  const char* op = "RopeTable";
  if (dim < 0) fail(op, "dim is " + std::to_string(dim) + ", expected at least 0");
  if (length < 0) fail(op, "length is " + std::to_string(length) + ", expected at least 0");
  check_options(op, "the rows", dim, length, options);
  std::vector<std::int64_t> positions = options.positions;
  if (positions.empty()) {
    positions.resize(static_cast<std::size_t>(length));
    std::iota(positions.begin(), positions.end(), options.first_position);
  }
  fill(rope_frequencies(options.rotary_dim == 0 ? dim : options.rotary_dim, options.theta, options.scaling),
       options.style, positions);
}

RopeTable::RopeTable(const RopeFrequencies& frequencies, RopeStyle style, std::span<const std::int64_t> positions) {
  check_style("RopeTable", style);
  fill(frequencies, style, positions);
}

// Angles are made in double: a position far out would otherwise lose the fraction of its rotation.
void RopeTable::fill(const RopeFrequencies& frequencies, RopeStyle style, std::span<const std::int64_t> positions) {
  style_ = style;
  frequencies_ = frequencies;
  positions_.assign(positions.begin(), positions.end());
  cosines_.resize(positions.size() * frequencies.per_position.size());
  sines_.resize(cosines_.size());
  for_each_row(length(), 2 * pairs(), [&](std::int64_t row) {
    const auto position = static_cast<double>(positions_[static_cast<std::size_t>(row)]);
    for (std::int64_t i = 0; i < pairs(); ++i) {
      const double angle = position * frequencies_.per_position[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(row * pairs() + i);
      cosines_[at] = static_cast<float>(frequencies_.magnitude * std::cos(angle));
      sines_[at] = static_cast<float>(frequencies_.magnitude * std::sin(angle));
    }
  });
}

void rope(View x, MutableView y, const RopeTable& table, std::int64_t first) {
  check_rows("rope", "x", x, "y", y);
  check_table("rope", "x", x, table, first);
  if (x.dtype == DType::f64) return reference::rope(x, y, table, first);
  rotate_rows(x, y, table, first, false);
}

void rope_backward(View dy, MutableView dx, const RopeTable& table, std::int64_t first) {
  check_rows("rope_backward", "dy", dy, "dx", dx);
  check_table("rope_backward", "dy", dy, table, first);
  if (dy.dtype == DType::f64) return reference::rope_backward(dy, dx, table, first);
  rotate_rows(dy, dx, table, first, true);
}

void rope(View x, MutableView y, const RopeOptions& options) {
  check_rows("rope", "x", x, "y", y);
  check_options("rope", "x", x.dim(), x.length(), options);
  if (row_count(x.shape) == 0) return;
  if (x.dtype == DType::f64) return reference::rope(x, y, options);
  rotate_rows(x, y, RopeTable(x.dim(), x.length(), options), 0, false);
}

void rope_backward(View dy, MutableView dx, const RopeOptions& options) {
  check_rows("rope_backward", "dy", dy, "dx", dx);
  check_options("rope_backward", "dy", dy.dim(), dy.length(), options);
  if (row_count(dy.shape) == 0) return;
  if (dy.dtype == DType::f64) return reference::rope_backward(dy, dx, options);
  rotate_rows(dy, dx, RopeTable(dy.dim(), dy.length(), options), 0, true);
}

}  // namespace attend
