// Adaptive span (Sukhbaatar et al. 2019): each head learns how far back it looks, and nothing beyond is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/mask.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct AdaptiveSpanOptions {
  double ramp = 32;                     // R in (0, 2^20]: over so many tokens past the span a weight falls from 1 to 0
  double max_span = 1024;               // a span z counts as clamp(z, 0, max_span)
  bool symmetric = false;               // x = |p(i) - j|, for encoders; else keys after p(i) are hidden
  Diagonal diagonal = Align::last_key;  // p(i), as in a causal mask
  Mask mask{};                          // padding alone: positions of other rules would not be those of the span
  std::optional<double> scale{};        // default 1/sqrt(D)
};

// out_i = sum_j m_ij exp(s_ij) v_j / sum_j m_ij exp(s_ij), with s = scale * q.k, x = p(i) - j the distance back, and
// m = clamp((R + z_h - x) / R, 0, 1) for 0 <= x. `span` holds z, [1, H, 1, 1], in tokens, of any dtype; q [B, H, M, D],
// k [B, Hk, N, D], v [B, Hk, N, V] of one. lse [B, H, M, 1] is log sum_j m exp(s). A query that sees nothing gives
// zeros. Time follows each head's own span; memory beyond the arguments is linear in M and N.
ATTEND_API void adaptive_span(View q, View k, View v, View span, MutableView out,
                              const AdaptiveSpanOptions& options = {}, std::optional<MutableView> lse = std::nullopt);

struct AdaptiveSpanGradients {
  MutableView dq, dk, dv;
  MutableView dspan;  // [1, H, 1, 1], any dtype
};
// `out` and `lse` as adaptive_span() gave them, with the same options. Overwrites the gradients. Of a span outside
// [0, max_span] the gradient is that of the bound where a step downhill leads back inside, else 0: a span neither runs
// away nor dies at a bound.
ATTEND_API void adaptive_span_backward(View dout, View q, View k, View v, View span, View out, View lse,
                                       const AdaptiveSpanGradients& gradients, const AdaptiveSpanOptions& options = {});

// What is added to the loss so that heads keep no more span than they need: loss_weight / H * sum_h clamp(z_h). With
// `dspan`, its gradient goes there (by the rule above for spans outside).
ATTEND_API double adaptive_span_penalty(View span, double loss_weight, const AdaptiveSpanOptions& options = {},
                                        std::optional<MutableView> dspan = std::nullopt);

struct AdaptiveSpanConfig {
  std::int64_t heads = 0;
  double initial_span = 0;
  AdaptiveSpanOptions options{};  // no mask: padding belongs to a call, not to a layer
};
// As the inner attention of a layer, with the parameter "span", f32. The penalty is the caller's to add.
ATTEND_API std::shared_ptr<InnerAttention> adaptive_span_inner(const AdaptiveSpanConfig& config);

}  // namespace attend
