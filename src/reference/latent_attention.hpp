// Multi-head latent attention by its formulas, in double, over views of any dtype.
#pragma once

#include <type_traits>

#include "attend/latent_attention.hpp"
#include "base/view_parts.hpp"
#include "reference/multi_head_attention.hpp"

namespace attend::reference {

Tensor latent_attention(const LatentAttentionConfig& config, const LatentAttentionParameters& parameters, const View& x,
                        const AttentionOptions& options);

// Everything is computed anew from the inputs; the gradients are f64.
LatentAttentionGradients latent_attention_backward(const LatentAttentionConfig& config,
                                                   const LatentAttentionParameters& parameters, const View& dout,
                                                   const View& x, const AttentionOptions& options);

}  // namespace attend::reference
