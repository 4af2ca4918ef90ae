// Multi-head latent attention by its formulas, in double, over views of any dtype.
#include "reference/latent_attention.hpp"

#include <cmath>

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "reference/linear.hpp"
#include "reference/rms_norm.hpp"
#include "reference/rope.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

// Heads are kept apart here, [B, H, L, dim], so that every line is one of the paper's.
struct Steps {
  Tensor q_down, q_latent, kv_down, latent, q, k, v, out, y;
};

Tensor zeros(const View& like) {
  return Tensor(DType::f64, like.shape);
}

Tensor linear(const View& x, const View& weight) {
  Tensor y(DType::f64, {x.batch(), x.heads(), x.length(), weight.length()});
  reference::linear(x, weight, std::nullopt, y);
  return y;
}

void copy(const View& from, const MutableView& to) {
  for_each_row(to.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < to.dim(); ++d) store(to, b, h, i, d, load(from, b, h, i, d));
  });
}

void add(const View& x, const MutableView& sum) {
  for_each_row(sum.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < sum.dim(); ++d) store(sum, b, h, i, d, load(sum, b, h, i, d) + load(x, b, h, i, d));
  });
}

RopeOptions rope_options(const LatentAttentionConfig& c) {
  return {.style = c.rope, .theta = c.rope_theta, .scaling = c.rope_scaling};
}

AttentionOptions with_scale(const LatentAttentionConfig& c, AttentionOptions options) {
  if (!options.scale) options.scale = latent_attention_scale(c);
  return options;
}

Steps run(const LatentAttentionConfig& c, const LatentAttentionParameters& p, const View& x,
          const AttentionOptions& options) {
  const std::int64_t B = x.batch(), L = x.length(), H = c.heads;
  Steps s;
  if (c.q_rank > 0) {  // c_q = norm(W_dq x)
    s.q_down = linear(x, p.wq_down);
    s.q_latent = zeros(s.q_down);
    reference::rms_norm(s.q_down, p.q_norm, s.q_latent, c.norm_eps);
  }
  const Tensor q_rows = linear(c.q_rank > 0 ? s.q_latent.view() : x, p.wq);
  s.q = Tensor(DType::f64, {B, H, L, c.nope_dim + c.rope_dim});
  copy(split_heads(q_rows.view(), H), s.q);
  reference::rope(part_of(s.q.view(), c.nope_dim, c.rope_dim), part_of(s.q.view(), c.nope_dim, c.rope_dim),
                  rope_options(c));

  s.kv_down = linear(x, p.wkv_down);
  s.latent = Tensor(DType::f64, {B, 1, L, c.kv_rank});  // c_kv = norm(W_dkv x)
  reference::rms_norm(part_of(s.kv_down.view(), 0, c.kv_rank), p.kv_norm, s.latent, c.norm_eps);
  const Tensor up = linear(s.latent, p.wkv_up);
  const View heads = split_heads(up.view(), H);
  s.v = Tensor(DType::f64, {B, H, L, c.value_dim});
  copy(part_of(heads, c.nope_dim, c.value_dim), s.v);
  s.k = Tensor(DType::f64, {B, H, L, c.nope_dim + c.rope_dim});
  copy(part_of(heads, 0, c.nope_dim), part_of(s.k.view(), 0, c.nope_dim));
  for (std::int64_t h = 0; h < H; ++h) {  // k_r = rope(W_kr x), the same for all heads
    reference::rope(part_of(s.kv_down.view(), c.kv_rank, c.rope_dim),
                    head_of(part_of(s.k.view(), c.nope_dim, c.rope_dim), h), rope_options(c));
  }

  s.out = Tensor(DType::f64, {B, 1, L, H * c.value_dim});
  reference::attention(s.q, s.k, s.v, split_heads(s.out.view(), H), with_scale(c, options), {});
  s.y = linear(s.out, p.wo);
  return s;
}

// The gradients of linear: returns that of x.
Tensor linear_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight) {
  Tensor dx = zeros(x);
  dweight = zeros(weight);
  reference::linear_backward(dy, x, weight, {dx, dweight, std::nullopt});
  return dx;
}

}  // namespace

Tensor latent_attention(const LatentAttentionConfig& config, const LatentAttentionParameters& parameters, const View& x,
                        const AttentionOptions& options) {
  return run(config, parameters, x, options).y;
}

LatentAttentionGradients latent_attention_backward(const LatentAttentionConfig& c, const LatentAttentionParameters& p,
                                                   const View& dout, const View& x, const AttentionOptions& options) {
  const std::int64_t B = x.batch(), L = x.length(), H = c.heads;
  const Steps s = run(c, p, x, options);
  LatentAttentionGradients g;
  LatentAttentionParameters& dp = g.parameters;
  const Tensor d_out = linear_backward(dout, s.out, p.wo, dp.wo);
  Tensor dq = zeros(s.q), dk = zeros(s.k), dv = zeros(s.v);
  reference::attention_backward(split_heads(d_out.view(), H), s.q, s.k, s.v, {dq, dk, dv}, with_scale(c, options));

  Tensor dup(DType::f64, {B, 1, L, H * (c.nope_dim + c.value_dim)});
  copy(part_of(View(dk), 0, c.nope_dim), part_of(split_heads(dup.view(), H), 0, c.nope_dim));
  copy(dv, part_of(split_heads(dup.view(), H), c.nope_dim, c.value_dim));
  const Tensor dlatent = linear_backward(dup, s.latent, p.wkv_up, dp.wkv_up);
  Tensor dkv_down = zeros(s.kv_down);
  const MutableView rope_key = part_of(dkv_down.view(), c.kv_rank, c.rope_dim);
  for (std::int64_t h = 0; h < H; ++h) add(head_of(part_of(View(dk), c.nope_dim, c.rope_dim), h), rope_key);
  reference::rope_backward(rope_key, rope_key, rope_options(c));
  dp.kv_norm = zeros(p.kv_norm);
  reference::rms_norm_backward(dlatent, part_of(s.kv_down.view(), 0, c.kv_rank), p.kv_norm,
                               part_of(dkv_down.view(), 0, c.kv_rank), dp.kv_norm, c.norm_eps);
  g.dx = linear_backward(dkv_down, x, p.wkv_down, dp.wkv_down);

  const MutableView q_rope = part_of(dq.view(), c.nope_dim, c.rope_dim);
  reference::rope_backward(q_rope, q_rope, rope_options(c));
  Tensor dq_rows(DType::f64, {B, 1, L, H * (c.nope_dim + c.rope_dim)});
  copy(dq, split_heads(dq_rows.view(), H));
  if (c.q_rank == 0) {
    add(linear_backward(dq_rows, x, p.wq, dp.wq), g.dx);
    return g;
  }
  const Tensor dq_latent = linear_backward(dq_rows, s.q_latent, p.wq, dp.wq);
  Tensor dq_down = zeros(s.q_down);
  dp.q_norm = zeros(p.q_norm);
  reference::rms_norm_backward(dq_latent, s.q_down, p.q_norm, dq_down, dp.q_norm, c.norm_eps);
  add(linear_backward(dq_down, x, p.wq_down, dp.wq_down), g.dx);
  return g;
}

}  // namespace attend::reference
