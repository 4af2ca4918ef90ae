// A block of a transformer, computed for some queries at a time: keys and values once, everything else per piece.
#include "attend/transformer_block.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "attend/activation.hpp"
#include "attend/add.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "attend/rope.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "nn/block_rows.hpp"
#include "ops/attention_call.hpp"
#include "reference/multi_head_attention.hpp"
#include "reference/transformer_block.hpp"

namespace attend {
namespace {

constexpr const char* kOp = "transformer_block";

// ---- Sizes and parameters ----

TransformerBlockConfig resolved(TransformerBlockConfig c, const MultiHeadAttentionConfig& attention) {
  c.attention = attention;
  check_equal(kOp, "attention.context_width", attention.context_width, attention.width, "attention.width");
  check_equal(kOp, "attention.output_width", attention.output_width, attention.width, "attention.width");
  if (c.feed_forward != FeedForward::swiglu && c.feed_forward != FeedForward::gelu &&
      c.feed_forward != FeedForward::relu)
    fail(kOp,
         "feed_forward is " + std::to_string(static_cast<int>(c.feed_forward)) + ", expected swiglu, gelu or relu");
  if (c.attention.inner != nullptr) {
    fail(kOp, std::string("attention.inner is ") + c.attention.inner->name() +
                  ", expected none: the block cuts softmax attention by queries");
  }
  if (c.hidden < 0) fail(kOp, "hidden is " + std::to_string(c.hidden) + ", expected at least 0");
  if (c.hidden == 0) c.hidden = checked_product("transformer_block: hidden", {4, attention.width});
  if (!(c.norm_eps >= 0) || !std::isfinite(c.norm_eps))
    fail(kOp, "norm_eps is " + std::to_string(c.norm_eps) + ", expected a finite number from 0 up");
  return c;
}

ParameterSpecs<TransformerBlockParameters, 5> parameter_specs(const TransformerBlockConfig& c) {
  using P = TransformerBlockParameters;
  const std::int64_t width = c.attention.width;
  return {{{"norm1", &P::norm1, true, {1, 1, 1, width}, 0},
           {"norm2", &P::norm2, true, {1, 1, 1, width}, 0},
           {"gate", &P::gate, c.feed_forward == FeedForward::swiglu, {1, 1, c.hidden, width}, width},
           {"up", &P::up, true, {1, 1, c.hidden, width}, width},
           {"down", &P::down, true, {1, 1, width, c.hidden}, c.hidden}}};
}

void check_parameters(const TransformerBlock& layer) {
  const TransformerBlockConfig& config = layer.config();
  const MultiHeadAttentionConfig& attention = config.attention;
  check_parameters(kOp, parameter_specs(config), attention.dtype, layer.parameters());
  check_parameters(kOp, attention_parameter_specs(attention), attention.dtype, layer.attention().parameters());
}

// The call of attention over all of x, checked, as yet without its queries, keys and values.
AttentionCall checked_call(const TransformerBlock& layer, const View& x, const AttentionOptions& options,
                           Blockwise blockwise) {
  const MultiHeadAttentionConfig& c = layer.config().attention;
  check_readable(kOp, "x", x);
  check_shape(kOp, "x", x.shape, {x.batch(), 1, x.length(), c.width});
  check_dtype(kOp, "x", x.dtype, c.dtype);
  if (blockwise.block < 0) fail(kOp, "block is " + std::to_string(blockwise.block) + ", expected 0 (all) or more");
  if (options.distance_bias)
    fail(kOp, "got a distance_bias, expected none: a bias given as `bias` can be cut by queries");
  check_parameters(layer);
  const auto shaped = [&](std::int64_t heads, std::int64_t dim) {
    return View{c.dtype, x.data, {x.batch(), heads, x.length(), dim}, {0, 0, 0, 0}};
  };
  return AttentionCall(shaped(c.heads, c.head_dim), shaped(c.kv_heads, c.head_dim), shaped(c.kv_heads, c.value_dim),
                       options);
}

void check_cuts(const View& x, const AttentionOptions& options, Blockwise blockwise) {
  if (blockwise.block > 0) cut_rows(options, x.length(), x.length(), 0, std::min(blockwise.block, x.length()));
}

std::optional<View> optional_view(const Tensor& tensor) {
  return tensor.empty() ? std::nullopt : std::optional<View>(tensor);
}

// sum += x: sum is f32.
void accumulate(const View& x, const MutableView& sum) {
  add(sum, x, sum);
}

Tensor rounded(const View& x, DType dtype) {
  Tensor y(dtype, x.shape);
  convert(x, y);
  return y;
}

Tensor projected(const View& x, const Tensor& weight, const Tensor& bias) {
  Tensor y(x.dtype, {x.batch(), 1, x.length(), weight.shape()[2]});
  linear(x, weight, optional_view(bias), y);
  return y;
}

// ---- A call ----

// The activations of some queries.
struct Piece {
  std::int64_t first = 0, count = 0;
  View x;
  Tensor norm1, q_raw, q, out, lse, y, norm2, gate, up, hidden;
};

class Pass {
 public:
  Pass(const TransformerBlock& layer, AttentionCall& call, const View& x, Blockwise blockwise)
      : config_(layer.config()),
        c_(config_.attention),
        p_(layer.parameters()),
        a_(layer.attention().parameters()),
        call_(call),
        kind_(activation_of(config_.feed_forward)),
        x_(x),
        options_(call.options),
        M_(x.length()),
        block_(blockwise.block == 0 ? std::max<std::int64_t>(1, M_)
                                    : std::min(blockwise.block, std::max<std::int64_t>(1, M_))) {
    keys_ = Tensor(c_.dtype, {x.batch(), 1, M_, c_.kv_heads * c_.head_dim});
    values_ = Tensor(c_.dtype, {x.batch(), 1, M_, c_.kv_heads * c_.value_dim});
    if (c_.rope)
      rotations_ = RopeTable(c_.head_dim, M_, {.style = *c_.rope, .theta = c_.rope_theta, .scaling = c_.rope_scaling});
    for_pieces([&](std::int64_t first, std::int64_t count) { make_keys(first, count); });
  }

  template <class F>
  void for_pieces(const F& f) const {
    for (std::int64_t first = 0; first < M_; first += block_) f(first, std::min(block_, M_ - first));
  }

  void forward(std::int64_t first, std::int64_t count, const MutableView& z) const {
    const Piece piece = make_piece(first, count, false);
    add(piece.y, projected(piece.hidden, p_.down, {}), slice_length(z, first, count));
  }

 protected:
  Tensor normed(const View& x, const Tensor& weight) const {
    Tensor y(c_.dtype, x.shape);
    rms_norm(x, weight, y, config_.norm_eps);
    return y;
  }

  // Norm and RoPE over the heads of rows that begin at `first`, in place.
  void norm_and_rotate(const MutableView& rows, const Tensor& norm, std::int64_t first) const {
    if (c_.qk_norm) rms_norm(rows, norm, rows, c_.norm_eps);
    if (c_.rope) rope(rows, rows, rotations_, first);
  }

  void make_keys(std::int64_t first, std::int64_t count) {
    const Tensor norm1 = normed(slice_length(x_, first, count), p_.norm1);
    const MutableView keys = slice_length(keys_.view(), first, count),
                      values = slice_length(values_.view(), first, count);
    linear(norm1, a_.wk, optional_view(a_.bk), keys);
    norm_and_rotate(split_heads(keys, c_.kv_heads), a_.k_norm, first);
    if (c_.value_rank > 0) {
      linear(projected(norm1, a_.wv_down, {}), a_.wv, optional_view(a_.bv), values);
    } else {
      linear(norm1, a_.wv, optional_view(a_.bv), values);
    }
  }

  // f(attention of these queries against all keys). Where they are all there are, it is the call that was checked.
  template <class F>
  void with_call(const RowPiece& rows, const View& q, const F& f) const {
    if (rows.count == M_) {
      call_.set_inputs(q, keys(), values());
      return f(call_);
    }
    const AttentionCall call(q, keys(), values(), rows.options);
    f(call);
  }

  // Everything between x and the last projection.
  Piece make_piece(std::int64_t first, std::int64_t count, bool backward) const {
    Piece s;
    s.first = first, s.count = count, s.x = slice_length(x_, first, count);
    const std::int64_t B = x_.batch(), H = c_.heads;
    s.norm1 = normed(s.x, p_.norm1);
    s.q = projected(s.norm1, a_.wq, a_.bq);
    if (backward && c_.qk_norm) s.q_raw = s.q.clone();
    norm_and_rotate(split_heads(s.q.view(), H), a_.q_norm, first);
    s.out = Tensor(c_.dtype, {B, 1, count, H * c_.value_dim});
    if (backward) s.lse = Tensor(DType::f32, {B, H, count, 1});
    for (const RowPiece& rows : cut_rows(options_, M_, M_, first, count)) {
      const std::int64_t at = rows.first - first;
      AttentionExtras extras;
      if (backward) extras.lse = slice_length(s.lse.view(), at, rows.count);
      with_call(rows, slice_length(split_heads(View(s.q), H), at, rows.count), [&](const AttentionCall& call) {
        attend::attention(call, slice_length(split_heads(s.out.view(), H), at, rows.count), extras);
      });
    }
    s.y = projected(s.out, a_.wo, a_.bo);
    add(s.x, s.y, s.y);
    s.norm2 = normed(s.y, p_.norm2);
    s.up = projected(s.norm2, p_.up, {});
    if (config_.feed_forward == FeedForward::swiglu) s.gate = projected(s.norm2, p_.gate, {});
    s.hidden = Tensor(c_.dtype, s.up.shape());
    if (s.gate.empty())
      activation(kind_, s.up, s.hidden);
    else
      gated_activation(kind_, s.gate, s.up, s.hidden);
    return s;
  }

  View keys() const { return split_heads(View(keys_), c_.kv_heads); }
  View values() const { return split_heads(View(values_), c_.kv_heads); }

  const TransformerBlockConfig& config_;
  const MultiHeadAttentionConfig& c_;
  const TransformerBlockParameters& p_;
  const MultiHeadAttentionParameters& a_;
  AttentionCall& call_;
  Activation kind_;
  View x_;
  const AttentionOptions& options_;
  std::int64_t M_, block_;
  Tensor keys_, values_;  // [B, 1, M, kv_heads * dim]
  RopeTable rotations_;
};

// ---- Backward ----

class BackwardPass : public Pass {
 public:
  BackwardPass(const TransformerBlock& layer, AttentionCall& call, const View& dout, const View& x, Blockwise blockwise)
      : Pass(layer, call, x, blockwise),
        dout_(dout),
        dx_(DType::f32, x.shape),
        dkeys_(DType::f32, keys_.shape()),
        dvalues_(DType::f32, values_.shape()) {
    for (const auto& spec : parameter_specs(config_))
      if (spec.wanted) g_.parameters.*spec.tensor = Tensor(DType::f32, spec.shape);
    for (const auto& spec : attention_parameter_specs(c_))
      if (spec.wanted) g_.attention.*spec.tensor = Tensor(DType::f32, spec.shape);
    if (options_.bias) g_.dbias = Tensor(DType::f32, options_.bias->shape);
    if (options_.sinks) g_.dsinks = Tensor(DType::f32, options_.sinks->shape);
  }

  TransformerBlockGradients run() {
    {
      Tensor dk(c_.dtype, keys_.shape()), dv(c_.dtype, values_.shape());
      for_pieces([&](std::int64_t first, std::int64_t count) { queries_backward(first, count, dk, dv); });
    }
    for_pieces([&](std::int64_t first, std::int64_t count) { keys_backward(first, count); });
    if (c_.dtype == DType::f32) {
      g_.dx = std::move(dx_);
      return std::move(g_);
    }
    g_.dx = rounded(dx_, c_.dtype);
    for (const auto& spec : parameter_specs(config_))
      if (spec.wanted) g_.parameters.*spec.tensor = rounded(g_.parameters.*spec.tensor, c_.dtype);
    for (const auto& spec : attention_parameter_specs(c_))
      if (spec.wanted) g_.attention.*spec.tensor = rounded(g_.attention.*spec.tensor, c_.dtype);
    return std::move(g_);
  }

 private:
  // The gradients of projected(): returns that of x, adds those of the weight and the bias.
  Tensor project_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight, Tensor& dbias) const {
    Tensor dx(x.dtype, x.shape), part(weight.dtype(), weight.shape()), bias_part(DType::f32, dbias.shape());
    LinearGradients gradients{dx, part, std::nullopt};
    if (!dbias.empty()) gradients.dbias = bias_part;
    linear_backward(dy, x, weight, gradients);
    accumulate(part, dweight);
    if (!dbias.empty()) accumulate(bias_part, dbias);
    return dx;
  }
  Tensor project_backward(const View& dy, const View& x, const Tensor& weight, Tensor& dweight) const {
    Tensor none;
    return project_backward(dy, x, weight, dweight, none);
  }

  void norm_backward(const MutableView& dy, const View& x, const Tensor& weight, Tensor& dweight, double eps) const {
    Tensor part(DType::f32, weight.shape());
    rms_norm_backward(dy, x, weight, dy, part, eps);
    accumulate(part, dweight);
  }

  // The gradient of what norm_and_rotate made becomes that of what it was given, `raw`.
  void rotate_backward(Tensor& rows, std::int64_t heads, const Tensor& raw, const Tensor& norm, Tensor& dnorm,
                       std::int64_t first) const {
    const MutableView view = split_heads(rows.view(), heads);
    if (c_.rope) rope_backward(view, view, rotations_, first);
    if (c_.qk_norm) norm_backward(view, split_heads(View(raw), heads), norm, dnorm, c_.norm_eps);
  }

  // From the output of the piece to its y.
  Tensor feed_forward_backward(const Piece& s) {
    TransformerBlockParameters& dp = g_.parameters;
    const View dz = slice_length(dout_, s.first, s.count);
    Tensor dup = project_backward(dz, s.hidden, p_.down, dp.down), dgate;  // of hidden, and then of up
    if (s.gate.empty()) {
      activation_backward(kind_, dup, s.up, dup);
    } else {
      dgate = Tensor(c_.dtype, s.gate.shape());
      gated_activation_backward(kind_, dup, s.gate, s.up, dgate, dup);
    }
    Tensor dy = project_backward(dup, s.norm2, p_.up, dp.up);
    if (!s.gate.empty()) add(dy, project_backward(dgate, s.norm2, p_.gate, dp.gate), dy);
    norm_backward(dy, s.y, p_.norm2, dp.norm2, config_.norm_eps);
    add(dz, dy, dy);
    return dy;
  }

  // dk and dv are memory for the gradients of one call.
  void queries_backward(std::int64_t first, std::int64_t count, Tensor& dk, Tensor& dv) {
    const Piece s = make_piece(first, count, true);
    const Tensor dy = feed_forward_backward(s);
    MultiHeadAttentionParameters& da = g_.attention;
    const Tensor dout = project_backward(dy, s.out, a_.wo, da.wo, da.bo);
    Tensor dq(c_.dtype, s.q.shape());
    const std::int64_t H = c_.heads;
    for (const RowPiece& rows : cut_rows(options_, M_, M_, first, count)) {
      const std::int64_t at = rows.first - first;
      AttentionGradients of{slice_length(split_heads(dq.view(), H), at, rows.count),
                            split_heads(dk.view(), c_.kv_heads),
                            split_heads(dv.view(), c_.kv_heads),
                            {},
                            {}};
      Tensor dbias, dsinks;
      if (options_.bias) of.dbias = dbias = Tensor(DType::f32, rows.options.bias->shape);
      if (options_.sinks) of.dsinks = dsinks = Tensor(DType::f32, options_.sinks->shape);
      with_call(rows, slice_length(split_heads(View(s.q), H), at, rows.count), [&](const AttentionCall& call) {
        attention_backward(call, slice_length(split_heads(View(dout), H), at, rows.count),
                           slice_length(split_heads(View(s.out), H), at, rows.count),
                           slice_length(View(s.lse), at, rows.count), of);
      });
      accumulate(dk, dkeys_);
      accumulate(dv, dvalues_);
      if (options_.bias) accumulate(dbias, bias_rows(g_.dbias.view(), rows.first, rows.count));
      if (options_.sinks) accumulate(dsinks, g_.dsinks);
    }
    rotate_backward(dq, H, s.q_raw, a_.q_norm, da.q_norm, first);
    Tensor dnorm1 = project_backward(dq, s.norm1, a_.wq, da.wq, da.bq);
    norm_backward(dnorm1, s.x, p_.norm1, g_.parameters.norm1, config_.norm_eps);
    add(dy, dnorm1, slice_length(dx_.view(), first, count));
  }

  void keys_backward(std::int64_t first, std::int64_t count) {
    MultiHeadAttentionParameters& da = g_.attention;
    const View x = slice_length(x_, first, count);
    const Tensor norm1 = normed(x, p_.norm1);
    Tensor dk = rounded(slice_length(View(dkeys_), first, count), c_.dtype);
    const Tensor dv = rounded(slice_length(View(dvalues_), first, count), c_.dtype);
    const Tensor k_raw = c_.qk_norm ? projected(norm1, a_.wk, a_.bk) : Tensor();
    rotate_backward(dk, c_.kv_heads, k_raw, a_.k_norm, da.k_norm, first);
    Tensor dnorm1 = project_backward(dk, norm1, a_.wk, da.wk, da.bk);
    if (c_.value_rank > 0) {
      const Tensor down = projected(norm1, a_.wv_down, {});
      const Tensor ddown = project_backward(dv, down, a_.wv, da.wv, da.bv);
      add(dnorm1, project_backward(ddown, norm1, a_.wv_down, da.wv_down), dnorm1);
    } else {
      add(dnorm1, project_backward(dv, norm1, a_.wv, da.wv, da.bv), dnorm1);
    }
    norm_backward(dnorm1, x, p_.norm1, g_.parameters.norm1, config_.norm_eps);
    accumulate(dnorm1, slice_length(dx_.view(), first, count));
  }

  View dout_;
  Tensor dx_, dkeys_, dvalues_;  // f32
  TransformerBlockGradients g_;  // f32 until the end
};

}  // namespace

TransformerBlock::TransformerBlock(const TransformerBlockConfig& config)
    : attention_(config.attention),
      config_(resolved(config, attention_.config())),
      parameters_(make_parameters(parameter_specs(config_), config_.attention.dtype)) {}

std::int64_t TransformerBlock::parameter_count() const {
  return attention_.parameter_count() + count_parameters(parameter_specs(config_));
}

void TransformerBlock::initialise(std::uint64_t seed) {
  check_parameters(*this);
  attention_.initialise(seed);
  draw_parameters(parameter_specs(config_), seed, parameters_, 100);  // past the streams of the attention's
}

Tensor TransformerBlock::forward(View x, const AttentionOptions& options, Blockwise blockwise) const {
  AttentionCall call = checked_call(*this, x, options, blockwise);
  check_cuts(x, options, blockwise);
  if (x.dtype == DType::f64)
    return reference::transformer_block(config_, attention_.parameters(), parameters_, x, options);
  const Pass pass(*this, call, x, blockwise);
  Tensor z(x.dtype, x.shape);
  pass.for_pieces([&](std::int64_t first, std::int64_t count) { pass.forward(first, count, z); });
  return z;
}

TransformerBlockGradients TransformerBlock::backward(View dout, View x, const AttentionOptions& options,
                                                     Blockwise blockwise) const {
  AttentionCall call = checked_call(*this, x, options, blockwise);
  check_cuts(x, options, blockwise);
  check_readable(kOp, "dout", dout);
  check_shape(kOp, "dout", dout.shape, x.shape);
  check_dtype(kOp, "dout", dout.dtype, x.dtype);
  const bool f64 = x.dtype == DType::f64;
  check_rule(kOp, options.rule, x.dtype, true);
  if (f64)
    return reference::transformer_block_backward(config_, attention_.parameters(), parameters_, dout, x, options);
  return BackwardPass(*this, call, dout, x, blockwise).run();
}

}  // namespace attend
