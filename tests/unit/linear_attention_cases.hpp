// Problems of linear attention for its tests: random tensors by a seed, with every option.
#pragma once

#include <string>
#include <vector>

#include "attend/linear_attention.hpp"
#include "reference/linear_attention.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {

enum class Decay { none, per_head, per_token };

struct LinearCase {
  std::string name;
  std::int64_t B = 1, H = 2, Hk = 2, M = 0, N = 0, D = 16, E = 16;  // M: 0 for N
  FeatureMap map{};
  bool causal = true, normalise = true;
  Decay decay = Decay::none;
  std::int64_t decay_heads = 0;  // 0: Hk
  bool delta = false;
  bool states = false;  // from a state, and to one
  std::vector<std::int64_t> lengths{};
  double scale = 1, size = 1;  // `size`: of q and k
};

// The inputs of a case in one dtype. Values are those the dtype holds, so that the reference sees the same.
struct LinearInputs {
  LinearInputs(const LinearCase& c, DType dtype) {
    const std::int64_t M = c.M == 0 ? c.N : c.M, heads = c.decay_heads == 0 ? c.Hk : c.decay_heads;
    // The delta rule wants keys of length up to 1, or the state grows without end.
    const double k_size = c.delta ? 0.9 / std::sqrt(static_cast<double>(c.D)) : c.size;
    q = random_tensor(dtype, {c.B, c.H, M, c.D}, 1, c.size);
    k = random_tensor(dtype, {c.B, c.Hk, c.N, c.D}, 2, k_size);
    v = random_tensor(dtype, {c.B, c.Hk, c.N, c.E}, 3);
    dout = random_tensor(dtype, {c.B, c.H, M, c.E}, 4);
    options.map = c.map, options.causal = c.causal, options.normalise = c.normalise;
    options.scale = c.scale, options.lengths = c.lengths;
    if (c.decay != Decay::none) {
      log_decay = random_tensor(
          dtype, {c.decay == Decay::per_head ? 1 : c.B, heads, c.decay == Decay::per_head ? 1 : c.N, 1}, 5, 0.3);
      for_each_element(log_decay.shape(), [&](auto b, auto h, auto t, auto d) {
        store(log_decay, b, h, t, d, -std::abs(load(log_decay, b, h, t, d)));
      });
      options.log_decay = view(log_decay);
    }
    if (c.delta) {
      beta = random_tensor(dtype, {c.B, heads, c.N, 1}, 6);
      for_each_element(beta.shape(), [&](auto b, auto h, auto t, auto d) {
        store(beta, b, h, t, d, 1 / (1 + std::exp(load(beta, b, h, t, d))));
      });
      options.beta = view(beta);
    }
    state_shape = linear_state_shape(q, k, v, options);
    if (c.states) {
      // z is positive, as sums of features are.
      initial = random_tensor(wide(dtype), state_shape, 7);
      for_each_element(state_shape, [&](auto b, auto h, auto f, auto e) {
        if (c.normalise && e == state_shape[3] - 1) store(initial, b, h, f, e, std::abs(load(initial, b, h, f, e)));
      });
      dfinal = random_tensor(wide(dtype), state_shape, 8);
      options.initial_state = view(initial);
    }
  }
  static DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  static View view(const Tensor& x) { return x.view(); }
  std::optional<View> final_gradient() const {
    return dfinal.empty() ? std::nullopt : std::optional<View>(view(dfinal));
  }

  Tensor q, k, v, dout, log_decay, beta, initial, dfinal;
  Shape state_shape;
  LinearAttentionOptions options;
};

struct LinearResult {
  Tensor out, final_state;
};
struct LinearBackwardResult {
  Tensor dq, dk, dv, dlog_decay, dbeta, dinitial;

  LinearBackwardResult(const LinearInputs& in, DType dtype, DType state)
      : dq(dtype, in.q.shape()), dk(dtype, in.k.shape()), dv(dtype, in.v.shape()) {
    if (in.options.log_decay) dlog_decay = Tensor(state, in.log_decay.shape());
    if (in.options.beta) dbeta = Tensor(state, in.beta.shape());
    if (in.options.causal) dinitial = Tensor(state, in.state_shape);
  }
  LinearAttentionGradients views() {
    LinearAttentionGradients g{dq, dk, dv};
    if (!dlog_decay.empty()) g.dlog_decay = dlog_decay.view();
    if (!dbeta.empty()) g.dbeta = dbeta.view();
    if (!dinitial.empty()) g.dinitial_state = dinitial.view();
    return g;
  }
};

// By the engine in the inputs' dtype, or by the reference in double.
inline LinearResult forward(const LinearInputs& in, bool by_reference = false) {
  const DType dtype = by_reference ? DType::f64 : in.q.dtype();
  LinearResult r{Tensor(dtype, {in.q.shape()[0], in.q.shape()[1], in.q.shape()[2], in.v.shape()[3]}), {}};
  std::optional<MutableView> last;
  if (in.options.causal) {
    r.final_state = Tensor(LinearInputs::wide(dtype), in.state_shape);
    last = r.final_state.view();
  }
  if (by_reference)
    reference::linear_attention(in.q, in.k, in.v, r.out, in.options, last);
  else
    linear_attention(in.q, in.k, in.v, r.out, in.options, last);
  return r;
}
inline LinearBackwardResult backward(const LinearInputs& in, bool by_reference = false) {
  const DType dtype = by_reference ? DType::f64 : in.q.dtype();
  LinearBackwardResult r(in, dtype, by_reference ? DType::f64 : LinearInputs::wide(dtype));
  if (by_reference)
    reference::linear_attention_backward(in.dout, in.q, in.k, in.v, r.views(), in.options, in.final_gradient());
  else
    linear_attention_backward(in.dout, in.q, in.k, in.v, r.views(), in.options, in.final_gradient());
  return r;
}

// phi(x) = [exp(x / 4), exp(-x / 4)]: twice as many features, all positive.
inline FeatureMap two_sided_map(std::int64_t D) {
  return {[](auto x, auto y) {
            for (std::size_t d = 0; d < x.size(); ++d) {
              y[d] = std::exp(x[d] / 4);
              y[d + x.size()] = std::exp(-x[d] / 4);
            }
          },
          [](auto x, auto dy, auto dx) {
            for (std::size_t d = 0; d < x.size(); ++d)
              dx[d] = dy[d] * std::exp(x[d] / 4) / 4 - dy[d + x.size()] * std::exp(-x[d] / 4) / 4;
          },
          2 * D};
}

inline std::vector<LinearCase> linear_cases() {
  const FeatureMap identity = FeatureMap::Kind::identity, relu = FeatureMap::Kind::relu;
  std::vector<LinearCase> cases;
  for (const std::int64_t N : {1, 63, 64, 65, 127, 200}) {
    const std::string n = " N" + std::to_string(N);
    cases.push_back({.name = "causal" + n, .N = N, .D = 17, .E = 13});
    cases.push_back({.name = "retention" + n, .N = N, .map = identity, .normalise = false, .decay = Decay::per_head});
    cases.push_back(
        {.name = "delta" + n, .N = N, .D = 12, .E = 20, .map = identity, .normalise = false, .delta = true});
    cases.push_back({.name = "gated delta" + n,
                     .N = N,
                     .map = identity,
                     .normalise = false,
                     .decay = Decay::per_token,
                     .delta = true,
                     .states = true});
    cases.push_back({.name = "full" + n, .M = 70, .N = N, .D = 9, .E = 33, .causal = false});
  }
  cases.push_back(
      {.name = "gated with normalisation", .B = 2, .N = 150, .decay = Decay::per_token, .states = true, .scale = 0.5});
  cases.push_back({.name = "GQA", .H = 6, .Hk = 2, .N = 100, .decay = Decay::per_token});
  cases.push_back({.name = "GQA, decay per query head",
                   .B = 2,
                   .H = 4,
                   .Hk = 2,
                   .N = 130,
                   .decay = Decay::per_head,
                   .decay_heads = 4,
                   .states = true});
  cases.push_back({.name = "GQA, delta",
                   .H = 4,
                   .Hk = 2,
                   .N = 130,
                   .map = identity,
                   .normalise = false,
                   .decay = Decay::per_token,
                   .delta = true,
                   .states = true,
                   .scale = 0.25});
  cases.push_back({.name = "GQA, delta, betas per query head",
                   .H = 4,
                   .Hk = 2,
                   .N = 70,
                   .map = identity,
                   .normalise = false,
                   .decay = Decay::per_token,
                   .decay_heads = 4,
                   .delta = true});
  cases.push_back(
      {.name = "GQA, full", .B = 2, .H = 4, .Hk = 1, .M = 90, .N = 600, .map = relu, .causal = false, .scale = 2});
  cases.push_back({.name = "wide", .H = 1, .Hk = 1, .N = 70, .D = 130, .E = 70, .decay = Decay::per_token});
  cases.push_back({.name = "wide delta",
                   .H = 1,
                   .Hk = 1,
                   .N = 140,
                   .D = 70,
                   .E = 130,
                   .map = identity,
                   .normalise = false,
                   .delta = true});
  cases.push_back(
      {.name = "padding", .B = 4, .N = 140, .decay = Decay::per_token, .states = true, .lengths = {140, 65, 3, 0}});
  cases.push_back({.name = "padding, delta",
                   .B = 3,
                   .N = 90,
                   .map = identity,
                   .normalise = false,
                   .decay = Decay::per_token,
                   .delta = true,
                   .states = true,
                   .lengths = {90, 64, 1}});
  cases.push_back({.name = "padding, full", .B = 3, .M = 33, .N = 90, .causal = false, .lengths = {90, 64, 0}});
  cases.push_back({.name = "given map",
                   .N = 90,
                   .D = 10,
                   .map = two_sided_map(10),
                   .decay = Decay::per_head,
                   .states = true,
                   .lengths = {80}});
  cases.push_back({.name = "given map, full",
                   .M = 20,
                   .N = 90,
                   .D = 10,
                   .map = two_sided_map(10),
                   .causal = false,
                   .lengths = {80}});
  cases.push_back(
      {.name = "not normalised, full", .M = 20, .N = 90, .map = identity, .causal = false, .normalise = false});
  cases.push_back({.name = "large", .N = 90, .size = 100});
  cases.push_back({.name = "large, identity",
                   .N = 90,
                   .map = identity,
                   .normalise = false,
                   .decay = Decay::per_token,
                   .size = 1000});
  return cases;
}

}  // namespace attend::test::ops
