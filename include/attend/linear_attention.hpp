// Linear attention: a state of fixed size instead of all keys, full or causal, with decay, and the gated delta rule.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/tensor.hpp"

namespace attend {

// phi, applied to each row of q and k.
class ATTEND_API FeatureMap {
 public:
  enum class Kind : std::int32_t { elu_plus_one = 0, relu = 1, identity = 2, given = 3 };

  FeatureMap() = default;
  FeatureMap(Kind known) : kind(known) {}  // not `given`

  // A map of the user's own, from rows of D elements to rows of `count` features (0: D of them).
  //   value(x, y)            writes y = phi(x)
  //   gradient(x, dy, dx)    writes dx = (d phi(x) / dx)^T dy
  // Generic callables over spans, e.g. [](auto x, auto y) {...}: called with double for f64 inputs and with float for
  // all others, from several threads at once. What they throw ends the call, which throws it.
  template <class Value, class Gradient>
  FeatureMap(Value value, Gradient gradient, std::int64_t count = 0)
      : kind(Kind::given),
        features(count),
        value_f32(value),
        value_f64(value),
        gradient_f32(gradient),
        gradient_f64(gradient) {}

  Kind kind = Kind::elu_plus_one;
  std::int64_t features = 0;
  std::function<void(std::span<const float>, std::span<float>)> value_f32;
  std::function<void(std::span<const double>, std::span<double>)> value_f64;
  std::function<void(std::span<const float>, std::span<const float>, std::span<float>)> gradient_f32;
  std::function<void(std::span<const double>, std::span<const double>, std::span<double>)> gradient_f64;
};

// With a_t = exp(log_decay_t), F features and a state S of [F, E] that starts as `initial_state` or zero:
//   causal        S_t = a_t S_{t-1} + phi(k_t) v_t^T                                        o_t = S_t^T phi(q_t)
//   with beta     S_t = a_t (I - beta_t phi(k_t) phi(k_t)^T) S_{t-1} + beta_t phi(k_t) v_t^T       (gated delta rule)
//   not causal    S = sum over all keys of phi(k_j) v_j^T                                   o_i = S^T phi(q_i)
//   normalise     z is made as S is, with 1 for v: o_i = S^T phi(q_i) / (z^T phi(q_i) + eps), and zeros where that
//                 denominator is 0
// and out = scale * o. Retention is {.map = identity, .normalise = false, .log_decay = log of gamma, one per head}.
struct LinearAttentionOptions {
  FeatureMap map{};
  bool causal = true;
  bool normalise = true;  // not with beta
  double scale = 1;
  double eps = 0;
  std::optional<View> log_decay{};      // [1|B, 1|Hk|H, 1|N, 1], at most 0 (-inf forgets all); causal alone
  std::optional<View> beta{};           // [1|B, 1|Hk|H, 1|N, 1]; causal alone
  std::vector<std::int64_t> lengths{};  // [B]: keys from lengths[b] on leave the state as it is
  std::optional<View> initial_state{};  // of linear_state_shape; causal alone
};

// [B, Hs, F, E], or [B, Hs, F, E + 1] with normalise: z is the last column. Query heads that share a KV head share its
// state: Hs is Hk, unless log_decay or beta tell all H heads apart; then it is H.
ATTEND_API Shape linear_state_shape(View q, View k, View v, const LinearAttentionOptions& options = {});

// q [B, H, M, D], k [B, Hk, N, D], v [B, Hk, N, E] -> out [B, H, M, E], Hk dividing H; query head h reads KV head
// h / (H / Hk). All of one dtype; causal: M is N. Sums in f32. Time is linear in the length; memory beyond the
// arguments is some 8 MiB, or what four chunks of 64 tokens take if that is more. `final_state` is the state after the
// last token (not causal: that of all keys), f32 (f64 for f64): given as initial_state to the next piece it goes on,
// with the same bits as one call if the pieces are whole multiples of 64 tokens. final_state may be initial_state.
ATTEND_API void linear_attention(View q, View k, View v, MutableView out, const LinearAttentionOptions& options = {},
                                 const std::optional<MutableView>& final_state = {});

struct LinearAttentionGradients {
  MutableView dq, dk, dv;
  std::optional<MutableView> dlog_decay{};      // the shape of log_decay: summed over its repeated dimensions
  std::optional<MutableView> dbeta{};           // the shape of beta
  std::optional<MutableView> dinitial_state{};  // of linear_state_shape
};
// The same options as forward. `dfinal_state`: the gradient of final_state; causal alone; dinitial_state may be it.
// `final_state`: as forward gave it, which saves a third of the work where it is not causal; causal states are computed
// anew. Overwrites the gradients. Memory: some 48 MiB, or four chunks and a state for every four; 8 bytes a token and
// state head for each of dlog_decay and dbeta; and where Hs is not Hk the gradients of k and v once more, per state
// head.
ATTEND_API void linear_attention_backward(View dout, View q, View k, View v, const LinearAttentionGradients& gradients,
                                          const LinearAttentionOptions& options = {},
                                          const std::optional<View>& dfinal_state = {},
                                          const std::optional<View>& final_state = {});

// The next tokens of a causal call, one after the other: `state` (of linear_state_shape, f32, or f64 for f64) goes from
// before the first to after the last. Costs the same at any position. options.initial_state and lengths: not here.
ATTEND_API void linear_attention_step(View q, View k, View v, MutableView out, MutableView state,
                                      const LinearAttentionOptions& options = {});

// As the inner attention of a layer. log_decay may be [1, 1|H, 1, 1] and is copied; beta and initial_state: not here.
ATTEND_API std::shared_ptr<InnerAttention> linear_attention_inner(const LinearAttentionOptions& options = {});

}  // namespace attend
