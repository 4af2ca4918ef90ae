// The attention layer by its formulas, in double, over views of any dtype.
#include "reference/multi_head_attention.hpp"

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "reference/linear.hpp"
#include "reference/rms_norm.hpp"
#include "reference/rope.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

struct Steps {
  Tensor q_raw, q, k_raw, k, v_down, v, out, y;
};

Tensor zeros_like(const View& x) {
  return Tensor(DType::f64, x.shape);
}

Tensor linear(const View& x, const Tensor& weight, const Tensor& bias) {
  Tensor y(DType::f64, {x.batch(), 1, x.length(), weight.shape()[2]});
  reference::linear(x, weight, bias.empty() ? std::nullopt : std::optional<View>(bias), y);
  return y;
}

// What turns a projected q or k into the one attention sees.
Tensor norm_and_rotate(const MultiHeadAttentionConfig& config, const Tensor& raw, const Tensor& norm,
                       std::int64_t heads) {
  Tensor y = raw.clone();
  const MutableView rows = split_heads(y.view(), heads);
  if (config.qk_norm) reference::rms_norm(rows, norm, rows, config.norm_eps);
  if (config.rope)
    reference::rope(rows, rows, {.style = *config.rope, .theta = config.rope_theta, .scaling = config.rope_scaling});
  return y;
}

// The gradient of norm_and_rotate: dy becomes the gradient of `raw`, dnorm that of the norm.
void norm_and_rotate_backward(const MultiHeadAttentionConfig& config, Tensor& dy, const Tensor& raw, const Tensor& norm,
                              Tensor& dnorm, std::int64_t heads) {
  const MutableView rows = split_heads(dy.view(), heads);
  if (config.rope)
    reference::rope_backward(rows, rows,
                             {.style = *config.rope, .theta = config.rope_theta, .scaling = config.rope_scaling});
  if (config.qk_norm) {
    dnorm = zeros_like(norm);
    reference::rms_norm_backward(rows, split_heads(raw.view(), heads), norm, rows, dnorm, config.norm_eps);
  }
}

Steps run(const MultiHeadAttentionConfig& config, const MultiHeadAttentionParameters& p, const View& x,
          const View& context, const AttentionOptions& options) {
  const std::int64_t H = config.heads, Hk = config.kv_heads;
  Steps s;
  s.q_raw = linear(x, p.wq, p.bq);
  s.k_raw = linear(context, p.wk, p.bk);
  if (config.value_rank > 0) s.v_down = linear(context, p.wv_down, {});
  s.v = linear(config.value_rank > 0 ? s.v_down : context, p.wv, p.bv);
  s.q = norm_and_rotate(config, s.q_raw, p.q_norm, H);
  s.k = norm_and_rotate(config, s.k_raw, p.k_norm, Hk);

  s.out = Tensor(DType::f64, {x.batch(), 1, x.length(), H * config.value_dim});
  reference::attention(split_heads(s.q.view(), H), split_heads(s.k.view(), Hk), split_heads(s.v.view(), Hk),
                       split_heads(s.out.view(), H), options, {});
  s.y = linear(s.out, p.wo, p.bo);
  return s;
}

// The gradients of linear: returns that of x.
Tensor linear_backward(const View& dy, const View& x, const Tensor& weight, const Tensor& bias, Tensor& dweight,
                       Tensor& dbias) {
  Tensor dx = zeros_like(x);
  dweight = zeros_like(weight);
  LinearGradients gradients{dx, dweight, std::nullopt};
  if (!bias.empty()) {
    dbias = zeros_like(bias);
    gradients.dbias = dbias;
  }
  reference::linear_backward(dy, x, weight, gradients);
  return dx;
}

void add(Tensor& sum, const Tensor& x) {
  for_each_row(sum.shape(), [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t j = 0; j < sum.shape()[3]; ++j) {
      store(sum, b, h, i, j, load(sum, b, h, i, j) + load(x, b, h, i, j));
    }
  });
}

}  // namespace

Tensor multi_head_attention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionParameters& parameters,
                            const View& x, const std::optional<View>& context, const AttentionOptions& options) {
  return run(config, parameters, x, context.value_or(x), options).y;
}

MultiHeadAttentionGradients multi_head_attention_backward(const MultiHeadAttentionConfig& config,
                                                          const MultiHeadAttentionParameters& p, const View& dout,
                                                          const View& x, const std::optional<View>& context,
                                                          const AttentionOptions& options) {
  const std::int64_t H = config.heads, Hk = config.kv_heads;
  const View source = context.value_or(x);
  const Steps s = run(config, p, x, source, options);
  MultiHeadAttentionGradients g;
  MultiHeadAttentionParameters& dp = g.parameters;

  const Tensor d_attention = linear_backward(dout, s.out, p.wo, p.bo, dp.wo, dp.bo);

  Tensor dq = zeros_like(s.q), dk = zeros_like(s.k), dv = zeros_like(s.v);
  AttentionGradients of{split_heads(dq.view(), H), split_heads(dk.view(), Hk), split_heads(dv.view(), Hk), {}, {}, {}};
  if (options.bias) of.dbias = g.dbias = zeros_like(*options.bias);
  if (options.sinks) of.dsinks = g.dsinks = zeros_like(*options.sinks);
  if (options.distance_bias) of.ddistance_bias = g.ddistance_bias = zeros_like(*options.distance_bias);
  reference::attention_backward(split_heads(d_attention.view(), H), split_heads(s.q.view(), H),
                                split_heads(s.k.view(), Hk), split_heads(s.v.view(), Hk), of, options);

  norm_and_rotate_backward(config, dq, s.q_raw, p.q_norm, dp.q_norm, H);
  norm_and_rotate_backward(config, dk, s.k_raw, p.k_norm, dp.k_norm, Hk);

  g.dx = linear_backward(dq, x, p.wq, p.bq, dp.wq, dp.bq);
  Tensor dsource = linear_backward(dk, source, p.wk, p.bk, dp.wk, dp.bk);
  if (config.value_rank > 0) {
    const Tensor dv_down = linear_backward(dv, s.v_down, p.wv, p.bv, dp.wv, dp.bv);
    Tensor none;
    add(dsource, linear_backward(dv_down, source, p.wv_down, {}, dp.wv_down, none));
  } else {
    add(dsource, linear_backward(dv, source, p.wv, p.bv, dp.wv, dp.bv));
  }
  if (context) {
    g.dcontext = std::move(dsource);
  } else {
    add(g.dx, dsource);
  }
  return g;
}

}  // namespace attend::reference
