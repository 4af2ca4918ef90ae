// What holds for every description of a model: limits, derived sizes, the angles of its rotation.
#include "llm/model/config.hpp"

#include <algorithm>

#include "llm/model/config_check.hpp"

namespace attend::llm {

bool ModelConfig::has_experts(std::int64_t layer) const {
  return experts.count > 0 && !std::binary_search(experts.dense.begin(), experts.dense.end(), layer);
}

std::int64_t ModelConfig::window_of(std::int64_t layer) const {
  const bool all = windowed.empty();
  return all || std::binary_search(windowed.begin(), windowed.end(), layer) ? window : 0;
}

void check_config(const ModelConfig& c, const std::string& what) {
  const auto refuse = [&](const std::string& text) { throw io::FileError(what + ": " + text); };
  const auto number = [](std::int64_t x) { return std::to_string(x); };
  if (c.heads % c.kv_heads != 0)
    refuse(number(c.heads) + " query heads cannot share " + number(c.kv_heads) + " key-value heads evenly");
  if (c.positions == PositionKind::rope && (c.rotary() % 2 != 0 || c.rotary() > c.head_dim))
    refuse("the rotation covers " + number(c.rotary()) + " of " + number(c.head_dim) +
           " numbers of a head, expected an even part of them");
  if (c.positions == PositionKind::rope && c.rope_scaling.kind == RopeScaling::Kind::yarn && c.rope_theta <= 1)
    refuse("the rotation's theta is 1, expected more: YaRN takes its logarithm");
  if (c.experts.count > 0 && (c.experts.used < 1 || c.experts.used > c.experts.count))
    refuse("each token uses " + number(c.experts.used) + " of " + number(c.experts.count) + " experts");
  if (!(c.score_softcap >= 0)) refuse("the soft cap of scores is below zero, expected 0 (none) or more");
  if (c.attention_scale && !(*c.attention_scale > 0)) refuse("the scale of scores is not above zero");
  if (!c.causal && c.window > 0) refuse("a sliding window in a model that is not causal is not supported");
}

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  if (config.positions != PositionKind::rope) return {};
  RopeFrequencies frequencies = attend::rope_frequencies(config.rotary(), config.rope_theta, config.rope_scaling);
  for (std::size_t i = 0; i < config.rope_slowdown.size(); ++i) frequencies.per_position[i] /= config.rope_slowdown[i];
  return frequencies;
}

std::int64_t row_in_style(const ModelConfig& config, RopeStyle to, std::int64_t r) {
  if (to == config.rope_style) return r;
  const std::int64_t dim = config.head_dim, head = r / dim * dim, i = r % dim, half = config.rotary() / 2;
  if (i >= 2 * half) return r;
  return head + (to == RopeStyle::interleaved ? i % 2 * half + i / 2 : i % half * 2 + i / half);
}

}  // namespace attend::llm
