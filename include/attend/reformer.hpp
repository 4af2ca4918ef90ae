// Reformer's attention (Kitaev et al. 2020): each token attends to tokens whose hash it shares, in time n log n.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct ReformerOptions {
  std::int64_t rounds = 4;  // independent hashes: more find more of what exact attention would weigh. 1 to 256
  std::int64_t chunk = 64;  // tokens, in sorted order
  // A hash is one number from each factor, f1 * f2 * ... buckets in all, each factor even. Empty: about length / chunk
  // buckets, in factors of at most 64, so that hashing costs log(length) per token.
  std::vector<std::int64_t> buckets{};
  bool causal = false;
  std::uint64_t seed = 0;
  std::optional<double> scale{};  // default 1/sqrt(D)
};

// Queries and keys are shared: k_j = q_j / |q_j| (a zero row stays zero). In each round and head:
//   - the factor f of token x's hash is argmax over [xR; -xR], R normal [D, f/2], the first of equal ones;
//   - tokens are sorted by (bucket, position) and cut into chunks;
//   - i meets j if they share the bucket, j lies in i's chunk or the one before, j < i when causal, and j is not i.
// With n_ij = the number of rounds in which i meets j, and n_ii = 1 where i meets nobody at all:
//   out_i = sum_j n_ij exp(s_ij) v_j / sum_j n_ij exp(s_ij),  s_ij = scale * q_i . k_j;  lse_i = log sum_j n_ij
//   exp(s_ij).
// q [B, H, L, D], v [B, Hv, L, E] with Hv dividing H -> out [B, H, L, E], lse [B, H, L, 1]. All of one dtype. The same
// seed gives the same hashes, and the same bits, whatever the threads. Memory beyond the arguments is that of a few
// heads.
ATTEND_API void reformer(View q, View v, MutableView out, const ReformerOptions& options = {},
                         std::optional<MutableView> lse = std::nullopt);

struct ReformerGradients {
  MutableView dq, dv;
};
// `out` and `lse` as reformer() gave them, with the same options. Overwrites the gradients. dq is that of q as query
// and as key; none flows through the hash, nor through the direction of a zero row.
ATTEND_API void reformer_backward(View dout, View q, View v, View out, View lse, const ReformerGradients& gradients,
                                  const ReformerOptions& options = {});

// The factors that are used for a length: options.buckets, or those chosen where it is empty.
ATTEND_API std::vector<std::int64_t> reformer_factors(std::int64_t length, const ReformerOptions& options = {});
// R of every round and head, transposed: [rounds, H, sum of factors / 2, D], f32, factor after factor.
ATTEND_API Tensor reformer_rotations(std::int64_t heads, std::int64_t length, std::int64_t dim,
                                     const ReformerOptions& options = {});
// The bucket of every token, [rounds, B, H, L]: the number of the first factor plus f1 times that of the second, ...
ATTEND_API std::vector<std::int32_t> reformer_hashes(View q, const ReformerOptions& options = {});

// How much of exact attention (shared QK, not to itself) lies on tokens that were met: the mean, over `samples` queries
// of each head spread over the length, of sum over met j of softmax(s_i)_j. Queries with nobody before them don't
// count; 1 when there are no others.
ATTEND_API double reformer_recall(View q, const ReformerOptions& options = {}, std::int64_t samples = 32);

// As the inner attention of a layer. It shares queries and keys: what the layer projects as k is not used, and its
// gradient is zero. Needs as many queries as keys.
ATTEND_API std::shared_ptr<InnerAttention> reformer_inner(const ReformerOptions& options = {});

}  // namespace attend
