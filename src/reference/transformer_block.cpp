// A block of a transformer by its formulas, in double, over views of any dtype.
#include "reference/transformer_block.hpp"

#include <cmath>
#include <utility>

#include "base/elements.hpp"
#include "reference/linear.hpp"
#include "reference/multi_head_attention.hpp"
#include "reference/rms_norm.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

struct Steps {
  Tensor norm1, y, norm2, gate, up, hidden, z;
};

Tensor linear(const View& x, const Tensor& weight) {
  Tensor y(DType::f64, {x.batch(), 1, x.length(), weight.shape()[2]});
  reference::linear(x, weight, std::nullopt, y);
  return y;
}

Tensor rms_norm(const View& x, const Tensor& weight, double eps) {
  Tensor y(DType::f64, x.shape);
  reference::rms_norm(x, weight, y, eps);
  return y;
}

template <class F>
void for_each(const Tensor& x, const F& f) {
  for_each_row(x.shape(), [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < x.shape()[3]; ++d) f(b, h, i, d);
  });
}

Tensor sum(const View& x, const View& y) {
  Tensor z(DType::f64, x.shape);
  for_each(z, [&](auto b, auto h, auto i, auto d) { store(z, b, h, i, d, load(x, b, h, i, d) + load(y, b, h, i, d)); });
  return z;
}

Steps run(const TransformerBlockConfig& config, const MultiHeadAttentionParameters& attention,
          const TransformerBlockParameters& p, const View& x, const AttentionOptions& options) {
  Steps s;
  s.norm1 = rms_norm(x, p.norm1, config.norm_eps);
  s.y = sum(x, multi_head_attention(config.attention, attention, s.norm1, std::nullopt, options));
  s.norm2 = rms_norm(s.y, p.norm2, config.norm_eps);
  s.up = linear(s.norm2, p.up);
  if (config.feed_forward == FeedForward::swiglu) s.gate = linear(s.norm2, p.gate);
  s.hidden = Tensor(DType::f64, s.up.shape());
  for_each(s.hidden, [&](auto b, auto h, auto i, auto d) {
    const double gate = s.gate.empty() ? 0 : load(s.gate, b, h, i, d);
    store(s.hidden, b, h, i, d, activation(config.feed_forward, gate, load(s.up, b, h, i, d)));
  });
  s.z = sum(s.y, linear(s.hidden, p.down));
  return s;
}

// The gradients of linear: returns that of x.
Tensor linear_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight) {
  Tensor dx(DType::f64, x.shape);
  dweight = Tensor(DType::f64, weight.shape());
  reference::linear_backward(dy, x, weight, {dx, dweight, std::nullopt});
  return dx;
}

Tensor rms_norm_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight, double eps) {
  Tensor dx(DType::f64, x.shape);
  dweight = Tensor(DType::f64, weight.shape());
  reference::rms_norm_backward(dy, x, weight, dx, dweight, eps);
  return dx;
}

}  // namespace

double activation(FeedForward kind, double gate, double up) {
  if (kind == FeedForward::swiglu) return gate / (1 + std::exp(-gate)) * up;
  if (kind == FeedForward::gelu) return up * (1 + std::erf(up / std::sqrt(2.0))) / 2;
  return up > 0 ? up : 0;
}

ActivationGradient activation_gradient(FeedForward kind, double gate, double up) {
  constexpr double kPi = 3.14159265358979323846;
  if (kind == FeedForward::swiglu) {
    const double sigmoid = 1 / (1 + std::exp(-gate));
    return {up * sigmoid * (1 + gate * (1 - sigmoid)), gate * sigmoid};
  }
  if (kind == FeedForward::gelu) {
    return {0, (1 + std::erf(up / std::sqrt(2.0))) / 2 + up * std::exp(-up * up / 2) / std::sqrt(2 * kPi)};
  }
  return {0, up > 0 ? 1.0 : 0.0};
}

Tensor transformer_block(const TransformerBlockConfig& config, const MultiHeadAttentionParameters& attention,
                         const TransformerBlockParameters& parameters, const View& x, const AttentionOptions& options) {
  return run(config, attention, parameters, x, options).z;
}

TransformerBlockGradients transformer_block_backward(const TransformerBlockConfig& config,
                                                     const MultiHeadAttentionParameters& attention,
                                                     const TransformerBlockParameters& p, const View& dout,
                                                     const View& x, const AttentionOptions& options) {
  const Steps s = run(config, attention, p, x, options);
  TransformerBlockGradients g;
  TransformerBlockParameters& dp = g.parameters;
  Tensor dup = linear_backward(dout, s.hidden, p.down, dp.down), dgate(DType::f64, dup.shape());
  for_each(dup, [&](auto b, auto h, auto i, auto d) {
    const double gate = s.gate.empty() ? 0 : load(s.gate, b, h, i, d), dh = load(dup, b, h, i, d);
    const ActivationGradient slope = activation_gradient(config.feed_forward, gate, load(s.up, b, h, i, d));
    store(dgate, b, h, i, d, dh * slope.gate);
    store(dup, b, h, i, d, dh * slope.up);
  });
  Tensor dnorm2 = linear_backward(dup, s.norm2, p.up, dp.up);
  if (!s.gate.empty()) dnorm2 = sum(dnorm2, linear_backward(dgate, s.norm2, p.gate, dp.gate));
  const Tensor dy = sum(dout, rms_norm_backward(dnorm2, s.y, p.norm2, dp.norm2, config.norm_eps));

  MultiHeadAttentionGradients of =
      multi_head_attention_backward(config.attention, attention, dy, s.norm1, std::nullopt, options);
  g.attention = std::move(of.parameters);
  g.dbias = std::move(of.dbias);
  g.dsinks = std::move(of.dsinks);
  g.dx = sum(dy, rms_norm_backward(of.dx, x, p.norm1, dp.norm1, config.norm_eps));
  return g;
}

}  // namespace attend::reference
