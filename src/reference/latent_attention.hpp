// Multi-head latent attention by its formulas, in double, over views of any dtype.
#pragma once

#include <type_traits>

#include "attend/latent_attention.hpp"
#include "reference/multi_head_attention.hpp"

namespace attend::reference {

double latent_attention_scale(const LatentAttentionConfig& config);

Tensor latent_attention(const LatentAttentionConfig& config, const LatentAttentionParameters& parameters, const View& x,
                        const AttentionOptions& options);

// Everything is computed anew from the inputs; the gradients are f64.
LatentAttentionGradients latent_attention_backward(const LatentAttentionConfig& config,
                                                   const LatentAttentionParameters& parameters, const View& dout,
                                                   const View& x, const AttentionOptions& options);

// Numbers [first, first + count) of every row.
template <class Void>
BasicView<Void> part_of(BasicView<Void> x, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  x.data = static_cast<Byte*>(x.data) + first * x.strides[3] * size_of(x.dtype);
  x.shape[3] = count;
  return x;
}

}  // namespace attend::reference
