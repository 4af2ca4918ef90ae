// How a model's config asks for attention: the same in training as in generation.
#pragma once

#include "attend/attention.hpp"
#include "attend/positions.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

// Empty unless the positions are ALiBi's.
inline Tensor position_slopes(const ModelConfig& config) {
  return config.positions == PositionKind::alibi ? alibi_slopes(config.heads) : Tensor();
}

// What scores become, beside the batch's mask: `slopes` as above, `sinks` the layer's own, [1, heads, 1, 1].
inline AttentionOptions layer_attention(const ModelConfig& config, const Tensor& slopes, std::optional<View> sinks) {
  AttentionOptions options{.scale = config.attention_scale, .softcap = config.score_softcap, .sinks = sinks};
  if (!slopes.empty()) options.alibi_slopes = slopes.view();
  return options;
}

}  // namespace attend::llm
