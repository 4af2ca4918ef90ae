// A block of a transformer by its formulas, in double, over views of any dtype.
#include "reference/transformer_block.hpp"

#include <utility>

#include "reference/activation.hpp"
#include "reference/add.hpp"
#include "reference/linear.hpp"
#include "reference/multi_head_attention.hpp"
#include "reference/rms_norm.hpp"

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

Tensor sum(const View& x, const View& y) {
  Tensor z(DType::f64, x.shape);
  add(x, y, z);
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
  if (s.gate.empty())
    activation(activation_of(config.feed_forward), s.up, std::nullopt, s.hidden);
  else
    activation(activation_of(config.feed_forward), s.gate, s.up, s.hidden);
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
  if (s.gate.empty())
    activation_backward(activation_of(config.feed_forward), dup, s.up, std::nullopt, dup, std::nullopt);
  else
    activation_backward(activation_of(config.feed_forward), dup, s.gate, s.up, dgate, dup);
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
