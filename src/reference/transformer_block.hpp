// A block of a transformer by its formulas, in double, over views of any dtype.
#pragma once

#include "attend/activation.hpp"
#include "attend/transformer_block.hpp"

namespace attend::reference {

// `config` with the zeros filled in.
Tensor transformer_block(const TransformerBlockConfig& config, const MultiHeadAttentionParameters& attention,
                         const TransformerBlockParameters& parameters, const View& x, const AttentionOptions& options);

// Everything is computed anew from the inputs; the gradients are f64.
TransformerBlockGradients transformer_block_backward(const TransformerBlockConfig& config,
                                                     const MultiHeadAttentionParameters& attention,
                                                     const TransformerBlockParameters& parameters, const View& dout,
                                                     const View& x, const AttentionOptions& options);

}  // namespace attend::reference
