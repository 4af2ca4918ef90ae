// What holds for every description of a model: limits, derived sizes, the angles of its rotation.
#include "llm/model/config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "llm/model/config_check.hpp"

namespace attend::llm {

bool ModelConfig::has_experts(std::int64_t layer) const {
  return experts.count > 0 && std::find(experts.dense.begin(), experts.dense.end(), layer) == experts.dense.end();
}

std::int64_t ModelConfig::window_of(std::int64_t layer) const {
  const bool all = windowed.empty();
  return all || std::find(windowed.begin(), windowed.end(), layer) != windowed.end() ? window : 0;
}

void check_config(const ModelConfig& c, const std::string& what) {
  const auto refuse = [&](const std::string& text) { throw io::FileError(what + ": " + text); };
  const auto number = [](std::int64_t x) { return std::to_string(x); };
  if (c.heads % c.kv_heads != 0)
    refuse(number(c.heads) + " query heads cannot share " + number(c.kv_heads) + " key-value heads evenly");
  if (c.positions == PositionKind::rope && (c.rotary() % 2 != 0 || c.rotary() > c.head_dim))
    refuse("the rotation covers " + number(c.rotary()) + " of " + number(c.head_dim) +
           " numbers of a head, expected an even part of them");
  if (c.experts.count > 0 && (c.experts.used < 1 || c.experts.used > c.experts.count))
    refuse("each token uses " + number(c.experts.used) + " of " + number(c.experts.count) + " experts");
  if (!c.causal && c.window > 0) refuse("a sliding window in a model that is not causal is not supported");
}

RopeTurns rope_turns(const ModelConfig& config) {
  RopeTurns turns;
  if (config.positions != PositionKind::rope) return turns;
  const RopeScaling& s = config.rope_scaling;
  const std::int64_t R = config.rotary();
  const double two_pi = 2 * std::numbers::pi, length = static_cast<double>(s.original_length);
  // YaRN: the pair that makes `rotations` turns over the length the model was trained with.
  const auto pair_of = [&](double rotations) {
    return static_cast<double>(R) * std::log(length / (rotations * two_pi)) / (2 * std::log(config.rope_theta));
  };
  double low = 0, high = 0;
  if (s.kind == RopeScaling::Kind::yarn) {
    low = pair_of(s.beta_fast);
    high = pair_of(s.beta_slow);
    if (s.whole_bounds) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(R - 1));
    if (low == high) high += 0.001;
    turns.magnitude = s.attention_factor.value_or(s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0);
  }
  for (std::int64_t i = 0; i < R / 2; ++i) {
    double turn = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(R));
    switch (s.kind) {
      case RopeScaling::Kind::none:
        break;
      case RopeScaling::Kind::linear:
        turn /= s.factor;
        break;
      case RopeScaling::Kind::llama3: {
        const double wave = two_pi / turn;
        if (wave > length / s.low_frequency) {
          turn /= s.factor;
        } else if (wave >= length / s.high_frequency) {
          const double smooth = (length / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
          turn = (1 - smooth) * turn / s.factor + smooth * turn;
        }
        break;
      }
      case RopeScaling::Kind::yarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        turn = turn / s.factor * ramp + turn * (1 - ramp);
        break;
      }
    }
    turns.per_position.push_back(turn);
  }
  return turns;
}

}  // namespace attend::llm
