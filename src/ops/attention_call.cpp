// Checks the arguments of an attention call and describes it for the kernels.
#include "ops/attention_call.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "ops/row_statistics.hpp"

namespace attend {
namespace {

const char* const kOp = "attention";
const char* const kBackwardOp = "attention_backward";

bool is_broadcast_of(const Shape& shape, const Shape& full) {
  for (std::size_t d = 0; d < 4; ++d)
    if (shape[d] != full[d] && shape[d] != 1) return false;
  return true;
}

// Kernels read f32, f16 and bf16; f64 beside narrower inputs would be a silent loss.
void check_beside(const char* op, const char* what, DType dtype, DType inputs) {
  if (dtype == DType::f64 && inputs != DType::f64)
    fail(op, std::string(what) + " is f64, expected f32, f16 or bf16 beside " + name(inputs) + " inputs");
}

void check_finite(const char* what, double value, DType dtype) {
  const bool held =
      dtype == DType::f64 || std::abs(value) <= double{std::numeric_limits<float>::max()};  // kernels work in f32
  if (!std::isfinite(value) || !held)
    fail(kOp, std::string(what) + " is " + std::to_string(value) + ", expected a finite number" +
                  (held ? "" : " that f32 holds"));
}

void check_options(const Shape& scores, DType dtype, const AttentionOptions& options) {
  const auto& [B, H, M, N] = scores;
  check_rule(kOp, options.rule, dtype, false);
  if (options.scale) check_finite("scale", *options.scale, dtype);
  check_finite("softcap", options.softcap, dtype);
  if (options.softcap < 0) fail(kOp, "softcap is " + std::to_string(options.softcap) + ", expected 0 (off) or more");
  if (!(options.dropout.probability >= 0 && options.dropout.probability < 1))
    fail(kOp, "dropout probability is " + std::to_string(options.dropout.probability) + ", expected [0, 1)");
  if (options.bias) {
    check_readable(kOp, "bias", *options.bias);
    check_beside(kOp, "bias", options.bias->dtype, dtype);
    if (!is_broadcast_of(options.bias->shape, scores))
      fail(kOp, "bias shape is " + to_string(options.bias->shape) + ", expected " + to_string(scores) +
                    " with any dimension 1");
  }
  if (options.distance_bias) {
    const View& by_distance = *options.distance_bias;
    check_readable(kOp, "distance_bias", by_distance);
    check_beside(kOp, "distance_bias", by_distance.dtype, dtype);
    if (options.bias) fail(kOp, "bias and distance_bias are both given, expected one of them");
    if (B > 0 && M > 0 && N > 0) {  // else it is never read, and the sum might not fit
      check_shape(kOp, "distance_bias", by_distance.shape, {1, by_distance.heads() == 1 ? 1 : H, 1, M + N - 1});
    }
  }
  if (options.alibi_slopes) {
    check_readable(kOp, "ALiBi slopes", *options.alibi_slopes);
    if (options.alibi_slopes->shape != Shape{1, H, 1, 1})
      check_shape(kOp, "ALiBi slopes", options.alibi_slopes->shape, {B, H, 1, 1});
  }
  if (options.sinks) {
    check_readable(kOp, "sinks", *options.sinks);
    check_shape(kOp, "sinks", options.sinks->shape, {1, H, 1, 1});
  }
}

// All but the mask.
void check_inputs(const View& q, const View& k, const View& v, const AttentionOptions& options) {
  check_fitting(kOp, {"q", q}, {"k", k}, {"v", v});
  if (q.dim() < 1 || v.dim() < 1)
    fail(kOp, "head dim is " + std::to_string(q.dim()) + " and value dim " + std::to_string(v.dim()) +
                  ", expected at least 1");
  if (q.heads() < 1 || k.heads() < 1 || q.heads() % k.heads() != 0)
    fail(kOp, "q has " + std::to_string(q.heads()) + " heads and k " + std::to_string(k.heads()) +
                  ", expected a whole number of query heads for each KV head");
  checked_product("attention: scores", {q.batch(), q.heads(), q.length(), std::max<std::int64_t>(1, k.length())});
  check_options({q.batch(), q.heads(), q.length(), k.length()}, q.dtype, options);
}

}  // namespace

void check_rule(const char* op, const ScoreRule& rule, DType dtype, bool backward) {
  if (!rule && !rule.backward_f32 && !rule.backward_f64) return;
  const bool f64 = dtype == DType::f64;
  const bool has_forward = f64 ? static_cast<bool>(rule.forward_f64) : static_cast<bool>(rule.forward_f32);
  const bool has_backward = f64 ? static_cast<bool>(rule.backward_f64) : static_cast<bool>(rule.backward_f32);
  const std::string suffix = f64 ? "f64" : "f32";
  const std::string instead = "; make the rule of generic callables, ScoreRule([](auto tile) {...}), or set ";
  if (!has_forward)
    fail(op,
         "the score rule has no function for " + std::string(name(dtype)) + " inputs" + instead + "forward_" + suffix);
  if (backward && !has_backward) fail(op, "the score rule has no gradient; give ScoreRule a backward callable");
}

void check_apart_from_mask(const char* op, const Mask& mask, std::initializer_list<Written> written) {
  for (const MaskRule& rule : mask.rules) {
    if (const auto* dense = std::get_if<DenseRule>(&rule))
      check_apart_from(op, "the mask", dense->data, dense->shape, dense->strides, 1, written);
    if (const auto* any = std::get_if<AnyRule>(&rule))
      for (const Mask& part : *any->masks) check_apart_from_mask(op, part, written);
  }
}

std::optional<MutableView> saved_lse(const View& q, std::vector<Tensor>* saved) {
  if (saved == nullptr) return std::nullopt;
  saved->clear();
  return saved->emplace_back(accumulator_dtype(q.dtype), Shape{q.batch(), q.heads(), q.length(), 1}).view();
}

void check_saved(const char* op, const std::vector<Tensor>& saved, std::int64_t count) {
  const std::int64_t got = std::ssize(saved);
  if (got == count) return;
  fail(op, "saved has " + std::to_string(got) + (got == 1 ? " tensor" : " tensors") + ", expected the " +
               std::to_string(count) + " of forward; pass the same `saved` to forward first");
}

DType accumulator_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

void check_outputs(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras) {
  check_outputs(call.q, call.k, call.v, call.options, out, extras);
}

void check_outputs(const View& q, const View& k, const View& v, const AttentionOptions& options, const MutableView& out,
                   const AttentionExtras& extras) {
  check_writable(kOp, "out", out);
  check_result_dtype(kOp, "out", out.dtype, q.dtype);
  check_shape(kOp, "out", out.shape, {q.batch(), q.heads(), q.length(), v.dim()});
  if (extras.lse) {
    check_writable(kOp, "lse", *extras.lse);
    check_dtype(kOp, "lse", extras.lse->dtype, accumulator_dtype(q.dtype));
    check_shape(kOp, "lse", extras.lse->shape, {q.batch(), q.heads(), q.length(), 1});
  }
  if (extras.weights) {
    check_writable(kOp, "weights", *extras.weights);
    check_beside(kOp, "weights", extras.weights->dtype, q.dtype);
    check_shape(kOp, "weights", extras.weights->shape, {q.batch(), q.heads(), q.length(), k.length()});
  }
  std::optional<MutableView> sums;
  if (extras.row_sums) {
    sums = extras.row_sums->sums;
    check_writable(kOp, "row sums", *sums);
    check_dtype(kOp, "row sums", sums->dtype, DType::f32);
    check_shape(kOp, "row sums", sums->shape, {q.batch(), q.heads(), q.length(), sums->dim()});
    if (!extras.row_sums->values) fail(kOp, "row sums need a function `values`");
    if (q.dtype == DType::f64) fail(kOp, "row sums are gathered for f32, bf16 and f16, got f64");
  }
  std::optional<MutableView> statistics;
  if (extras.statistics) {
    statistics = extras.statistics->rows;
    check_statistics(kOp, q, k, *extras.statistics);
  }
  const std::initializer_list<Written> written = {
      {"out", out}, {"lse", extras.lse}, {"weights", extras.weights}, {"row sums", sums}, {"statistics", statistics}};
  check_all_apart(kOp, written,
                  {{"q", q},
                   {"k", k},
                   {"v", v},
                   {"bias", options.bias},
                   {"distance_bias", options.distance_bias},
                   {"ALiBi slopes", options.alibi_slopes},
                   {"sinks", options.sinks}});
  check_apart_from_mask(kOp, options.mask, written);
}

void check_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                    const AttentionGradients& gradients) {
  const View &q = call.q, &k = call.k, &v = call.v;
  const AttentionOptions& options = call.options;
  const Shape out_shape = {q.batch(), q.heads(), q.length(), v.dim()};
  check_readable(kBackwardOp, "dout", dout);
  check_readable(kBackwardOp, "out", out);
  check_shape(kBackwardOp, "dout", dout.shape, out_shape);
  check_shape(kBackwardOp, "out", out.shape, out_shape);
  check_lse(kBackwardOp, lse, q.shape, q.dtype);
  check_dtype(kBackwardOp, "dout", dout.dtype, q.dtype);
  check_result_dtype(kBackwardOp, "out", out.dtype, q.dtype);
  const auto check_gradient = [&](const char* what, const MutableView& gradient, const View& of) {
    check_writable(kBackwardOp, what, gradient);
    check_result_dtype(kBackwardOp, what, gradient.dtype, q.dtype);
    check_shape(kBackwardOp, what, gradient.shape, of.shape);
  };
  check_gradient("dq", gradients.dq, q);
  check_gradient("dk", gradients.dk, k);
  check_gradient("dv", gradients.dv, v);
  const auto check_optional = [&](const char* what, const std::optional<MutableView>& gradient,
                                  const std::optional<View>& of) {
    if (!gradient) return;
    if (!of) fail(kBackwardOp, std::string(what) + " is asked for, but the options have no such input");
    check_writable(kBackwardOp, what, *gradient);
    check_shape(kBackwardOp, what, gradient->shape, of->shape);
  };
  check_optional("dbias", gradients.dbias, options.bias);
  check_optional("dsinks", gradients.dsinks, options.sinks);
  check_optional("ddistance_bias", gradients.ddistance_bias, options.distance_bias);
  const std::initializer_list<Written> written = {
      {"dq", gradients.dq},       {"dk", gradients.dk},         {"dv", gradients.dv},
      {"dbias", gradients.dbias}, {"dsinks", gradients.dsinks}, {"ddistance_bias", gradients.ddistance_bias}};
  check_all_apart(kBackwardOp, written,
                  {{"q", q},
                   {"k", k},
                   {"v", v},
                   {"dout", dout},
                   {"out", out},
                   {"lse", lse},
                   {"bias", options.bias},
                   {"distance_bias", options.distance_bias},
                   {"ALiBi slopes", options.alibi_slopes},
                   {"sinks", options.sinks}});
  check_apart_from_mask(kBackwardOp, options.mask, written);
  check_rule(kBackwardOp, options.rule, q.dtype, true);
}

Operand operand_of(const View& view) {
  // A dimension of one element takes no step, whatever its stride says: that repeats a bias, and nothing overflows.
  const auto stride = [&](std::size_t d) { return view.shape[d] > 1 ? view.strides[d] : 0; };
  return {view.dtype, const_cast<void*>(view.data), stride(0), stride(1), stride(2), stride(3)};
}
Operand operand_of(const MutableView& view) {
  return operand_of(View(view));
}

namespace {

// The values for each distance as a matrix of them for each query and key: one step down is one step back.
View by_distance(const View& values, std::int64_t M, std::int64_t N) {
  const std::int64_t step = values.strides[3];
  const auto* first = static_cast<const char*>(values.data);
  if (M > 1) first += (M - 1) * step * size_of(values.dtype);
  return {values.dtype, first, {1, values.heads(), M, N}, {0, values.strides[1], -step, step}};
}

}  // namespace

RuleHook::RuleHook(const ScoreRule& rule) : rule_(rule ? &rule : nullptr), hook_{} {
  hook_.context = this;
  hook_.forward = [](void* self, float* scores, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                     std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    auto& hook = *static_cast<RuleHook*>(self);
    hook.guard_.run([&] { hook.rule_->forward_f32({scores, stride, rows, cols, b, h, i, j}); });
  };
  hook_.backward = [](void* self, const float* scores, float* grad, std::int64_t stride, std::int64_t rows,
                      std::int64_t cols, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    auto& hook = *static_cast<RuleHook*>(self);
    hook.guard_.run([&] {
      hook.rule_->backward_f32({scores, stride, rows, cols, b, h, i, j}, {grad, stride, rows, cols, b, h, i, j});
    });
  };
}

AttentionCall::AttentionCall(const View& q_in, const View& k_in, const View& v_in, const AttentionOptions& given)
    : q(q_in),
      k(k_in),
      v(v_in),
      options((check_inputs(q, k, v, given), given)),
      mask(options.mask, q.batch(), q.heads(), q.length(), k.length()),
      rule(options.rule) {
  if (options.alibi_slopes) alibi_position_ = lower_diagonal(options.alibi_diagonal, "ALiBi", q.batch());
  AttentionProblem& p = problem_;
  p.B = q.batch(), p.H = q.heads(), p.Hk = k.heads(), p.G = p.H / p.Hk;
  p.M = q.length(), p.N = k.length(), p.D = q.dim(), p.E = v.dim();
  set_inputs(q, k, v);
  p.mask = &mask;
  p.split_bf16 = options.precision == Precision::split_bf16;
  p.scale = static_cast<float>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.D))));
  p.softcap = static_cast<float>(options.softcap);
  p.hook = rule.hook();
  if (options.bias) {
    bias_ = operand_of(*options.bias);
    p.bias = &bias_;
  }
  if (options.distance_bias && p.N > 0 && !empty()) {
    bias_ = operand_of(by_distance(*options.distance_bias, p.M, p.N));
    p.bias = &bias_;
  }
  if (options.dropout.probability > 0) {
    p.dropout_seed = options.dropout.seed;
    p.dropout_threshold = dropout_threshold(options.dropout.probability);
    p.dropout_scale = static_cast<float>(1.0 / (1.0 - options.dropout.probability));
  }
}

const AttentionProblem& AttentionCall::problem() const {
  AttentionProblem& p = problem_;
  if (options.alibi_slopes && !empty() && alibi_.empty()) {
    const View& slopes = *options.alibi_slopes;
    for (std::int64_t b = 0; b < p.B; ++b)
      for (std::int64_t h = 0; h < p.H; ++h)
        alibi_.push_back(static_cast<float>(load(slopes, slopes.batch() == 1 ? 0 : b, h, 0, 0)));
    p.alibi = alibi_.data();
    p.alibi_position = &alibi_position_;
  }
  if (options.sinks && sinks_.empty()) {
    for (std::int64_t h = 0; h < p.H; ++h) sinks_.push_back(static_cast<float>(load(*options.sinks, 0, h, 0, 0)));
    p.sinks = sinks_.data();
  }
  return p;
}

void AttentionCall::set_inputs(const View& new_q, const View& new_k, const View& new_v) {
  q = new_q, k = new_k, v = new_v;
  problem_.q = operand_of(q), problem_.k = operand_of(k), problem_.v = operand_of(v);
}

}  // namespace attend
