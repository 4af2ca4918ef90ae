// The attention layer by its formulas, in double, over views of any dtype.
#pragma once

#include <cstdint>
#include <optional>

#include "attend/multi_head_attention.hpp"
#include "base/view_parts.hpp"

namespace attend::reference {

// `config` with the zeros filled in. K and V come from context, or from x without one.
Tensor multi_head_attention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionParameters& parameters,
                            const View& x, const std::optional<View>& context, const AttentionOptions& options);

// Everything is computed anew from the inputs; the gradients are f64.
MultiHeadAttentionGradients multi_head_attention_backward(const MultiHeadAttentionConfig& config,
                                                          const MultiHeadAttentionParameters& parameters,
                                                          const View& dout, const View& x,
                                                          const std::optional<View>& context,
                                                          const AttentionOptions& options);

}  // namespace attend::reference
