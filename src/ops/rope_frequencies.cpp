// How far each pair of a head rotates from one position to the next, in every scaling.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

#include "attend/rope.hpp"
#include "base/check.hpp"

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

double llama3_frequency(double frequency, const RopeScaling& s) {
  const double wave = kTwoPi / frequency, length = static_cast<double>(s.original_length);
  if (wave > length / s.low_frequency) return frequency / s.factor;
  if (wave < length / s.high_frequency) return frequency;
  const double smooth = (length / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// The pairs between which YaRN's ramp rises.
struct Ramp {
  Ramp(double R, double theta, const RopeScaling& s) {
    // The pair that makes so many `rotations` over the length the model was trained with.
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

RopeFrequencies rope_frequencies(std::int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  using Kind = RopeScaling::Kind;
  constexpr std::int64_t kMost = 1 << 20;  // wider than any head; the angles take memory
  if (rotary_dim < 0 || rotary_dim > kMost || rotary_dim % 2 != 0) {
    fail("rope", "rotary_dim is " + std::to_string(rotary_dim) + ", expected an even number from 0 to " +
                     std::to_string(kMost));
  }
  check_positive("theta", theta);
  check_scaling(theta, scaling);
  RopeFrequencies frequencies;
  const auto R = static_cast<double>(rotary_dim);
  std::optional<Ramp> ramp;
  if (scaling.kind == Kind::yarn) {
    ramp.emplace(R, theta, scaling);
    frequencies.magnitude = yarn_magnitude(scaling);
  }
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / R);
    if (scaling.kind == Kind::linear) frequency /= scaling.factor;
    if (scaling.kind == Kind::llama3) frequency = llama3_frequency(frequency, scaling);
    if (ramp) {
      const double part = (*ramp)(static_cast<double>(i));
      frequency = frequency / scaling.factor * part + frequency * (1 - part);
    }
    frequencies.per_position.push_back(frequency);
  }
  return frequencies;
}

}  // namespace attend
