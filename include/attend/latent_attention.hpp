// Multi-head latent attention (MLA), as DeepSeek-V2 and V3 have it: keys and values of all heads are made from one
// short vector a token, and that vector is all a cache keeps.
#pragma once

#include <cstdint>
#include <optional>

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/rope.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct LatentAttentionConfig {
  DType dtype = DType::f32;
  std::int64_t width = 0;  // features of x and of the result
  std::int64_t heads = 1;
  std::int64_t q_rank = 0;                  // the query goes through this many numbers too; 0: straight from x
  std::int64_t kv_rank = 0;                 // what keys and values are made from, at most the width
  std::int64_t nope_dim = 0, rope_dim = 0;  // of a head's query and key: without a position, and rotated by RoPE
  std::int64_t value_dim = 0;
  double norm_eps = 1e-6;
  RopeStyle rope = RopeStyle::interleaved;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling{};
  // Of the scores. Default: m^2 / sqrt(nope_dim + rope_dim), where m = 0.1 mscale_all_dim ln(factor) + 1 for YaRN with
  // a factor above 1, else 1.
  std::optional<double> scale{};
};

ATTEND_API double latent_attention_scale(const LatentAttentionConfig& config);  // config.scale, or its default

// Weights are [1, 1, out, in], norms [1, 1, 1, n]; rows in the order of DeepSeek's files.
struct LatentAttentionParameters {
  Tensor wq_down;   // [q_rank, width]; empty without a q_rank
  Tensor q_norm;    // [q_rank]; empty without
  Tensor wq;        // [heads * (nope_dim + rope_dim), q_rank or width]
  Tensor wkv_down;  // [kv_rank + rope_dim, width]: c_kv, then the RoPE key that all heads share
  Tensor kv_norm;   // [kv_rank]
  Tensor wkv_up;    // [heads * (nope_dim + value_dim), kv_rank]: each head's key part, then its values
  Tensor wo;        // [width, heads * value_dim]
};

// c_kv (after its norm) and the shared key part (after RoPE) of the tokens seen so far: nothing else.
class ATTEND_API LatentCache {
 public:
  LatentCache(const LatentAttentionConfig& config, std::int64_t batch, std::int64_t capacity);
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return rows_.shape()[2]; }
  std::int64_t bytes() const { return rows_.bytes(); }
  std::int64_t bytes_per_token() const { return rows_.shape()[3] * size_of(rows_.dtype()); }
  View rows() const;                   // [batch, 1, length, kv_rank + rope_dim]
  void truncate(std::int64_t length);  // forgets what came after

 private:
  friend class LatentAttention;
  Tensor rows_;
  std::int64_t length_ = 0;
};

// What forward keeps for backward.
struct LatentAttentionSaved {
  Tensor x;                 // [B, 1, L, width]
  Tensor q_down, q_latent;  // before and after the norm; empty without a q_rank
  Tensor kv_down, latent;   // wkv_down x; and c_kv after the norm
  Tensor q, k, kv_up;       // as attention saw them; values lie in kv_up
  Tensor out, lse;          // of attention
  AttentionOptions options;
};

struct LatentAttentionGradients {
  Tensor dx;
  LatentAttentionParameters parameters;  // the same shapes
};

// For token i and head h, with c = rms_norm(W_dkv x) and k_r = rope(W_kr x), both from wkv_down:
//   q = [q_n, rope(q_r)] = W_q rms_norm(W_dq x),  k = [W_uk c, k_r],  v = W_uv c,  y = W_o [softmax(scale q.k) v]
class ATTEND_API LatentAttention {
 public:
  // Parameters start as zeros (norms as ones). Throws InvalidArgument if the sizes do not fit together.
  explicit LatentAttention(const LatentAttentionConfig& config);

  const LatentAttentionConfig& config() const { return config_; }
  LatentAttentionParameters& parameters() { return parameters_; }
  const LatentAttentionParameters& parameters() const { return parameters_; }
  std::int64_t parameter_count() const;
  double scale() const;
  // What a cache of this layer takes for a token, and what one of all heads' keys and values would.
  std::int64_t bytes_per_token() const;
  std::int64_t expanded_bytes_per_token() const;

  // Weights uniform in +-1/sqrt(in), from a counter-based generator: the same on every machine.
  void initialise(std::uint64_t seed);

  // x [B, 1, L, width] -> [B, 1, L, width], keys and values of every head made: for training.
  Tensor forward(View x, const AttentionOptions& options = {}, LatentAttentionSaved* saved = nullptr) const;
  LatentAttentionGradients backward(View dout, const LatentAttentionSaved& saved) const;

  // The next T tokens of each sequence, x [B, 1, T, width], appended to the cache; masks must be aligned to the last
  // key, causal by default. Both compute the same: prefill makes keys and values of every head from the cache, which is
  // cheaper for many tokens; step folds W_uk into the query and W_uv into the result and attends to the cache itself,
  // as one head of kv_rank + rope_dim numbers that all query heads share.
  Tensor prefill(View x, LatentCache& cache, const AttentionOptions& options) const;
  Tensor prefill(View x, LatentCache& cache) const;
  Tensor step(View x, LatentCache& cache, const AttentionOptions& options) const;
  Tensor step(View x, LatentCache& cache) const;

 private:
  LatentAttentionConfig config_;
  LatentAttentionParameters parameters_;
};

}  // namespace attend
