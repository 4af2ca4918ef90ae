// The attention layer: projections, heads, positions, cache; forward, backward and step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/rope.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct MultiHeadAttentionConfig {
  DType dtype = DType::f32;
  std::int64_t width = 0;          // features of x
  std::int64_t context_width = 0;  // features of what K and V are made from; 0: width
  std::int64_t output_width = 0;   // 0: width
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;    // 0: heads
  std::int64_t head_dim = 0;    // 0: width / heads
  std::int64_t value_dim = 0;   // 0: head_dim
  std::int64_t value_rank = 0;  // > 0: W_V is factored, up [kv_heads * value_dim, rank] . down [rank, context_width]
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;  // RMS norm over head_dim of q and k, before RoPE
  double norm_eps = 1e-6;
  std::optional<RopeStyle> rope{};
  double rope_theta = 10000.0;
  RopeScaling rope_scaling{};
  std::shared_ptr<InnerAttention> inner{};  // computed between the projections instead of softmax attention
};

// Weights are [1, 1, out, in], biases and norms [1, 1, 1, n]. A parameter the config does not call for is empty.
struct MultiHeadAttentionParameters {
  Tensor wq, wk, wv, wv_down, wo;
  Tensor bq, bk, bv, bo;
  Tensor q_norm, k_norm;
};

// Keys (after norm and RoPE) and values of the tokens seen so far.
class ATTEND_API KvCache {
 public:
  KvCache(const MultiHeadAttentionConfig& config, std::int64_t batch, std::int64_t capacity);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return keys_.shape()[2]; }
  std::int64_t bytes() const { return keys_.bytes() + values_.bytes(); }
  View keys() const;                   // [batch, kv_heads, length, head_dim]
  View values() const;                 // [batch, kv_heads, length, value_dim]
  void truncate(std::int64_t length);  // forgets what came after

 private:
  friend class MultiHeadAttention;
  Tensor keys_, values_;
  std::int64_t length_ = 0;
};

// What forward keeps for backward.
struct MultiHeadAttentionSaved {
  Tensor x, context;       // inputs, [B, 1, L, width]; context empty for self-attention
  Tensor q_raw, k_raw;     // before the norm; empty without qk_norm
  Tensor q, k, v, v_down;  // as attention saw them; v_down empty unless W_V is factored
  Tensor out, lse;         // of attention
  AttentionOptions options;
  std::vector<Tensor> inner;  // what config.inner keeps
};

struct MultiHeadAttentionGradients {
  Tensor dx;
  Tensor dcontext;                          // empty for self-attention
  MultiHeadAttentionParameters parameters;  // the same shapes
  Tensor dbias, dsinks, ddistance_bias;     // of the score options; empty without
  std::vector<Tensor> inner;                // of config.inner's parameters, in their order
};

struct ForwardWants {
  MultiHeadAttentionSaved* saved = nullptr;  // filled for backward
  Tensor* weights = nullptr;                 // filled with [B, H, M, N]
};

class ATTEND_API MultiHeadAttention {
 public:
  // Parameters start as zeros (norms as ones). Throws InvalidArgument if the sizes do not fit together.
  explicit MultiHeadAttention(const MultiHeadAttentionConfig& config);

  const MultiHeadAttentionConfig& config() const { return config_; }  // with the zeros filled in
  MultiHeadAttentionParameters& parameters() { return parameters_; }
  const MultiHeadAttentionParameters& parameters() const { return parameters_; }
  std::int64_t parameter_count() const;

  // Weights uniform in +-1/sqrt(in), from a counter-based generator: the same on every machine.
  void initialise(std::uint64_t seed);

  // x [B, 1, M, width] -> [B, 1, M, output_width]. Self-attention: K and V come from x. With config.inner the options
  // must be the defaults (masks and the like belong to it then), there are no weights to want, and step() is refused.
  Tensor forward(View x, const AttentionOptions& options = {}, ForwardWants wants = {}) const;
  // Cross-attention: K and V come from context [B, 1, N, context_width].
  Tensor forward(View x, View context, const AttentionOptions& options = {}, ForwardWants wants = {}) const;

  MultiHeadAttentionGradients backward(View dout, const MultiHeadAttentionSaved& saved) const;

  // The next T tokens of each sequence, x [B, 1, T, width]: appends their keys and values to the cache and attends to
  // all of it. With the default causal mask the result is the last T rows of forward() over the whole sequence, in
  // f32 to the bit. Masks must be aligned to the last key.
  Tensor step(View x, KvCache& cache, const AttentionOptions& options) const;
  Tensor step(View x, KvCache& cache) const;  // causal

 private:
  MultiHeadAttentionConfig config_;
  MultiHeadAttentionParameters parameters_;
};

}  // namespace attend
