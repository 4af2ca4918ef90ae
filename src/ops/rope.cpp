// Rotary position embedding, and its gradient: the turn backwards.
#include "attend/rope.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "ops/rows.hpp"
#include "reference/rope.hpp"

namespace attend {
namespace {

struct Turn {
  float cos, sin;
};

void check_arguments(const std::string& op, const char* in, const View& x, const char* out, const MutableView& y,
                     const RopeOptions& options) {
  check_readable(op, in, x);
  check_writable(op, out, y);
  check_shape(op, out, y.shape, x.shape);
  check_dtype(op, out, y.dtype, x.dtype);
  check_all_apart(op, {{out, y, in}}, {{in, x}});
  if (options.style != RopeStyle::half_split && options.style != RopeStyle::interleaved) {
    fail(op, "style is " + std::to_string(static_cast<int>(options.style)) + ", expected half_split or interleaved");
  }
  const std::int64_t R = options.rotary_dim == 0 ? x.dim() : options.rotary_dim;
  if (R < 0 || R > x.dim() || R % 2 != 0) {
    fail(op, "rotary_dim is " + std::to_string(R) + ", expected an even number from 0 to " + std::to_string(x.dim()) +
                 " (dim of " + in + ")");
  }
  if (!options.positions.empty()) {
    check_equal(op, "number of positions", static_cast<std::int64_t>(options.positions.size()), x.length(), "length");
  } else if (options.first_position > std::numeric_limits<std::int64_t>::max() - x.length()) {
    fail(op, "first_position is " + std::to_string(options.first_position) + ", expected " +
                 std::to_string(x.length()) + " positions from it to fit in 63 bits");
  }
  rope_turns(2, options.theta, options.scaling);  // refuses what makes no sense
}

// The turns of every position, [length, pairs], shared by all batches and heads. Angles are made in double: a position
// far out would otherwise lose the fraction of its turn.
std::vector<Turn> make_turns(std::int64_t length, const RopeTurns& speeds, const RopeOptions& options,
                             double direction) {
  const std::int64_t pairs = std::ssize(speeds.per_position);
  std::vector<Turn> turns(static_cast<std::size_t>(length * pairs));
  for_each_row(length, 2 * pairs, [&](std::int64_t row) {
    const std::int64_t position =
        options.positions.empty() ? options.first_position + row : options.positions[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * speeds.per_position[static_cast<std::size_t>(i)];
      turns[static_cast<std::size_t>(row * pairs + i)] = {
          static_cast<float>(speeds.magnitude * std::cos(angle)),
          static_cast<float>(speeds.magnitude * direction * std::sin(angle))};
    }
  });
  return turns;
}

template <class T>
void turn_row(const Row<T>& x, const MutableRow<T>& y, const Turn* turns, std::int64_t D, std::int64_t R,
              RopeStyle style) {
  const bool interleaved = style == RopeStyle::interleaved;
  const std::int64_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : R / 2;
  for (std::int64_t i = 0; i < R / 2; ++i) {
    const std::int64_t first = i * step, second = first + partner;
    const float u = x[first], v = x[second];
    y.set(first, u * turns[i].cos - v * turns[i].sin);
    y.set(second, v * turns[i].cos + u * turns[i].sin);
  }
  for (std::int64_t j = R; j < D; ++j) y.set(j, x[j]);
}

void turn_rows(const View& x, const MutableView& y, const RopeOptions& options, double direction) {
  const std::int64_t D = x.dim(), R = options.rotary_dim == 0 ? D : options.rotary_dim;
  const std::int64_t rows = row_count(x.shape);
  if (rows == 0) return;
  const std::vector<Turn> turns =
      make_turns(x.length(), rope_turns(R, options.theta, options.scaling), options, direction);
  visit_f32_family(x.dtype, [&](auto element) {
    using T = decltype(element);
    for_each_row(rows, D, [&](std::int64_t r) {
      turn_row(row_of<T>(x, r), row_of<T>(y, r), turns.data() + r % x.length() * (R / 2), D, R, options.style);
    });
  });
}

}  // namespace

void rope(View x, MutableView y, const RopeOptions& options) {
  check_arguments("rope", "x", x, "y", y, options);
  if (x.dtype == DType::f64) return reference::rope(x, y, options);
  turn_rows(x, y, options, 1.0);
}

void rope_backward(View dy, MutableView dx, const RopeOptions& options) {
  check_arguments("rope_backward", "dy", dy, "dx", dx, options);
  if (dy.dtype == DType::f64) return reference::rope_backward(dy, dx, options);
  turn_rows(dy, dx, options, -1.0);
}

}  // namespace attend
