// A block of a transformer: attention, then a feed-forward network, each normed before and added to its input.
#pragma once

#include <cstdint>

#include "attend/activation.hpp"
#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/multi_head_attention.hpp"
#include "attend/tensor.hpp"

namespace attend {

enum class FeedForward {
  swiglu,  // down (silu(gate x) * up x)
  gelu,    // down gelu(up x), gelu(t) = t * Phi(t), by the error function
  relu,    // down max(up x, 0)
};
constexpr Activation activation_of(FeedForward kind) {
  return kind == FeedForward::swiglu ? Activation::silu
         : kind == FeedForward::gelu ? Activation::gelu
                                     : Activation::relu;
}

struct TransformerBlockConfig {
  MultiHeadAttentionConfig attention{};  // its width and dtype are the block's; context_width and output_width: width
  FeedForward feed_forward = FeedForward::swiglu;
  std::int64_t hidden = 0;  // features inside the feed-forward network; 0: 4 * width
  double norm_eps = 1e-6;
};

struct TransformerBlockParameters {
  Tensor norm1, norm2;  // [1, 1, 1, width]
  Tensor gate;          // [1, 1, hidden, width]; empty but for swiglu
  Tensor up;            // [1, 1, hidden, width]
  Tensor down;          // [1, 1, width, hidden]
};

struct TransformerBlockGradients {
  Tensor dx;
  MultiHeadAttentionParameters attention;
  TransformerBlockParameters parameters;
  Tensor dbias, dsinks;  // of the score options; empty without
};

// block > 0: K and V are made for the whole length; queries, attention, its output and the feed-forward network for
// that many queries at a time. Memory for activations is then that of a block, and the results are the same to the bit.
// Dropout, whose kept set counts queries from the start of a call, cannot be cut.
struct Blockwise {
  std::int64_t block = 0;  // 0: the whole length at once
};

class ATTEND_API TransformerBlock {
 public:
  // Parameters start as zeros (norms as ones). Throws InvalidArgument if the sizes do not fit together.
  explicit TransformerBlock(const TransformerBlockConfig& config);

  const TransformerBlockConfig& config() const { return config_; }  // with the zeros filled in
  MultiHeadAttention& attention() { return attention_; }
  const MultiHeadAttention& attention() const { return attention_; }
  TransformerBlockParameters& parameters() { return parameters_; }  // those beside the attention's
  const TransformerBlockParameters& parameters() const { return parameters_; }
  std::int64_t parameter_count() const;  // all of them

  // Weights uniform in +-1/sqrt(in), from a counter-based generator: the same on every machine.
  void initialise(std::uint64_t seed);

  // y = x + attention(rms_norm(x));  z = y + feed_forward(rms_norm(y)).  x [B, 1, M, width] -> z [B, 1, M, width].
  Tensor forward(View x, const AttentionOptions& options = {}, Blockwise blockwise = {}) const;

  // Keeps nothing of forward: a block's activations are made again from x. The gradients of the pieces are summed in
  // f32, in their order.
  TransformerBlockGradients backward(View dout, View x, const AttentionOptions& options = {},
                                     Blockwise blockwise = {}) const;

 private:
  MultiHeadAttention attention_;
  TransformerBlockConfig config_;
  TransformerBlockParameters parameters_;
};

}  // namespace attend
