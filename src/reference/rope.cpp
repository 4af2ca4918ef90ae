// Rotary position embedding by its formula, in double, over views of any dtype.
#include "reference/rope.hpp"

#include <cmath>
#include <cstddef>
#include <span>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

// Row i stands at positions[i], or at first_position + i.
void rotate(const View& x, const MutableView& y, const RopeFrequencies& frequencies, RopeStyle style,
            std::span<const std::int64_t> positions, std::int64_t first_position, double direction) {
  const std::int64_t D = x.dim(), R = 2 * std::ssize(frequencies.per_position);
  const bool interleaved = style == RopeStyle::interleaved;
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t position = positions.empty() ? first_position + i : positions[static_cast<std::size_t>(i)];
    for (std::int64_t p = 0; p < R / 2; ++p) {
      const double angle = static_cast<double>(position) * frequencies.per_position[static_cast<std::size_t>(p)];
      const double cos = frequencies.magnitude * std::cos(angle),
                   sin = frequencies.magnitude * direction * std::sin(angle);
      const std::int64_t first = interleaved ? 2 * p : p;
      const std::int64_t second = interleaved ? 2 * p + 1 : p + R / 2;
      const double u = load(x, b, h, i, first), v = load(x, b, h, i, second);
      store(y, b, h, i, first, u * cos - v * sin);
      store(y, b, h, i, second, v * cos + u * sin);
    }
    for (std::int64_t j = R; j < D; ++j) store(y, b, h, i, j, load(x, b, h, i, j));
  });
}
void rotate(const View& x, const MutableView& y, const RopeOptions& o, double direction) {
  rotate(x, y, rope_frequencies(o.rotary_dim == 0 ? x.dim() : o.rotary_dim, o.theta, o.scaling), o.style, o.positions,
         o.first_position, direction);
}
void rotate(const View& x, const MutableView& y, const RopeTable& table, std::int64_t first, double direction) {
  rotate(x, y, table.frequencies(), table.style(), table.positions().subspan(static_cast<std::size_t>(first)), 0,
         direction);
}

}  // namespace

void rope(const View& x, const MutableView& y, const RopeOptions& options) {
  rotate(x, y, options, 1.0);
}
void rope_backward(const View& dy, const MutableView& dx, const RopeOptions& options) {
  rotate(dy, dx, options, -1.0);
}
void rope(const View& x, const MutableView& y, const RopeTable& table, std::int64_t first) {
  rotate(x, y, table, first, 1.0);
}
void rope_backward(const View& dy, const MutableView& dx, const RopeTable& table, std::int64_t first) {
  rotate(dy, dx, table, first, -1.0);
}

}  // namespace attend::reference
