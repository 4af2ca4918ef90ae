// The C ABI of linear attention.
#include "attend/linear_attention.hpp"

#include <algorithm>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using attend::abi::guard;
using attend::abi::mutable_view;
using attend::abi::optional_mutable_view;
using attend::abi::optional_view;
using attend::abi::require;
using attend::abi::view;

namespace {

// A C function of (context, x, dim, y, features), or (context, x, dy, features, dx, dim), as a callable over spans.
template <class T, class Function>
std::function<void(std::span<const T>, std::span<T>)> value_of(Function* f, void* context) {
  if (f == nullptr) return {};
  return [f, context](std::span<const T> x, std::span<T> y) {
    f(context, x.data(), static_cast<std::int64_t>(x.size()), y.data(), static_cast<std::int64_t>(y.size()));
  };
}
template <class T, class Function>
std::function<void(std::span<const T>, std::span<const T>, std::span<T>)> gradient_of(Function* f, void* context) {
  if (f == nullptr) return {};
  return [f, context](std::span<const T> x, std::span<const T> dy, std::span<T> dx) {
    f(context, x.data(), dy.data(), static_cast<std::int64_t>(dy.size()), dx.data(),
      static_cast<std::int64_t>(dx.size()));
  };
}

attend::FeatureMap map_of(const attend_feature_map& c) {
  attend::FeatureMap map;
  map.kind = static_cast<attend::FeatureMap::Kind>(c.kind);
  map.features = c.features;
  if (c.kind != ATTEND_FEATURES_GIVEN) return map;
  map.value_f32 = value_of<float>(c.value_f32, c.context);
  map.value_f64 = value_of<double>(c.value_f64, c.context);
  map.gradient_f32 = gradient_of<float>(c.gradient_f32, c.context);
  map.gradient_f64 = gradient_of<double>(c.gradient_f64, c.context);
  return map;
}

attend::LinearAttentionOptions linear_options_of(const char* op, const attend_linear_attention_options* options) {
  attend::LinearAttentionOptions result;
  if (options == nullptr) return result;
  attend::abi::check_struct_size(op, "attend_linear_attention_options", *options);
  result.map = map_of(options->map);
  result.causal = options->causal != 0;
  result.normalise = options->normalise != 0;
  result.scale = options->scale;
  result.eps = options->eps;
  result.log_decay = optional_view(options->log_decay);
  result.beta = optional_view(options->beta);
  result.lengths = attend::abi::integers(op, "lengths", options->lengths, options->length_count);
  result.initial_state = optional_view(options->initial_state);
  return result;
}

}  // namespace

void attend_linear_attention_options_init(attend_linear_attention_options* options) {
  if (options == nullptr) return;
  const attend::LinearAttentionOptions defaults;
  *options = {};
  options->struct_size = sizeof(*options);
  options->causal = defaults.causal ? 1 : 0;
  options->normalise = defaults.normalise ? 1 : 0;
  options->scale = defaults.scale;
  options->eps = defaults.eps;
}

void attend_linear_attention_gradients_init(attend_linear_attention_gradients* gradients) {
  if (gradients == nullptr) return;
  *gradients = {};
  gradients->struct_size = sizeof(*gradients);
}

attend_status attend_linear_state_shape(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                        const attend_linear_attention_options* options, int64_t shape[4]) {
  return guard([&] {
    const char* op = "attend_linear_state_shape";
    require(op, "the place for the result", shape);
    const attend::Shape result = attend::linear_state_shape(view(op, "q", q), view(op, "k", k), view(op, "v", v),
                                                            linear_options_of(op, options));
    std::copy(result.begin(), result.end(), shape);
  });
}

attend_status attend_linear_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                      const attend_tensor* out, const attend_linear_attention_options* options,
                                      const attend_tensor* final_state) {
  return guard([&] {
    const char* op = "attend_linear_attention";
    attend::linear_attention(view(op, "q", q), view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                             linear_options_of(op, options), optional_mutable_view(final_state));
  });
}

attend_status attend_linear_attention_backward(const attend_tensor* dout, const attend_tensor* q,
                                               const attend_tensor* k, const attend_tensor* v,
                                               const attend_linear_attention_gradients* gradients,
                                               const attend_linear_attention_options* options,
                                               const attend_tensor* dfinal_state, const attend_tensor* final_state) {
  return guard([&] {
    const char* op = "attend_linear_attention_backward";
    const attend_linear_attention_gradients& g = require(op, "gradients", gradients);
    attend::abi::check_struct_size(op, "attend_linear_attention_gradients", g);
    attend::linear_attention_backward(
        view(op, "dout", dout), view(op, "q", q), view(op, "k", k), view(op, "v", v),
        {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk), mutable_view(op, "dv", g.dv),
         optional_mutable_view(g.dlog_decay), optional_mutable_view(g.dbeta), optional_mutable_view(g.dinitial_state)},
        linear_options_of(op, options), optional_view(dfinal_state), optional_view(final_state));
  });
}

attend_status attend_linear_attention_step(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                           const attend_tensor* out, const attend_tensor* state,
                                           const attend_linear_attention_options* options) {
  return guard([&] {
    const char* op = "attend_linear_attention_step";
    attend::linear_attention_step(view(op, "q", q), view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                                  mutable_view(op, "state", state), linear_options_of(op, options));
  });
}

attend_status attend_inner_linear_attention(const attend_linear_attention_options* options, attend_inner** inner) {
  const char* op = "attend_inner_linear_attention";
  return attend::abi::make(op, inner, [&] { return attend::linear_attention_inner(linear_options_of(op, options)); });
}
