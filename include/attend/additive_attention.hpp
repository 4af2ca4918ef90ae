// Attention whose scores are learned sums: Bahdanau's additive score, and Luong's dot, general and concat.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/mask.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct AdditiveAttentionOptions {
  Mask mask{};
  double scale = 1.0;  // of the scores, before the softmax
};

// s(i, j) = scale * sum over d of w[h, d] * tanh(a[i, d] + b[j, d]);  mask;  out(i) = sum over j of softmax(s)(i, j)
// v(j). a [B, H, M, D]: projected queries; b [B, Hk, N, D]: projected keys; w [1, H, 1, D]; v [B, Hk, N, E]; out [B, H,
// M, E], Hk dividing H, all of one dtype. A query that sees nothing gets zeros. Neither the scores nor the M x N x D
// values of tanh are ever stored: memory beyond the arguments is linear in M and N. lse [B, H, M, 1], f32 (f64 for
// f64): the log of the sum of exp, which backward needs.
ATTEND_API void additive_attention(View a, View b, View w, View v, MutableView out,
                                   const AdditiveAttentionOptions& options = {}, std::optional<MutableView> lse = {});

struct AdditiveAttentionGradients {
  MutableView da, db;
  MutableView dw;  // of any dtype
  MutableView dv;
};
// `out` and `lse` as additive_attention() gave them, with the same options. Overwrites the gradients.
ATTEND_API void additive_attention_backward(View dout, View a, View b, View w, View v, View out, View lse,
                                            const AdditiveAttentionGradients& gradients,
                                            const AdditiveAttentionOptions& options = {});

// From plain queries and keys, with the score's own matrices:
enum class Alignment {
  dot,      // s = q . k
  general,  // s = (wq q) . k
  concat,   // s = w . tanh(wq q + wk k): Luong's W [q; k] with W = [wq wk], and Bahdanau's additive score
};
struct AlignmentWeights {    // what the alignment does not use is ignored
  std::optional<View> wq{};  // general: [1, 1|H, D of k, D of q]; concat: [1, 1|H, A, D of q]
  std::optional<View> wk{};  // concat: [1, 1|Hk, A, D of k]
  std::optional<View> w{};   // concat: [1, H, 1, A]
};
// As attention() without its 1/sqrt(D), after the projections: q [B, H, M, .], k [B, Hk, N, .], v [B, Hk, N, E].
ATTEND_API void aligned_attention(Alignment alignment, View q, View k, View v, const AlignmentWeights& weights,
                                  MutableView out, const AdditiveAttentionOptions& options = {},
                                  std::optional<MutableView> lse = {});

struct AlignmentGradients {
  MutableView dq, dk, dv;
  std::optional<MutableView> dwq{}, dwk{}, dw{};  // those the alignment uses must be given
};
ATTEND_API void aligned_attention_backward(Alignment alignment, View dout, View q, View k, View v,
                                           const AlignmentWeights& weights, View out, View lse,
                                           const AlignmentGradients& gradients,
                                           const AdditiveAttentionOptions& options = {});

struct AdditiveInnerConfig {
  DType dtype = DType::f32;
  std::int64_t heads = 1;
  std::int64_t head_dim = 0;
  AdditiveAttentionOptions options{};
};
// Additive attention between the projections of a layer: its q and k are a and b; one parameter of its own,
// "w" [1, heads, 1, head_dim], which starts as 1/sqrt(head_dim).
ATTEND_API std::shared_ptr<InnerAttention> additive_attention_inner(const AdditiveInnerConfig& config);

}  // namespace attend
