// Linear attention: checks its arguments and chooses the form.
#include "attend/linear_attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "base/interrupt.hpp"
#include "reference/linear_attention.hpp"
#include "variants/linear_attention_chunks.hpp"

namespace attend {
namespace {

using Kind = FeatureMap::Kind;
using Op = const std::string&;

DType state_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

void check_inputs(Op op, const View& q, const View& k, const View& v, bool causal) {
  check_fitting(op, {"q", q}, {"k", k}, {"v", v});
  if (causal) check_equal(op, "k length", k.length(), q.length(), "q length; causal: a key for each query");
  const std::int64_t H = q.heads(), Hk = k.heads();
  if (Hk == 0 ? H != 0 : H % Hk != 0)
    fail(op, "q heads is " + std::to_string(H) + ", expected a multiple of " + std::to_string(Hk) + " (k heads)");
}

void check_map(Op op, const FeatureMap& map, DType dtype, bool backward) {
  const auto kind = static_cast<std::int32_t>(map.kind);
  if (kind < 0 || kind > static_cast<std::int32_t>(Kind::given))
    fail(op, "feature map is " + std::to_string(kind) + ", expected elu_plus_one, relu, identity or given (0-3)");
  if (map.kind != Kind::given) {
    if (map.features != 0)
      fail(op, "features is " + std::to_string(map.features) + ", expected 0: this map makes as many as dim");
    return;
  }
  if (map.features < 0)
    fail(op, "features is " + std::to_string(map.features) + ", expected a number from 0 (as many as dim) up");
  const bool f64 = dtype == DType::f64;
  if (f64 ? !map.value_f64 : !map.value_f32)
    fail(op, std::string("the feature map has no value function for ") + name(dtype));
  if (backward && (f64 ? !map.gradient_f64 : !map.gradient_f32))
    fail(op, std::string("the feature map has no gradient function for ") + name(dtype));
}

// [1|B, 1|Hk|H, 1|N, 1]
void check_scalars(Op op, const char* what, const View& x, const View& q, const View& k) {
  check_readable(op, what, x);
  const auto one_of = [](std::int64_t size, std::int64_t a, std::int64_t b) { return size == a || size == b; };
  if (one_of(x.batch(), 1, q.batch()) && (x.heads() == 1 || one_of(x.heads(), k.heads(), q.heads())) &&
      one_of(x.length(), 1, k.length()) && x.dim() == 1)
    return;
  fail(op, std::string(what) + " shape is " + to_string(x.shape) + ", expected [1 or " + std::to_string(q.batch()) +
               ", 1 or " + std::to_string(k.heads()) + " or " + std::to_string(q.heads()) + ", 1 or " +
               std::to_string(k.length()) + ", 1]");
}

void check_decay_values(Op op, const View& x) {
  for (std::int64_t b = 0; b < x.batch(); ++b)
    for (std::int64_t h = 0; h < x.heads(); ++h)
      for (std::int64_t t = 0; t < x.length(); ++t) {
        const double value = load(x, b, h, t, 0);
        if (!(value <= 0))
          fail(op, "log_decay holds " + std::to_string(value) + ", expected at most 0: the log of a decay up to 1");
      }
}

void check_numbers(Op op, const LinearAttentionOptions& options, const View& q, const View& k) {
  if (!std::isfinite(options.scale))
    fail(op, "scale is " + std::to_string(options.scale) + ", expected a finite number");
  if (!std::isfinite(options.eps) || options.eps < 0)
    fail(op, "eps is " + std::to_string(options.eps) + ", expected a finite number from 0 up");
  if (options.lengths.empty()) return;
  check_equal(op, "number of lengths", static_cast<std::int64_t>(options.lengths.size()), q.batch(), "batch");
  for (const std::int64_t length : options.lengths)
    if (length < 0 || length > k.length())
      fail(op,
           "lengths holds " + std::to_string(length) + ", expected 0 to " + std::to_string(k.length()) + " (k length)");
}

void check_options(Op op, const LinearAttentionOptions& options, const View& q, const View& k, const View& v,
                   bool backward) {
  check_map(op, options.map, q.dtype, backward);
  check_numbers(op, options, q, k);
  if (!options.causal && (options.log_decay || options.beta || options.initial_state))
    fail(op, "log_decay, beta or initial_state was given, expected none: only the causal form has an order of tokens");
  if (options.beta && options.normalise)
    fail(op, "normalise is on with beta, expected it off: the delta rule has no sum of weights to divide by");
  if (options.log_decay) {
    check_scalars(op, "log_decay", *options.log_decay, q, k);
    check_decay_values(op, *options.log_decay);
  }
  if (options.beta) check_scalars(op, "beta", *options.beta, q, k);
  if (!options.initial_state) return;
  check_readable(op, "initial_state", *options.initial_state);
  check_shape(op, "initial_state", options.initial_state->shape, linear_state_shape(q, k, v, options));
}

void check_state(Op op, const char* what, const MutableView& state, const Shape& shape, DType dtype) {
  check_writable(op, what, state);
  check_shape(op, what, state.shape, shape);
  check_dtype(op, what, state.dtype, state_dtype(dtype));
}

void check_result(Op op, const char* what, const MutableView& x, const Shape& shape, DType dtype) {
  check_writable(op, what, x);
  check_shape(op, what, x.shape, shape);
  check_dtype(op, what, x.dtype, dtype);
}

void check_gradients(Op op, const LinearAttentionGradients& g, const View& q, const View& k, const View& v,
                     const LinearAttentionOptions& options) {
  check_result(op, "dq", g.dq, q.shape, q.dtype);
  check_result(op, "dk", g.dk, k.shape, q.dtype);
  check_result(op, "dv", g.dv, v.shape, q.dtype);
  const auto optional = [&](const char* what, const auto& result, const char* of, const auto& source) {
    if (!result) return;
    if (!source) fail(op, std::string(what) + " was given, expected none: there is no " + of);
    check_writable(op, what, *result);
    check_shape(op, what, result->shape, source->shape);
  };
  optional("dlog_decay", g.dlog_decay, "log_decay", options.log_decay);
  optional("dbeta", g.dbeta, "beta", options.beta);
  if (g.dinitial_state) {
    if (!options.causal) fail(op, "dinitial_state was given, expected none: only the causal form has a state");
    check_state(op, "dinitial_state", *g.dinitial_state, linear_state_shape(q, k, v, options), q.dtype);
  }
}

void copy_state(const std::optional<View>& from, const MutableView& to) {
  for (std::int64_t b = 0; b < to.batch(); ++b)
    for (std::int64_t h = 0; h < to.heads(); ++h)
      for (std::int64_t f = 0; f < to.length(); ++f)
        for (std::int64_t e = 0; e < to.dim(); ++e) store(to, b, h, f, e, from ? load(*from, b, h, f, e) : 0.0);
}

void clear(const MutableView& x) {
  copy_state({}, x);
}

}  // namespace

Shape linear_state_shape(View q, View k, View v, const LinearAttentionOptions& options) {
  const auto tells_apart = [&](const std::optional<View>& x) {
    return x && x->heads() == q.heads() && x->heads() != k.heads() && x->heads() != 1;
  };
  const std::int64_t heads = tells_apart(options.log_decay) || tells_apart(options.beta) ? q.heads() : k.heads();
  const bool own = options.map.kind == Kind::given && options.map.features > 0;
  return {q.batch(), heads, own ? options.map.features : q.dim(), v.dim() + (options.normalise ? 1 : 0)};
}

void linear_attention(View q, View k, View v, MutableView out, const LinearAttentionOptions& options,
                      const std::optional<MutableView>& final_state) {
  const std::string op = "linear_attention";
  check_inputs(op, q, k, v, options.causal);
  check_options(op, options, q, k, v, false);
  check_result(op, "out", out, {q.batch(), q.heads(), q.length(), v.dim()}, q.dtype);
  if (final_state) check_state(op, "final_state", *final_state, linear_state_shape(q, k, v, options), q.dtype);
  check_all_apart(op, {{"out", out}, {"final_state", final_state, "initial_state"}},
                  {{"q", q},
                   {"k", k},
                   {"v", v},
                   {"log_decay", options.log_decay},
                   {"beta", options.beta},
                   {"initial_state", options.initial_state}});
  if (q.batch() == 0 || q.heads() == 0) return;
  if (options.causal && k.length() == 0) {
    if (final_state) copy_state(options.initial_state, *final_state);
    return;
  }
  if (q.dtype == DType::f64) return reference::linear_attention(q, k, v, out, options, final_state);
  const linear::Problem p(q, k, v, options);
  if (options.causal) return linear::causal_forward(p, out, final_state);
  linear::full_forward(p, out, final_state);
}

void linear_attention_backward(View dout, View q, View k, View v, const LinearAttentionGradients& gradients,
                               const LinearAttentionOptions& options, const std::optional<View>& dfinal_state,
                               const std::optional<View>& final_state) {
  const std::string op = "linear_attention_backward";
  check_inputs(op, q, k, v, options.causal);
  check_options(op, options, q, k, v, true);
  check_readable(op, "dout", dout);
  check_shape(op, "dout", dout.shape, {q.batch(), q.heads(), q.length(), v.dim()});
  check_dtype(op, "dout", dout.dtype, q.dtype);
  check_gradients(op, gradients, q, k, v, options);
  if (dfinal_state) {
    if (!options.causal) fail(op, "dfinal_state was given, expected none: only the causal form goes on from a state");
    check_readable(op, "dfinal_state", *dfinal_state);
    check_shape(op, "dfinal_state", dfinal_state->shape, linear_state_shape(q, k, v, options));
  }
  if (final_state) {
    check_readable(op, "final_state", *final_state);
    check_shape(op, "final_state", final_state->shape, linear_state_shape(q, k, v, options));
  }
  check_all_apart(op,
                  {{"dq", gradients.dq},
                   {"dk", gradients.dk},
                   {"dv", gradients.dv},
                   {"dlog_decay", gradients.dlog_decay},
                   {"dbeta", gradients.dbeta},
                   {"dinitial_state", gradients.dinitial_state, "dfinal_state"}},
                  {{"q", q},
                   {"k", k},
                   {"v", v},
                   {"dout", dout},
                   {"log_decay", options.log_decay},
                   {"beta", options.beta},
                   {"initial_state", options.initial_state},
                   {"dfinal_state", dfinal_state},
                   {"final_state", final_state}});
  if (q.batch() == 0 || q.heads() == 0 || (options.causal && k.length() == 0)) {
    if (gradients.dlog_decay) clear(*gradients.dlog_decay);
    if (gradients.dbeta) clear(*gradients.dbeta);
    if (gradients.dinitial_state) copy_state(dfinal_state, *gradients.dinitial_state);
    return;
  }
  if (q.dtype == DType::f64)
    return reference::linear_attention_backward(dout, q, k, v, gradients, options, dfinal_state);
  const linear::Problem p(q, k, v, options);
  if (options.causal) return linear::causal_backward(p, dout, gradients, dfinal_state);
  linear::full_backward(p, dout, gradients, final_state);
}

void linear_attention_step(View q, View k, View v, MutableView out, MutableView state,
                           const LinearAttentionOptions& options) {
  const std::string op = "linear_attention_step";
  if (!options.causal) fail(op, "causal is off, expected it on: decoding has no later keys");
  if (options.initial_state || !options.lengths.empty())
    fail(op, "initial_state or lengths was given, expected neither: the state is an argument of its own");
  check_inputs(op, q, k, v, true);
  check_options(op, options, q, k, v, false);
  check_result(op, "out", out, {q.batch(), q.heads(), q.length(), v.dim()}, q.dtype);
  check_state(op, "state", state, linear_state_shape(q, k, v, options), q.dtype);
  check_all_apart(op, {{"out", out}, {"state", state}},
                  {{"q", q}, {"k", k}, {"v", v}, {"log_decay", options.log_decay}, {"beta", options.beta}});
  if (q.batch() == 0 || q.heads() == 0 || q.length() == 0) return;
  if (q.dtype == DType::f64) {
    LinearAttentionOptions from_state = options;
    from_state.initial_state = state;
    const Uninterrupted whole;
    return reference::linear_attention(q, k, v, out, from_state, state);
  }
  linear::step(linear::Problem(q, k, v, options), out, state);
}

}  // namespace attend
