// Rotary position embedding by its formula, in double, over views of any dtype.
#include "reference/rope.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>
#include <span>
#include <string>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

void check_positive(const char* what, double got) {
  if (!(got > 0) || !std::isfinite(got)) {
    fail("rope", std::string(what) + " is " + std::to_string(got) + ", expected a finite number above 0");
  }
}

void check_scaling(double theta, const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::none) return;
  if (s.kind < RopeScaling::Kind::none || s.kind > RopeScaling::Kind::yarn) {
    fail("rope", "scaling is " + std::to_string(static_cast<int>(s.kind)) + ", expected none, linear, llama3 or yarn");
  }
  check_positive("scaling factor", s.factor);
  if (s.kind == RopeScaling::Kind::linear) return;
  if (s.original_length < 1) {
    fail("rope", "scaling original_length is " + std::to_string(s.original_length) +
                     ", expected the length the model was trained with");
  }
  if (s.kind == RopeScaling::Kind::llama3) {
    check_positive("scaling low_frequency", s.low_frequency);
    if (!(s.high_frequency > s.low_frequency) || !std::isfinite(s.high_frequency)) {
      fail("rope", "scaling high_frequency is " + std::to_string(s.high_frequency) + ", expected more than " +
                       std::to_string(s.low_frequency) + " (low_frequency)");
    }
    return;
  }
  if (theta <= 1)
    fail("rope", "theta is " + std::to_string(theta) + ", expected more than 1 (YaRN takes its logarithm)");
  check_positive("scaling beta_fast", s.beta_fast);
  check_positive("scaling beta_slow", s.beta_slow);
  for (const double value : {s.attention_factor.value_or(0), s.mscale, s.mscale_all_dim}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail("rope", "scaling attention_factor, mscale or mscale_all_dim is " + std::to_string(value) +
                       ", expected a finite number from 0 up");
    }
  }
}

double llama3_turn(double turn, const RopeScaling& s) {
  const double wave = kTwoPi / turn, length = static_cast<double>(s.original_length);
  if (wave > length / s.low_frequency) return turn / s.factor;
  if (wave < length / s.high_frequency) return turn;
  const double smooth = (length / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return (1 - smooth) * turn / s.factor + smooth * turn;
}

// The pairs between which YaRN's ramp rises.
struct Ramp {
  Ramp(double R, double theta, const RopeScaling& s) {
    // The pair that makes `rotations` turns over the length the model was trained with.
    const auto pair_of = [&](double rotations) {
      return R * std::log(static_cast<double>(s.original_length) / (rotations * kTwoPi)) / (2 * std::log(theta));
    };
    low = pair_of(s.beta_fast);
    high = pair_of(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, R - 1);
    if (low == high) high += 0.001;
  }
  double operator()(double pair) const { return std::clamp((pair - low) / (high - low), 0.0, 1.0); }

  double low, high;
};

double yarn_magnitude(const RopeScaling& s) {
  const auto m = [&](double scale) { return s.factor > 1 ? 0.1 * scale * std::log(s.factor) + 1 : 1.0; };
  if (s.attention_factor) return *s.attention_factor;
  return s.mscale > 0 && s.mscale_all_dim > 0 ? m(s.mscale) / m(s.mscale_all_dim) : m(1);
}

}  // namespace

RopeTurns rope_turns(std::int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  using Kind = RopeScaling::Kind;
  constexpr std::int64_t kMost = 1 << 20;  // wider than any head; the turns take memory
  if (rotary_dim < 0 || rotary_dim > kMost || rotary_dim % 2 != 0) {
    fail("rope", "rotary_dim is " + std::to_string(rotary_dim) + ", expected an even number from 0 to " +
                     std::to_string(kMost));
  }
  check_positive("theta", theta);
  check_scaling(theta, scaling);
  RopeTurns turns;
  const auto R = static_cast<double>(rotary_dim);
  std::optional<Ramp> ramp;
  if (scaling.kind == Kind::yarn) {
    ramp.emplace(R, theta, scaling);
    turns.magnitude = yarn_magnitude(scaling);
  }
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    double turn = std::pow(theta, -2.0 * static_cast<double>(i) / R);
    if (scaling.kind == Kind::linear) turn /= scaling.factor;
    if (scaling.kind == Kind::llama3) turn = llama3_turn(turn, scaling);
    if (ramp) {
      const double part = (*ramp)(static_cast<double>(i));
      turn = turn / scaling.factor * part + turn * (1 - part);
    }
    turns.per_position.push_back(turn);
  }
  return turns;
}

}  // namespace attend

namespace attend::reference {
namespace {

// Row i stands at positions[i], or at first_position + i.
void turn(const View& x, const MutableView& y, const RopeTurns& turns, RopeStyle style,
          std::span<const std::int64_t> positions, std::int64_t first_position, double direction) {
  const std::int64_t D = x.dim(), R = 2 * std::ssize(turns.per_position);
  const bool interleaved = style == RopeStyle::interleaved;
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t position = positions.empty() ? first_position + i : positions[static_cast<std::size_t>(i)];
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
void turn(const View& x, const MutableView& y, const RopeOptions& o, double direction) {
  turn(x, y, rope_turns(o.rotary_dim == 0 ? x.dim() : o.rotary_dim, o.theta, o.scaling), o.style, o.positions,
       o.first_position, direction);
}
void turn(const View& x, const MutableView& y, const RopeTable& table, std::int64_t first, double direction) {
  turn(x, y, table.turns(), table.style(), table.positions().subspan(static_cast<std::size_t>(first)), 0, direction);
}

}  // namespace

void rope(const View& x, const MutableView& y, const RopeOptions& options) {
  turn(x, y, options, 1.0);
}
void rope_backward(const View& dy, const MutableView& dx, const RopeOptions& options) {
  turn(dy, dx, options, -1.0);
}
void rope(const View& x, const MutableView& y, const RopeTable& table, std::int64_t first) {
  turn(x, y, table, first, 1.0);
}
void rope_backward(const View& dy, const MutableView& dx, const RopeTable& table, std::int64_t first) {
  turn(dy, dx, table, first, -1.0);
}

}  // namespace attend::reference
