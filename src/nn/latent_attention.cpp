// Multi-head latent attention, composed from linear, rms_norm, rope and attention.
#include "attend/latent_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "attend/add.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "nn/layer_parts.hpp"
#include "ops/matmul.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

constexpr const char* kOp = "latent_attention";

// ---- Sizes and parameters ----

LatentAttentionConfig checked(const LatentAttentionConfig& c) {
  check_dtype(kOp, "config", c.dtype, c.dtype);  // known at all
  check_at_least(kOp, "width", c.width, 1);
  check_at_least(kOp, "heads", c.heads, 1);
  check_at_least(kOp, "q_rank", c.q_rank, 0);
  check_at_least(kOp, "kv_rank", c.kv_rank, 1);
  check_at_least(kOp, "nope_dim", c.nope_dim, 1);
  check_at_least(kOp, "rope_dim", c.rope_dim, 2);
  check_at_least(kOp, "value_dim", c.value_dim, 1);
  const auto check_rank = [&](const char* what, std::int64_t rank) {
    if (rank <= c.width) return;
    fail(kOp, std::string(what) + " is " + std::to_string(rank) + ", expected at most " + std::to_string(c.width) +
                  " (the width): a rank above it compresses nothing");
  };
  check_rank("kv_rank", c.kv_rank);
  check_rank("q_rank", c.q_rank);
  if (c.rope != RopeStyle::half_split && c.rope != RopeStyle::interleaved) {
    fail(kOp, "rope is " + std::to_string(static_cast<int>(c.rope)) + ", expected half_split or interleaved");
  }
  if (c.rope_dim % 2 != 0) {
    fail(kOp, "rope_dim is " + std::to_string(c.rope_dim) + ", expected an even number (RoPE rotates pairs)");
  }
  rope_frequencies(2, c.rope_theta, c.rope_scaling);  // refuses a scaling that makes no sense
  if (!(c.norm_eps >= 0) || !std::isfinite(c.norm_eps)) {
    fail(kOp, "norm_eps is " + std::to_string(c.norm_eps) + ", expected a finite number from 0 up");
  }
  if (c.scale && !std::isfinite(*c.scale)) {
    fail(kOp, "scale is " + std::to_string(*c.scale) + ", expected a finite number");
  }
  return c;
}

ParameterSpecs<LatentAttentionParameters, 7> parameter_specs(const LatentAttentionConfig& c) {
  using P = LatentAttentionParameters;
  const bool compressed = c.q_rank > 0;
  const std::int64_t q_inputs = compressed ? c.q_rank : c.width;
  const std::int64_t q = checked_product("heads x (nope_dim + rope_dim)", {c.heads, c.nope_dim + c.rope_dim});
  const std::int64_t kv = checked_product("heads x (nope_dim + value_dim)", {c.heads, c.nope_dim + c.value_dim});
  const std::int64_t out = checked_product("heads x value_dim", {c.heads, c.value_dim});
  return {{{"wq_down", &P::wq_down, compressed, {1, 1, c.q_rank, c.width}, c.width},
           {"q_norm", &P::q_norm, compressed, {1, 1, 1, c.q_rank}, 0},
           {"wq", &P::wq, true, {1, 1, q, q_inputs}, q_inputs},
           {"wkv_down", &P::wkv_down, true, {1, 1, c.kv_rank + c.rope_dim, c.width}, c.width},
           {"kv_norm", &P::kv_norm, true, {1, 1, 1, c.kv_rank}, 0},
           {"wkv_up", &P::wkv_up, true, {1, 1, kv, c.kv_rank}, c.kv_rank},
           {"wo", &P::wo, true, {1, 1, c.width, out}, out}}};
}

// ---- Projections ----

Tensor project(const View& x, const View& weight) {
  Tensor y(x.dtype, {x.batch(), 1, x.length(), weight.length()});
  linear(x, weight, std::nullopt, y);
  return y;
}

RopeTable rotations(const LatentAttentionConfig& c, std::int64_t first_position, std::int64_t length) {
  return {c.rope_dim,
          length,
          {.style = c.rope, .theta = c.rope_theta, .first_position = first_position, .scaling = c.rope_scaling}};
}

// The query side of some tokens, before RoPE.
struct Queries {
  Tensor down, latent, q;
};
Queries make_queries(const LatentAttentionConfig& c, const LatentAttentionParameters& p, const View& x) {
  Queries y;
  if (c.q_rank > 0) {
    y.down = project(x, p.wq_down);
    y.latent = Tensor(c.dtype, y.down.shape());
    rms_norm(y.down, p.q_norm, y.latent, c.norm_eps);
  }
  y.q = project(c.q_rank > 0 ? y.latent.view() : x, p.wq);
  return y;
}

// From kv_down [.., kv_rank + rope_dim] to what a cache holds: c_kv after its norm, the key part after RoPE.
void make_latents(const LatentAttentionConfig& c, const LatentAttentionParameters& p, const View& down,
                  const RopeTable& table, const MutableView& to) {
  rms_norm(part_of(down, 0, c.kv_rank), p.kv_norm, part_of(to, 0, c.kv_rank), c.norm_eps);
  rope(part_of(down, c.kv_rank, c.rope_dim), part_of(to, c.kv_rank, c.rope_dim), table);
}

// The keys of every head, [B, 1, N, heads * (nope + rope)]: their own part and the shared one.
Tensor make_keys(const LatentAttentionConfig& c, const Tensor& kv_up, const View& latents) {
  const std::int64_t B = latents.batch(), N = latents.length();
  Tensor k(c.dtype, {B, 1, N, c.heads * (c.nope_dim + c.rope_dim)});
  const MutableView keys = split_heads(k.view(), c.heads);
  copy_rows(part_of(split_heads(kv_up.view(), c.heads), 0, c.nope_dim), part_of(keys, 0, c.nope_dim));
  View shared = part_of(latents, c.kv_rank, c.rope_dim);
  shared.shape[1] = c.heads;
  shared.strides[1] = 0;
  copy_rows(shared, part_of(keys, c.nope_dim, c.rope_dim));
  return k;
}

void check_input(const LatentAttentionConfig& config, const View& x) {
  check_readable(kOp, "x", x);
  check_shape(kOp, "x", x.shape, {x.batch(), 1, x.length(), config.width});
  check_dtype(kOp, "x", x.dtype, config.dtype);
}

DType wide(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

// ---- Backward ----

// A saved state that no forward of this layer filled is refused.
void check_saved(const LatentAttentionConfig& c, const LatentAttentionSaved& s) {
  if (s.x.empty())
    fail(kOp, "saved x shape is [0, 0, 0, 0]: saved is empty; let forward fill it: forward(x, options, &saved)");
  const std::int64_t B = s.x.shape()[0], L = s.x.shape()[2];
  const auto check = [&](const char* what, const Tensor& tensor, std::int64_t dim) {
    check_shape(kOp, what, tensor.shape(), {B, 1, L, dim});
    check_dtype(kOp, what, tensor.dtype(), c.dtype);
  };
  check("saved x", s.x, c.width);
  if (c.q_rank > 0) check("saved q_down", s.q_down, c.q_rank);
  if (c.q_rank > 0) check("saved q_latent", s.q_latent, c.q_rank);
  check("saved kv_down", s.kv_down, c.kv_rank + c.rope_dim);
  check("saved latent", s.latent, c.kv_rank);
  check("saved q", s.q, c.heads * (c.nope_dim + c.rope_dim));
  check("saved k", s.k, c.heads * (c.nope_dim + c.rope_dim));
  check("saved kv_up", s.kv_up, c.heads * (c.nope_dim + c.value_dim));
  check("saved out", s.out, c.heads * c.value_dim);
  check_shape(kOp, "saved lse", s.lse.shape(), {B, c.heads, L, 1});
}

// The gradients of project(): returns that of x.
Tensor project_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight) {
  Tensor dx(x.dtype, x.shape);
  linear_backward(dy, x, weight, {dx, dweight, std::nullopt});
  return dx;
}

// The sum over heads, rounded once: from [B, H, L, D] to [B, 1, L, D].
void sum_heads(const View& x, const MutableView& y) {
  const std::int64_t L = x.length();
  for_each_row(x.batch() * L, x.dim() * x.heads(), [&](std::int64_t r) {
    for (std::int64_t d = 0; d < x.dim(); ++d) {
      double sum = 0;
      for (std::int64_t h = 0; h < x.heads(); ++h) sum += load(x, r / L, h, r % L, d);
      store(y, r / L, 0, r % L, d, sum);
    }
  });
}

// ---- Step ----

void check_step(const LatentAttentionConfig& c, const View& x, const Tensor& rows, std::int64_t length,
                const AttentionOptions& options) {
  check_input(c, x);
  const std::int64_t capacity = rows.shape()[2];
  check_shape(kOp, "cache", rows.shape(), {x.batch(), 1, capacity, c.kv_rank + c.rope_dim});
  check_dtype(kOp, "cache", rows.dtype(), c.dtype);
  if (x.length() > capacity - length) {
    fail(kOp, "x length is " + std::to_string(x.length()) + ", expected at most " + std::to_string(capacity - length) +
                  " (a cache of " + std::to_string(capacity) + " holds " + std::to_string(length) + ")");
  }
  check_step_options(kOp, options);
}

Matrix matrix_of(const View& x, std::int64_t b, std::int64_t h) {
  const auto* data = static_cast<const char*>(x.data) + (b * x.strides[0] + h * x.strides[1]) * size_of(x.dtype);
  return {x.dtype, data, x.length(), x.dim(), x.strides[2], x.strides[3]};
}

// y(b, h) = x(b, h) . w(h), a product for every head at once: x [B, H, T, in], w [1, H, in, out], y [B, H, T, out].
void multiply_heads(const View& x, const View& w, const MutableView& y) {
  if (row_count(y.shape) == 0) return;
  parallel_for(x.batch() * x.heads(), [&](std::int64_t item, int) {
    const std::int64_t b = item / x.heads(), h = item % x.heads();
    const Matrix c = matrix_of(y, b, h);
    matmul(matrix_of(x, b, h), matrix_of(w, 0, h), std::nullopt,
           {c.dtype, const_cast<void*>(c.data), c.rows, c.cols, c.row_stride, c.col_stride});
  });
}

View transposed(View x) {
  std::swap(x.shape[2], x.shape[3]);
  std::swap(x.strides[2], x.strides[3]);
  return x;
}

}  // namespace

LatentCache::LatentCache(const LatentAttentionConfig& config, std::int64_t batch, std::int64_t capacity) {
  const LatentAttentionConfig c = checked(config);
  if (batch < 0) fail("LatentCache", "batch is " + std::to_string(batch) + ", expected at least 0");
  if (capacity < 0) fail("LatentCache", "capacity is " + std::to_string(capacity) + ", expected at least 0");
  rows_ = Tensor(c.dtype, {batch, 1, capacity, c.kv_rank + c.rope_dim});
}

View LatentCache::rows() const {
  return slice_length(rows_.view(), 0, length_);
}

void LatentCache::truncate(std::int64_t length) {
  check_truncate("LatentCache::truncate", length, length_);
  length_ = length;
}

LatentAttention::LatentAttention(const LatentAttentionConfig& config)
    : config_(checked(config)), parameters_(make_parameters(parameter_specs(config_), config_.dtype)) {}

std::int64_t LatentAttention::parameter_count() const {
  return count_parameters(parameter_specs(config_));
}

double latent_attention_scale(const LatentAttentionConfig& c) {
  if (c.scale) return *c.scale;
  const RopeScaling& s = c.rope_scaling;
  const bool stretched = s.kind == RopeScaling::Kind::yarn && s.factor > 1;
  const double m = stretched ? 0.1 * s.mscale_all_dim * std::log(s.factor) + 1 : 1.0;
  return m * m / std::sqrt(static_cast<double>(c.nope_dim + c.rope_dim));
}

double LatentAttention::scale() const {
  return latent_attention_scale(config_);
}

std::int64_t LatentAttention::bytes_per_token() const {
  return (config_.kv_rank + config_.rope_dim) * size_of(config_.dtype);
}

std::int64_t LatentAttention::expanded_bytes_per_token() const {
  return config_.heads * (config_.nope_dim + config_.rope_dim + config_.value_dim) * size_of(config_.dtype);
}

void LatentAttention::initialise(std::uint64_t seed) {
  check_parameters(kOp, parameter_specs(config_), config_.dtype, parameters_);
  draw_parameters(parameter_specs(config_), seed, parameters_);
}

Tensor LatentAttention::forward(View x, const AttentionOptions& options, LatentAttentionSaved* saved) const {
  check_input(config_, x);
  check_parameters(kOp, parameter_specs(config_), config_.dtype, parameters_);
  const LatentAttentionConfig& c = config_;
  const LatentAttentionParameters& p = parameters_;
  const std::int64_t B = x.batch(), L = x.length(), H = c.heads;
  AttentionOptions rules = options;
  if (!rules.scale) rules.scale = scale();

  Queries y = make_queries(c, p, x);
  const MutableView q = split_heads(y.q.view(), H), q_rope = part_of(q, c.nope_dim, c.rope_dim);
  const RopeTable table = rotations(c, 0, L);
  rope(q_rope, q_rope, table);
  Tensor kv_down = project(x, p.wkv_down);
  Tensor latents(c.dtype, kv_down.shape());
  make_latents(c, p, kv_down, table, latents);
  Tensor latent = copy_of(part_of(latents.view(), 0, c.kv_rank));
  Tensor kv_up = project(latent, p.wkv_up);
  Tensor k = make_keys(c, kv_up, latents);
  Tensor out(c.dtype, {B, 1, L, H * c.value_dim}), lse;
  AttentionExtras extras;
  if (saved != nullptr) extras.lse = lse = Tensor(wide(c.dtype), {B, H, L, 1});
  attention(q, split_heads(View(k), H), part_of(split_heads(View(kv_up), H), c.nope_dim, c.value_dim),
            split_heads(out.view(), H), rules, extras);
  Tensor result = project(out, p.wo);
  if (saved != nullptr) {
    *saved = {.x = copy_of(x),
              .q_down = std::move(y.down),
              .q_latent = std::move(y.latent),
              .kv_down = std::move(kv_down),
              .latent = std::move(latent),
              .q = std::move(y.q),
              .k = std::move(k),
              .kv_up = std::move(kv_up),
              .out = std::move(out),
              .lse = std::move(lse),
              .options = std::move(rules)};
  }
  return result;
}

LatentAttentionGradients LatentAttention::backward(View dout, const LatentAttentionSaved& s) const {
  const LatentAttentionConfig& c = config_;
  const LatentAttentionParameters& p = parameters_;
  check_parameters(kOp, parameter_specs(c), c.dtype, p);
  check_saved(c, s);
  check_readable(kOp, "dout", dout);
  check_shape(kOp, "dout", dout.shape, {s.x.shape()[0], 1, s.x.shape()[2], c.width});
  check_dtype(kOp, "dout", dout.dtype, c.dtype);
  const std::int64_t H = c.heads;

  LatentAttentionGradients g;
  LatentAttentionParameters& dp = g.parameters;
  for (const auto& spec : parameter_specs(c)) {
    if (spec.wanted) dp.*spec.tensor = Tensor(c.dtype, spec.shape);
  }
  const Tensor d_out = project_backward(dout, s.out, p.wo, dp.wo);
  Tensor dq(c.dtype, s.q.shape()), dk(c.dtype, s.k.shape()), dkv_up(c.dtype, s.kv_up.shape());
  const MutableView q_heads = split_heads(dq.view(), H), k_heads = split_heads(dk.view(), H),
                    kv_heads = split_heads(dkv_up.view(), H);
  attention_backward(split_heads(d_out.view(), H), split_heads(s.q.view(), H), split_heads(s.k.view(), H),
                     part_of(split_heads(s.kv_up.view(), H), c.nope_dim, c.value_dim), split_heads(s.out.view(), H),
                     s.lse, {q_heads, k_heads, part_of(kv_heads, c.nope_dim, c.value_dim)}, s.options);
  copy_rows(part_of(View(k_heads), 0, c.nope_dim), part_of(kv_heads, 0, c.nope_dim));

  // Back through the keys' and values' side.
  const Tensor dlatent = project_backward(dkv_up, s.latent, p.wkv_up, dp.wkv_up);
  Tensor dkv_down(c.dtype, s.kv_down.shape());
  const MutableView rope_key = part_of(dkv_down.view(), c.kv_rank, c.rope_dim);
  sum_heads(part_of(View(k_heads), c.nope_dim, c.rope_dim), rope_key);
  const RopeTable table = rotations(c, 0, rope_key.length());
  rope_backward(rope_key, rope_key, table);
  rms_norm_backward(dlatent, part_of(s.kv_down.view(), 0, c.kv_rank), p.kv_norm, part_of(dkv_down.view(), 0, c.kv_rank),
                    dp.kv_norm, c.norm_eps);
  g.dx = project_backward(dkv_down, s.x, p.wkv_down, dp.wkv_down);

  // And through the query's.
  const MutableView q_rope = part_of(q_heads, c.nope_dim, c.rope_dim);
  rope_backward(q_rope, q_rope, table);
  if (c.q_rank == 0) {
    add(g.dx, project_backward(dq, s.x, p.wq, dp.wq), g.dx);
    return g;
  }
  Tensor dq_latent = project_backward(dq, s.q_latent, p.wq, dp.wq);
  rms_norm_backward(dq_latent, s.q_down, p.q_norm, dq_latent, dp.q_norm, c.norm_eps);
  add(g.dx, project_backward(dq_latent, s.x, p.wq_down, dp.wq_down), g.dx);
  return g;
}

Tensor LatentAttention::prefill(View x, LatentCache& cache) const {
  return prefill(x, cache, {.mask = causal()});
}

// The new rows lie past the cache's length until attention has succeeded: an error leaves it as it was.
Tensor LatentAttention::prefill(View x, LatentCache& cache, const AttentionOptions& options) const {
  const LatentAttentionConfig& c = config_;
  check_step(c, x, cache.rows_, cache.length_, options);
  check_parameters(kOp, parameter_specs(c), c.dtype, parameters_);
  const std::int64_t H = c.heads, T = x.length(), N = cache.length_ + T;
  AttentionOptions rules = options;
  if (!rules.scale) rules.scale = scale();

  Queries y = make_queries(c, parameters_, x);
  const MutableView q = split_heads(y.q.view(), H), q_rope = part_of(q, c.nope_dim, c.rope_dim);
  const RopeTable table = rotations(c, cache.length_, T);
  rope(q_rope, q_rope, table);
  const MutableView rows = cache.rows_;
  make_latents(c, parameters_, project(x, parameters_.wkv_down), table, slice_length(rows, cache.length_, T));
  const View seen = slice_length(View(rows), 0, N);
  const Tensor kv_up = project(part_of(seen, 0, c.kv_rank), parameters_.wkv_up);
  const Tensor k = make_keys(c, kv_up, seen);
  Tensor out(c.dtype, {x.batch(), 1, T, H * c.value_dim});
  attention(q, split_heads(k.view(), H), part_of(split_heads(kv_up.view(), H), c.nope_dim, c.value_dim),
            split_heads(out.view(), H), rules);
  Tensor result = project(out, parameters_.wo);
  cache.length_ = N;
  return result;
}

Tensor LatentAttention::step(View x, LatentCache& cache) const {
  return step(x, cache, {.mask = causal()});
}

Tensor LatentAttention::step(View x, LatentCache& cache, const AttentionOptions& options) const {
  const LatentAttentionConfig& c = config_;
  check_step(c, x, cache.rows_, cache.length_, options);
  check_parameters(kOp, parameter_specs(c), c.dtype, parameters_);
  const std::int64_t B = x.batch(), H = c.heads, T = x.length(), N = cache.length_ + T;
  AttentionOptions rules = options;
  if (!rules.scale) rules.scale = scale();

  // Each head's rows of wkv_up, [1, H, nope + value, kv_rank].
  const View up{c.dtype,
                parameters_.wkv_up.view().data,
                {1, H, c.nope_dim + c.value_dim, c.kv_rank},
                {0, (c.nope_dim + c.value_dim) * c.kv_rank, c.kv_rank, 1}};
  const Queries y = make_queries(c, parameters_, x);
  const View q = split_heads(y.q.view(), H);
  Tensor absorbed(c.dtype, {B, H, T, c.kv_rank + c.rope_dim});
  multiply_heads(part_of(q, 0, c.nope_dim), slice_length(up, 0, c.nope_dim), part_of(absorbed.view(), 0, c.kv_rank));
  const RopeTable table = rotations(c, cache.length_, T);
  rope(part_of(q, c.nope_dim, c.rope_dim), part_of(absorbed.view(), c.kv_rank, c.rope_dim), table);

  const MutableView rows = cache.rows_;
  make_latents(c, parameters_, project(x, parameters_.wkv_down), table, slice_length(rows, cache.length_, T));
  const View seen = slice_length(View(rows), 0, N);
  Tensor mixed(c.dtype, {B, H, T, c.kv_rank}), out(c.dtype, {B, 1, T, H * c.value_dim});
  attention(absorbed, seen, part_of(seen, 0, c.kv_rank), mixed, rules);
  multiply_heads(mixed, transposed(slice_length(up, c.nope_dim, c.value_dim)), split_heads(out.view(), H));
  Tensor result = project(out, parameters_.wo);
  cache.length_ = N;
  return result;
}

}  // namespace attend
