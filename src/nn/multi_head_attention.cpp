// The attention layer, composed from linear, rms_norm, rope and attention.
#include "attend/multi_head_attention.hpp"

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
#include "nn/layer_parts.hpp"
#include "ops/attention_call.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

constexpr const char* kOp = "multi_head_attention";

// ---- Sizes and parameters ----

void check_multiple(const char* what, std::int64_t got, const char* of_what, std::int64_t of, const char* advice = "") {
  if (got % of == 0) return;
  fail(kOp, std::string(what) + " is " + std::to_string(got) + ", expected a multiple of " + of_what + ", " +
                std::to_string(of) + advice);
}

// The config with the zeros filled in, or InvalidArgument.
MultiHeadAttentionConfig resolved(MultiHeadAttentionConfig c) {
  check_dtype(kOp, "config", c.dtype, c.dtype);  // known at all
  check_at_least(kOp, "width", c.width, 1);
  check_at_least(kOp, "context_width", c.context_width, 0);
  check_at_least(kOp, "output_width", c.output_width, 0);
  check_at_least(kOp, "heads", c.heads, 1);
  check_at_least(kOp, "kv_heads", c.kv_heads, 0);
  check_at_least(kOp, "head_dim", c.head_dim, 0);
  check_at_least(kOp, "value_dim", c.value_dim, 0);
  check_at_least(kOp, "value_rank", c.value_rank, 0);
  if (c.context_width == 0) c.context_width = c.width;
  if (c.output_width == 0) c.output_width = c.width;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  check_multiple("heads", c.heads, "kv_heads", c.kv_heads);
  if (c.head_dim == 0) {
    check_multiple("width", c.width, "heads", c.heads, " (or a head_dim)");
    c.head_dim = c.width / c.heads;
  }
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  if (c.rope && *c.rope != RopeStyle::half_split && *c.rope != RopeStyle::interleaved) {
    fail(kOp, "rope is " + std::to_string(static_cast<int>(*c.rope)) + ", expected half_split or interleaved");
  }
  if (c.rope && c.head_dim % 2 != 0) {
    fail(kOp, "head_dim is " + std::to_string(c.head_dim) + ", expected an even number (RoPE rotates pairs)");
  }
  if (c.rope && (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta))) {
    fail(kOp, "rope_theta is " + std::to_string(c.rope_theta) + ", expected a finite number above 0");
  }
  if (c.rope) rope_frequencies(2, c.rope_theta, c.rope_scaling);  // refuses a scaling that makes no sense
  if (!(c.norm_eps >= 0) || !std::isfinite(c.norm_eps)) {
    fail(kOp, "norm_eps is " + std::to_string(c.norm_eps) + ", expected a finite number from 0 up");
  }
  return c;
}

// ---- Forward ----

void check_input(const MultiHeadAttentionConfig& config, const char* what, const View& x, std::int64_t width) {
  check_readable(kOp, what, x);
  check_shape(kOp, what, x.shape, {x.batch(), 1, x.length(), width});
  check_dtype(kOp, what, x.dtype, config.dtype);
}

std::optional<View> optional_view(bool wanted, const Tensor& tensor) {
  return wanted ? std::optional<View>(tensor) : std::nullopt;
}

Tensor project(const View& x, const Tensor& weight, const std::optional<View>& bias) {
  Tensor y(x.dtype, {x.batch(), 1, x.length(), weight.shape()[2]});
  linear(x, weight, bias, y);
  return y;
}

// Everything attention reads, each [B, 1, L, heads * dim].
struct Projections {
  Tensor q_raw, k_raw, q, k, v, v_down;
};

// The rotations of `length` positions; empty without RoPE.
RopeTable rotations(const MultiHeadAttentionConfig& config, std::int64_t first_position, std::int64_t length) {
  if (!config.rope) return {};
  return {config.head_dim,
          length,
          {.style = *config.rope,
           .theta = config.rope_theta,
           .first_position = first_position,
           .scaling = config.rope_scaling}};
}

// Norm and RoPE over the heads of `rows`, in place; `raw` keeps them as they were where backward will need it.
void norm_and_rotate(const MultiHeadAttentionConfig& config, Tensor& rows, std::int64_t heads, const Tensor& norm,
                     const RopeTable& table, Tensor* raw) {
  const MutableView view = split_heads(rows.view(), heads);
  if (config.qk_norm) {
    if (raw != nullptr) *raw = rows.clone();
    rms_norm(view, norm, view, config.norm_eps);
  }
  if (config.rope) rope(view, view, table);
}

Projections make_projections(const MultiHeadAttentionConfig& config, const MultiHeadAttentionParameters& p,
                             const View& x, const View& context, std::int64_t first_position, bool keep_raw) {
  Projections y;
  y.q = project(x, p.wq, optional_view(config.qkv_bias, p.bq));
  y.k = project(context, p.wk, optional_view(config.qkv_bias, p.bk));
  const bool factored = config.value_rank > 0;
  if (factored) y.v_down = project(context, p.wv_down, std::nullopt);
  y.v = project(factored ? y.v_down.view() : context, p.wv, optional_view(config.qkv_bias, p.bv));
  const RopeTable table = rotations(config, first_position, std::max(x.length(), context.length()));
  norm_and_rotate(config, y.q, config.heads, p.q_norm, table, keep_raw ? &y.q_raw : nullptr);
  norm_and_rotate(config, y.k, config.kv_heads, p.k_norm, table, keep_raw ? &y.k_raw : nullptr);
  return y;
}

// With an inner attention of its own a layer has no scores that options could change.
void check_no_options(const InnerAttention& inner, const AttentionOptions& o) {
  const bool plain = o.mask.rules.empty() && !o.scale && o.softcap == 0 && !o.rule && !o.bias && !o.distance_bias &&
                     !o.alibi_slopes && !o.sinks && o.dropout.probability == 0;
  if (!plain) {
    fail(kOp, std::string("got score options or a mask beside the inner attention (") + inner.name() +
                  "), expected none: what it sees is said when it is made");
  }
}

Tensor run_forward(const MultiHeadAttention& layer, const View& x, const std::optional<View>& context,
                   const AttentionOptions& options, const ForwardWants& wants) {
  const MultiHeadAttentionConfig& config = layer.config();
  const MultiHeadAttentionParameters& p = layer.parameters();
  check_parameters(kOp, attention_parameter_specs(config), config.dtype, p);
  const bool save = wants.saved != nullptr;
  const View source = context.value_or(x);
  const InnerAttention* inner = config.inner.get();
  if (inner != nullptr) check_no_options(*inner, options);
  if (inner != nullptr && wants.weights != nullptr) {
    fail(kOp, std::string("weights are wanted, but the inner attention (") + inner->name() + ") makes none");
  }
  const std::int64_t B = x.batch(), H = config.heads, Hk = config.kv_heads, M = x.length(), N = source.length();

  Projections y = make_projections(config, p, x, source, 0, save);
  Tensor out(config.dtype, {B, 1, M, H * config.value_dim});
  Tensor lse, weights;
  std::vector<Tensor> inner_saved;
  AttentionExtras extras;
  if (save && inner == nullptr) {
    lse = Tensor(accumulator_dtype(config.dtype), {B, H, M, 1});
    extras.lse = lse;
  }
  if (wants.weights != nullptr) {
    weights = Tensor(accumulator_dtype(config.dtype), {B, H, M, N});
    extras.weights = weights;
  }
  const View q = split_heads(View(y.q), H), k = split_heads(View(y.k), Hk), v = split_heads(View(y.v), Hk);
  if (inner != nullptr) {
    inner->forward(q, k, v, split_heads(out.view(), H), save ? &inner_saved : nullptr);
  } else {
    attention(q, k, v, split_heads(out.view(), H), options, extras);
  }
  Tensor result = project(out, p.wo, optional_view(config.output_bias, p.bo));

  if (wants.weights != nullptr) *wants.weights = std::move(weights);
  if (save) {
    *wants.saved = {.x = copy_of(x),
                    .context = context ? copy_of(*context) : Tensor(),
                    .q_raw = std::move(y.q_raw),
                    .k_raw = std::move(y.k_raw),
                    .q = std::move(y.q),
                    .k = std::move(y.k),
                    .v = std::move(y.v),
                    .v_down = std::move(y.v_down),
                    .out = std::move(out),
                    .lse = std::move(lse),
                    .options = options,
                    .inner = std::move(inner_saved)};
  }
  return result;
}

// ---- Backward ----

// A saved state that no forward of this layer filled is refused.
void check_saved(const MultiHeadAttentionConfig& c, const MultiHeadAttentionSaved& s, const View& source) {
  if (s.x.empty())
    fail(kOp,
         "saved x shape is [0, 0, 0, 0]: saved is empty; let forward fill it: forward(x, options, {.saved = &saved})");
  const std::int64_t B = s.x.shape()[0], M = s.x.shape()[2], N = source.length();
  const auto check = [&](const char* what, const Tensor& tensor, std::int64_t length, std::int64_t dim) {
    check_shape(kOp, what, tensor.shape(), {B, 1, length, dim});
    check_dtype(kOp, what, tensor.dtype(), c.dtype);
  };
  check("saved x", s.x, M, c.width);
  check_shape(kOp, "saved context", source.shape, {B, 1, N, c.context_width});
  check_dtype(kOp, "saved context", source.dtype, c.dtype);
  check("saved q", s.q, M, c.heads * c.head_dim);
  check("saved k", s.k, N, c.kv_heads * c.head_dim);
  check("saved v", s.v, N, c.kv_heads * c.value_dim);
  check("saved out", s.out, M, c.heads * c.value_dim);
  if (c.qk_norm) check("saved q_raw", s.q_raw, M, c.heads * c.head_dim);
  if (c.qk_norm) check("saved k_raw", s.k_raw, N, c.kv_heads * c.head_dim);
  if (c.value_rank > 0) check("saved v_down", s.v_down, N, c.value_rank);
  if (c.inner == nullptr) check_shape(kOp, "saved lse", s.lse.shape(), {B, c.heads, M, 1});
}

// The gradients of project(): returns that of x; `dbias` is null where there is no bias.
Tensor project_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight, Tensor* dbias) {
  Tensor dx(x.dtype, x.shape);
  LinearGradients gradients{dx, dweight, std::nullopt};
  if (dbias != nullptr) gradients.dbias = *dbias;
  linear_backward(dy, x, weight, gradients);
  return dx;
}

// `rows` holds the gradient of what norm_and_rotate made, and becomes that of what it was given.
void norm_and_rotate_backward(const MultiHeadAttentionConfig& config, Tensor& rows, std::int64_t heads,
                              const Tensor& raw, const Tensor& norm, const RopeTable& table, Tensor& dnorm) {
  const MutableView view = split_heads(rows.view(), heads);
  if (config.rope) rope_backward(view, view, table);
  if (config.qk_norm) {
    rms_norm_backward(view, split_heads(raw.view(), heads), norm, view, dnorm, config.norm_eps);
  }
}

// The gradients of what lies between the projections: of q, k and v, and of what the options or the inner attention
// hold.
void attention_gradients(const MultiHeadAttentionConfig& config, const MultiHeadAttentionSaved& saved,
                         const Tensor& d_out, Tensor& dq, Tensor& dk, Tensor& dv, MultiHeadAttentionGradients& g) {
  const std::int64_t H = config.heads, Hk = config.kv_heads;
  const View dout = split_heads(d_out.view(), H), out = split_heads(saved.out.view(), H);
  const View q = split_heads(saved.q.view(), H), k = split_heads(saved.k.view(), Hk),
             v = split_heads(saved.v.view(), Hk);
  AttentionGradients of{split_heads(dq.view(), H), split_heads(dk.view(), Hk), split_heads(dv.view(), Hk), {}, {}, {}};
  if (config.inner != nullptr) {
    g.inner = config.inner->backward(dout, q, k, v, out, saved.inner, of.dq, of.dk, of.dv);
    return;
  }
  if (saved.options.bias) of.dbias = g.dbias = Tensor(accumulator_dtype(config.dtype), saved.options.bias->shape);
  if (saved.options.sinks) of.dsinks = g.dsinks = Tensor(accumulator_dtype(config.dtype), saved.options.sinks->shape);
  if (saved.options.distance_bias)
    of.ddistance_bias = g.ddistance_bias = Tensor(accumulator_dtype(config.dtype), saved.options.distance_bias->shape);
  attention_backward(dout, q, k, v, out, saved.lse, of, saved.options);
}

}  // namespace

ParameterSpecs<MultiHeadAttentionParameters, 11> attention_parameter_specs(const MultiHeadAttentionConfig& c) {
  using P = MultiHeadAttentionParameters;
  const std::int64_t q = checked_product("heads x head_dim", {c.heads, c.head_dim});
  const std::int64_t k = checked_product("kv_heads x head_dim", {c.kv_heads, c.head_dim});
  const std::int64_t v = checked_product("kv_heads x value_dim", {c.kv_heads, c.value_dim});
  const std::int64_t out = checked_product("heads x value_dim", {c.heads, c.value_dim});
  const bool factored = c.value_rank > 0;
  const std::int64_t v_inputs = factored ? c.value_rank : c.context_width;
  return {{{"wq", &P::wq, true, {1, 1, q, c.width}, c.width},
           {"wk", &P::wk, true, {1, 1, k, c.context_width}, c.context_width},
           {"wv", &P::wv, true, {1, 1, v, v_inputs}, v_inputs},
           {"wv_down", &P::wv_down, factored, {1, 1, c.value_rank, c.context_width}, c.context_width},
           {"wo", &P::wo, true, {1, 1, c.output_width, out}, out},
           {"bq", &P::bq, c.qkv_bias, {1, 1, 1, q}, c.width},
           {"bk", &P::bk, c.qkv_bias, {1, 1, 1, k}, c.context_width},
           {"bv", &P::bv, c.qkv_bias, {1, 1, 1, v}, v_inputs},
           {"bo", &P::bo, c.output_bias, {1, 1, 1, c.output_width}, out},
           {"q_norm", &P::q_norm, c.qk_norm, {1, 1, 1, c.head_dim}, 0},
           {"k_norm", &P::k_norm, c.qk_norm, {1, 1, 1, c.head_dim}, 0}}};
}

KvCache::KvCache(const MultiHeadAttentionConfig& config, std::int64_t batch, std::int64_t capacity) {
  const MultiHeadAttentionConfig c = resolved(config);
  if (batch < 0) fail("KvCache", "batch is " + std::to_string(batch) + ", expected at least 0");
  if (capacity < 0) fail("KvCache", "capacity is " + std::to_string(capacity) + ", expected at least 0");
  keys_ = Tensor(c.dtype, {batch, c.kv_heads, capacity, c.head_dim});
  values_ = Tensor(c.dtype, {batch, c.kv_heads, capacity, c.value_dim});
}

View KvCache::keys() const {
  return slice_length(keys_.view(), 0, length_);
}

View KvCache::values() const {
  return slice_length(values_.view(), 0, length_);
}

void KvCache::truncate(std::int64_t length) {
  check_truncate("KvCache::truncate", length, length_);
  length_ = length;
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionConfig& config)
    : config_(resolved(config)), parameters_(make_parameters(attention_parameter_specs(config_), config_.dtype)) {}

std::int64_t MultiHeadAttention::parameter_count() const {
  std::int64_t count = count_parameters(attention_parameter_specs(config_));
  if (config_.inner != nullptr) {
    for (const NamedTensor& own : config_.inner->parameters()) {
      count += own.value.shape[0] * own.value.shape[1] * own.value.shape[2] * own.value.shape[3];
    }
  }
  return count;
}

void MultiHeadAttention::initialise(std::uint64_t seed) {
  check_parameters(kOp, attention_parameter_specs(config_), config_.dtype, parameters_);
  draw_parameters(attention_parameter_specs(config_), seed, parameters_);
}

Tensor MultiHeadAttention::forward(View x, const AttentionOptions& options, ForwardWants wants) const {
  check_input(config_, "x", x, config_.width);
  check_equal(kOp, "context_width", config_.context_width, config_.width, "K and V come from x without a context");
  return run_forward(*this, x, std::nullopt, options, wants);
}

Tensor MultiHeadAttention::forward(View x, View context, const AttentionOptions& options, ForwardWants wants) const {
  check_input(config_, "x", x, config_.width);
  check_input(config_, "context", context, config_.context_width);
  check_equal(kOp, "context batch", context.batch(), x.batch(), "x batch");
  return run_forward(*this, x, context, options, wants);
}

MultiHeadAttentionGradients MultiHeadAttention::backward(View dout, const MultiHeadAttentionSaved& saved) const {
  check_parameters(kOp, attention_parameter_specs(config_), config_.dtype, parameters_);
  const bool cross = !saved.context.empty();
  const View source = cross ? saved.context.view() : saved.x.view();
  check_saved(config_, saved, source);
  const std::int64_t H = config_.heads, Hk = config_.kv_heads;
  check_readable(kOp, "dout", dout);
  check_shape(kOp, "dout", dout.shape, {saved.x.shape()[0], 1, saved.x.shape()[2], config_.output_width});
  check_dtype(kOp, "dout", dout.dtype, config_.dtype);

  MultiHeadAttentionGradients g;
  MultiHeadAttentionParameters& dp = g.parameters;
  const MultiHeadAttentionParameters& p = parameters_;
  for (const auto& spec : attention_parameter_specs(config_)) {
    if (spec.wanted) dp.*spec.tensor = Tensor(config_.dtype, spec.shape);
  }
  const auto when = [](bool wanted, Tensor& tensor) { return wanted ? &tensor : nullptr; };

  const Tensor d_out = project_backward(dout, saved.out, p.wo, dp.wo, when(config_.output_bias, dp.bo));

  Tensor dq(config_.dtype, saved.q.shape()), dk(config_.dtype, saved.k.shape()), dv(config_.dtype, saved.v.shape());
  attention_gradients(config_, saved, d_out, dq, dk, dv, g);

  const RopeTable table = rotations(config_, 0, std::max(saved.x.shape()[2], source.length()));
  norm_and_rotate_backward(config_, dq, H, saved.q_raw, p.q_norm, table, dp.q_norm);
  norm_and_rotate_backward(config_, dk, Hk, saved.k_raw, p.k_norm, table, dp.k_norm);

  g.dx = project_backward(dq, saved.x, p.wq, dp.wq, when(config_.qkv_bias, dp.bq));
  Tensor dsource_k = project_backward(dk, source, p.wk, dp.wk, when(config_.qkv_bias, dp.bk));
  Tensor dsource_v;
  if (config_.value_rank > 0) {
    const Tensor dv_down = project_backward(dv, saved.v_down, p.wv, dp.wv, when(config_.qkv_bias, dp.bv));
    dsource_v = project_backward(dv_down, source, p.wv_down, dp.wv_down, nullptr);
  } else {
    dsource_v = project_backward(dv, source, p.wv, dp.wv, when(config_.qkv_bias, dp.bv));
  }
  if (cross) {
    add(dsource_k, dsource_v, dsource_k);
    g.dcontext = std::move(dsource_k);
  } else {
    Tensor both(accumulator_dtype(config_.dtype), dsource_k.shape());  // so that the sum of three is rounded once
    add(dsource_k, dsource_v, both);
    add(g.dx, both, g.dx);
  }
  return g;
}

Tensor MultiHeadAttention::step(View x, KvCache& cache) const {
  return step(x, cache, {.mask = causal()});
}

Tensor MultiHeadAttention::step(View x, KvCache& cache, const AttentionOptions& options) const {
  check_input(config_, "x", x, config_.width);
  check_equal(kOp, "context_width", config_.context_width, config_.width, "step makes K and V from x");
  if (config_.inner != nullptr) {
    fail(kOp, std::string("step reads a cache of keys and values, which the inner attention (") +
                  config_.inner->name() + ") does not use");
  }
  const std::int64_t B = x.batch(), H = config_.heads, Hk = config_.kv_heads, T = x.length();
  check_shape(kOp, "cache keys", cache.keys_.shape(), {B, Hk, cache.capacity(), config_.head_dim});
  check_shape(kOp, "cache values", cache.values_.shape(), {B, Hk, cache.capacity(), config_.value_dim});
  check_dtype(kOp, "cache", cache.keys_.dtype(), config_.dtype);
  if (T > cache.capacity() - cache.length_) {
    fail(kOp, "x length is " + std::to_string(T) + ", expected at most " +
                  std::to_string(cache.capacity() - cache.length_) + " (a cache of " +
                  std::to_string(cache.capacity()) + " holds " + std::to_string(cache.length_) + ")");
  }
  check_step_options(kOp, options);
  check_parameters(kOp, attention_parameter_specs(config_), config_.dtype, parameters_);

  // The new rows lie past the cache's length until attention has succeeded: an error leaves it as it was.
  const Projections y = make_projections(config_, parameters_, x, x, cache.length_, false);
  const MutableView keys = cache.keys_, values = cache.values_;
  copy_rows(split_heads(y.k.view(), Hk), slice_length(keys, cache.length_, T));
  copy_rows(split_heads(y.v.view(), Hk), slice_length(values, cache.length_, T));
  Tensor out(config_.dtype, {B, 1, T, H * config_.value_dim});
  const std::int64_t N = cache.length_ + T;
  attention(split_heads(y.q.view(), H), slice_length(View(keys), 0, N), slice_length(View(values), 0, N),
            split_heads(out.view(), H), options);
  Tensor result = project(out, parameters_.wo, optional_view(config_.output_bias, parameters_.bo));
  cache.length_ = N;
  return result;
}

}  // namespace attend
