// Rotary position embedding by its formula, in double, over views of any dtype.
#include "reference/rope.hpp"

#include <cmath>
#include <cstddef>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

void turn(const View& x, const MutableView& y, const RopeOptions& options, double direction) {
  const std::int64_t D = x.dim();
  const std::int64_t R = options.rotary_dim == 0 ? D : options.rotary_dim;
  if (x.batch() == 0 || x.heads() == 0 || x.length() == 0) return;
  const bool interleaved = options.style == RopeStyle::interleaved;
  const RopeTurns turns = rope_turns(R, options.theta, options.scaling);
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t position =
        options.positions.empty() ? options.first_position + i : options.positions[static_cast<std::size_t>(i)];
    for (std::int64_t p = 0; p < R / 2; ++p) {
      const double angle = static_cast<double>(position) * turns.per_position[static_cast<std::size_t>(p)];
      const double cos = turns.magnitude * std::cos(angle), sin = turns.magnitude * direction * std::sin(angle);
      const std::int64_t first = interleaved ? 2 * p : p;
      const std::int64_t second = interleaved ? 2 * p + 1 : p + R / 2;
      const double u = load(x, b, h, i, first), v = load(x, b, h, i, second);
      store(y, b, h, i, first, u * cos - v * sin);
      store(y, b, h, i, second, v * cos + u * sin);
    }
    for (std::int64_t j = R; j < D; ++j) store(y, b, h, i, j, load(x, b, h, i, j));
  });
}

}  // namespace

void rope(const View& x, const MutableView& y, const RopeOptions& options) {
  turn(x, y, options, 1.0);
}

void rope_backward(const View& dy, const MutableView& dx, const RopeOptions& options) {
  turn(dy, dx, options, -1.0);
}

}  // namespace attend::reference
