// The attention layer over a ring: local projections, RoPE by the rank's places, gradients summed over the ranks.
#include <string>
#include <utility>
#include <vector>

#include "attend/add.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "ops/rows.hpp"
#include "ring/blocks.hpp"
#include "ring/link.hpp"
#include "ring/shards.hpp"

namespace attend::ring {
namespace {

constexpr const char* kOp = "ring_multi_head_attention";
constexpr const char* kBackwardOp = "ring_multi_head_attention_backward";

using Parameters = MultiHeadAttentionParameters;
using Config = MultiHeadAttentionConfig;

constexpr Tensor Parameters::* kParameters[] = {
    &Parameters::wq, &Parameters::wk, &Parameters::wv, &Parameters::wv_down, &Parameters::wo,    &Parameters::bq,
    &Parameters::bk, &Parameters::bv, &Parameters::bo, &Parameters::q_norm,  &Parameters::k_norm};

std::optional<View> optional_view(const Tensor& tensor) {
  return tensor.empty() ? std::nullopt : std::optional<View>(tensor);
}

Tensor project(const View& x, const Tensor& weight, const std::optional<View>& bias) {
  Tensor y(x.dtype, {x.batch(), 1, x.length(), weight.shape()[2]});
  linear(x, weight, bias, y);
  return y;
}

std::vector<std::int64_t> positions_of(const Link& link, const RingOptions& options, std::int64_t local) {
  return ring_positions(options.sharding, link.rank(), link.ranks(),
                        checked_product("tokens of all ranks", {local, link.ranks()}));
}

// The rotations of the rank's tokens; empty without RoPE.
RopeTable rotations(const Config& config, const std::vector<std::int64_t>& positions) {
  if (!config.rope) return {};
  return {rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling), *config.rope, positions};
}

// Norm and RoPE over the heads of `rows`, in place; `raw` keeps them as they were for backward.
void norm_and_rotate(const Config& config, Tensor& rows, std::int64_t heads, const Tensor& norm, const RopeTable& table,
                     Tensor& raw) {
  const MutableView view = split_heads(rows.view(), heads);
  if (config.qk_norm) {
    raw = rows.clone();
    rms_norm(view, norm, view, config.norm_eps);
  }
  if (config.rope) rope(view, view, table);
}

// Fills in x, q, k, v and what they were made from.
void make_projections(const Link& link, const MultiHeadAttention& layer, const View& x, const RingOptions& options,
                      MultiHeadAttentionSaved& s) {
  const Config& config = layer.config();
  const Parameters& p = layer.parameters();
  check_readable(kOp, "x", x);
  check_shape(kOp, "x", x.shape, {x.batch(), 1, x.length(), config.width});
  check_dtype(kOp, "x", x.dtype, config.dtype);
  if (config.dtype == DType::f64) fail(kOp, "layer dtype is f64, expected f32, f16 or bf16");
  check_equal(kOp, "context_width", config.context_width, config.width, "K and V come from x");
  if (config.inner != nullptr) {
    fail(kOp, std::string("the layer's inner attention is ") + config.inner->name() +
                  ", expected none: the ring passes keys and values of softmax attention");
  }
  check_options(kOp, options, x.length());
  s.x = Tensor(x.dtype, x.shape);
  copy_rows(x, s.x);
  s.q = project(x, p.wq, optional_view(p.bq));
  s.k = project(x, p.wk, optional_view(p.bk));
  const bool factored = config.value_rank > 0;
  if (factored) s.v_down = project(x, p.wv_down, std::nullopt);
  s.v = project(factored ? s.v_down.view() : x, p.wv, optional_view(p.bv));
  const RopeTable table = rotations(config, positions_of(link, options, x.length()));
  norm_and_rotate(config, s.q, config.heads, p.q_norm, table, s.q_raw);
  norm_and_rotate(config, s.k, config.kv_heads, p.k_norm, table, s.k_raw);
  s.options = options.attention;
}

Facts layer_facts(const Config& c, const View& x, const RingOptions& options) {
  return {{"dtype", static_cast<std::int64_t>(c.dtype)},
          {"batch", x.batch()},
          {"tokens", x.length()},
          {"width", c.width},
          {"output width", c.output_width},
          {"heads", c.heads},
          {"kv heads", c.kv_heads},
          {"head dim", c.head_dim},
          {"value dim", c.value_dim},
          {"value rank", c.value_rank},
          {"qkv bias", c.qkv_bias ? 1 : 0},
          {"output bias", c.output_bias ? 1 : 0},
          {"qk norm", c.qk_norm ? 1 : 0},
          {"rope style", c.rope ? 1 + static_cast<std::int64_t>(*c.rope) : 0},
          {"sharding", static_cast<std::int64_t>(options.sharding)},
          {"options", hash_of(options), true}};
}

// A saved state that no forward of this layer filled is refused.
void check_saved(const Config& c, const MultiHeadAttentionSaved& s, const View& dout, const RingOptions& options) {
  const std::int64_t B = s.x.shape()[0], M = s.x.shape()[2];
  const auto check = [&](const char* what, const Tensor& tensor, std::int64_t dim) {
    check_shape(kBackwardOp, what, tensor.shape(), {B, 1, M, dim});
    check_dtype(kBackwardOp, what, tensor.dtype(), c.dtype);
  };
  if (s.x.empty()) fail(kOp, "saved x shape is [0, 0, 0, 0]: saved is empty; let ring_multi_head_attention fill it");
  check("saved x", s.x, c.width);
  check("saved q", s.q, c.heads * c.head_dim);
  check("saved k", s.k, c.kv_heads * c.head_dim);
  check("saved v", s.v, c.kv_heads * c.value_dim);
  check("saved out", s.out, c.heads * c.value_dim);
  if (c.qk_norm) check("saved q_raw", s.q_raw, c.heads * c.head_dim);
  if (c.qk_norm) check("saved k_raw", s.k_raw, c.kv_heads * c.head_dim);
  if (c.value_rank > 0) check("saved v_down", s.v_down, c.value_rank);
  check_shape(kBackwardOp, "saved lse", s.lse.shape(), {B, c.heads, M, 1});
  check_readable(kBackwardOp, "dout", dout);
  check_shape(kBackwardOp, "dout", dout.shape, {B, 1, M, c.output_width});
  check_dtype(kBackwardOp, "dout", dout.dtype, c.dtype);
  check_options(kBackwardOp, options, M);
}

// The gradients of project(): returns that of x; those of weight and bias are f32, to be summed over the ranks.
Tensor project_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight, Tensor& dbias) {
  Tensor dx(x.dtype, x.shape);
  LinearGradients gradients{dx, dweight, std::nullopt};
  if (!dbias.empty()) gradients.dbias = dbias;
  linear_backward(dy, x, weight, gradients);
  return dx;
}

// `rows` holds the gradient of what norm_and_rotate made, and becomes that of what it was given.
void norm_and_rotate_backward(const Config& config, Tensor& rows, std::int64_t heads, const Tensor& raw,
                              const Tensor& norm, const RopeTable& table, Tensor& dnorm) {
  const MutableView view = split_heads(rows.view(), heads);
  if (config.rope) rope_backward(view, view, table);
  if (config.qk_norm) rms_norm_backward(view, split_heads(raw.view(), heads), norm, view, dnorm, config.norm_eps);
}

// The gradients of all ranks' parameters, in one message for each pair of ranks, then rounded to the layer's dtype.
void sum_over_ranks(Link& link, DType dtype, Parameters& gradients) {
  std::int64_t count = 0;
  for (const auto member : kParameters) count += (gradients.*member).size();
  std::vector<float> all(static_cast<std::size_t>(count));
  float* at = all.data();
  for (const auto member : kParameters) {
    const Tensor& tensor = gradients.*member;
    if (!tensor.empty()) at = std::copy_n(tensor.data<float>(), tensor.size(), at);
  }
  link.sum(all.data(), count);
  at = all.data();
  for (const auto member : kParameters) {
    Tensor& tensor = gradients.*member;
    if (tensor.empty()) continue;
    Tensor rounded(dtype, tensor.shape());
    round_rows(View{DType::f32, at, tensor.shape(), contiguous_strides(tensor.shape())}, rounded);
    at += tensor.size();
    tensor = std::move(rounded);
  }
}

MultiHeadAttentionGradients backward(Link& link, RingCommunicator comm, const MultiHeadAttention& layer,
                                     const View& dout, const MultiHeadAttentionSaved& saved,
                                     const RingOptions& options) {
  const Config& config = layer.config();
  const Parameters& p = layer.parameters();
  const std::int64_t H = config.heads, Hk = config.kv_heads;
  MultiHeadAttentionGradients g;
  Parameters& dp = g.parameters;
  for (const auto member : kParameters) {
    if (!(p.*member).empty()) dp.*member = Tensor(DType::f32, (p.*member).shape());
  }
  Tensor none;
  const Tensor d_out = project_backward(dout, saved.out, p.wo, dp.wo, dp.bo);
  Tensor dq(config.dtype, saved.q.shape()), dk(config.dtype, saved.k.shape()), dv(config.dtype, saved.v.shape());
  ring_attention_backward(comm, split_heads(d_out.view(), H), split_heads(saved.q.view(), H),
                          split_heads(saved.k.view(), Hk), split_heads(saved.v.view(), Hk),
                          split_heads(saved.out.view(), H), saved.lse,
                          {split_heads(dq.view(), H), split_heads(dk.view(), Hk), split_heads(dv.view(), Hk)}, options);
  const RopeTable table = rotations(config, positions_of(link, options, saved.x.shape()[2]));
  norm_and_rotate_backward(config, dq, H, saved.q_raw, p.q_norm, table, dp.q_norm);
  norm_and_rotate_backward(config, dk, Hk, saved.k_raw, p.k_norm, table, dp.k_norm);
  g.dx = project_backward(dq, saved.x, p.wq, dp.wq, dp.bq);
  const Tensor dx_k = project_backward(dk, saved.x, p.wk, dp.wk, dp.bk);
  Tensor dx_v;
  if (config.value_rank > 0) {
    const Tensor dv_down = project_backward(dv, saved.v_down, p.wv, dp.wv, dp.bv);
    dx_v = project_backward(dv_down, saved.x, p.wv_down, dp.wv_down, none);
  } else {
    dx_v = project_backward(dv, saved.x, p.wv, dp.wv, dp.bv);
  }
  Tensor both(DType::f32, dx_k.shape());  // so that the sum of three is rounded once
  add(dx_k, dx_v, both);
  add(g.dx, both, g.dx);
  sum_over_ranks(link, config.dtype, dp);
  return g;
}

}  // namespace
}  // namespace attend::ring

namespace attend {

Tensor ring_multi_head_attention(RingCommunicator comm, const MultiHeadAttention& layer, View x,
                                 const RingOptions& options, MultiHeadAttentionSaved* saved) {
  ring::Link link(comm, ring::kOp, options);
  MultiHeadAttentionSaved s;
  link.agree([&](ring::Facts& facts) {
    ring::make_projections(link, layer, x, options, s);
    facts = ring::layer_facts(layer.config(), x, options);
  });
  Tensor result;
  link.run([&] {
    const MultiHeadAttentionConfig& config = layer.config();
    const std::int64_t H = config.heads, Hk = config.kv_heads;
    s.out = Tensor(config.dtype, {x.batch(), 1, x.length(), H * config.value_dim});
    s.lse = Tensor(DType::f32, {x.batch(), H, x.length(), 1});
    ring_attention(comm, split_heads(s.q.view(), H), split_heads(s.k.view(), Hk), split_heads(s.v.view(), Hk),
                   split_heads(s.out.view(), H), options, s.lse);
    result = ring::project(s.out, layer.parameters().wo, ring::optional_view(layer.parameters().bo));
    if (saved != nullptr) *saved = std::move(s);
  });
  return result;
}

MultiHeadAttentionGradients ring_multi_head_attention_backward(RingCommunicator comm, const MultiHeadAttention& layer,
                                                               View dout, const MultiHeadAttentionSaved& saved,
                                                               const RingOptions& options) {
  ring::Link link(comm, ring::kBackwardOp, options);
  link.agree([&](ring::Facts& facts) {
    ring::check_saved(layer.config(), saved, dout, options);
    facts = ring::layer_facts(layer.config(), saved.x, options);
  });
  MultiHeadAttentionGradients gradients;
  link.run([&] { gradients = ring::backward(link, comm, layer, dout, saved, options); });
  ring::add_times(options, link.times);
  return gradients;
}

}  // namespace attend
