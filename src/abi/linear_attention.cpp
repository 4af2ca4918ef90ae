// The C ABI of linear attention.
#include "attend/linear_attention.hpp"

#include <algorithm>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using namespace attend::abi;

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

attend_linear_attention_options default_options() {
  const attend::LinearAttentionOptions defaults;
  attend_linear_attention_options result{};
  result.causal = defaults.causal ? 1 : 0;
  result.normalise = defaults.normalise ? 1 : 0;
  result.scale = defaults.scale;
  result.eps = defaults.eps;
  return result;
}

attend::LinearAttentionOptions linear_options_of(const char* op, const attend_linear_attention_options* options) {
  attend::LinearAttentionOptions result;
  if (options == nullptr) return result;
  const attend_linear_attention_options given =
      read_struct(op, "attend_linear_attention_options", *options, default_options());
  result.map = map_of(given.map);
  result.causal = given.causal != 0;
  result.normalise = given.normalise != 0;
  result.scale = given.scale;
  result.eps = given.eps;
  result.log_decay = optional_view(op, "log_decay", given.log_decay);
  result.beta = optional_view(op, "beta", given.beta);
  result.lengths = attend::abi::integers(op, "lengths", given.lengths, given.length_count);
  result.initial_state = optional_view(op, "initial_state", given.initial_state);
  return result;
}

}  // namespace

void attend_linear_attention_options_init_sized(attend_linear_attention_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_options());
}

void attend_linear_attention_gradients_init_sized(attend_linear_attention_gradients* gradients, size_t size) {
  attend::abi::write_struct(gradients, size, {});
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
                             linear_options_of(op, options), optional_mutable_view(op, "final_state", final_state));
  });
}

attend_status attend_linear_attention_backward(const attend_tensor* dout, const attend_tensor* q,
                                               const attend_tensor* k, const attend_tensor* v,
                                               const attend_linear_attention_gradients* gradients,
                                               const attend_linear_attention_options* options,
                                               const attend_tensor* dfinal_state, const attend_tensor* final_state) {
  return guard([&] {
    const char* op = "attend_linear_attention_backward";
    const attend_linear_attention_gradients g =
        read_struct(op, "attend_linear_attention_gradients", require(op, "gradients", gradients), {});
    attend::linear_attention_backward(
        view(op, "dout", dout), view(op, "q", q), view(op, "k", k), view(op, "v", v),
        {mutable_view(op, "dq", g.dq), mutable_view(op, "dk", g.dk), mutable_view(op, "dv", g.dv),
         optional_mutable_view(op, "dlog_decay", g.dlog_decay), optional_mutable_view(op, "dbeta", g.dbeta),
         optional_mutable_view(op, "dinitial_state", g.dinitial_state)},
        linear_options_of(op, options), optional_view(op, "dfinal_state", dfinal_state),
        optional_view(op, "final_state", final_state));
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
