// The C ABI of the layer: handles around MultiHeadAttention, what it saves, its gradients and its cache.
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "abi/abi.hpp"
#include "abi/layer.hpp"
#include "attend/multi_head_attention.hpp"

namespace attend::abi {
namespace {

using Parameters = MultiHeadAttentionParameters;
using Gradients = MultiHeadAttentionGradients;

constexpr std::array<std::pair<const char*, Tensor Parameters::*>, 11> kParameters{{{"wq", &Parameters::wq},
                                                                                    {"wk", &Parameters::wk},
                                                                                    {"wv", &Parameters::wv},
                                                                                    {"wv_down", &Parameters::wv_down},
                                                                                    {"wo", &Parameters::wo},
                                                                                    {"bq", &Parameters::bq},
                                                                                    {"bk", &Parameters::bk},
                                                                                    {"bv", &Parameters::bv},
                                                                                    {"bo", &Parameters::bo},
                                                                                    {"q_norm", &Parameters::q_norm},
                                                                                    {"k_norm", &Parameters::k_norm}}};
constexpr std::array<std::pair<const char*, Tensor Gradients::*>, 5> kInputs{
    {{"dx", &Gradients::dx},
     {"dcontext", &Gradients::dcontext},
     {"dbias", &Gradients::dbias},
     {"dsinks", &Gradients::dsinks},
     {"ddistance_bias", &Gradients::ddistance_bias}}};

attend_layer_config default_config() {
  const MultiHeadAttentionConfig defaults;
  attend_layer_config result{};
  result.heads = defaults.heads;
  result.norm_eps = defaults.norm_eps;
  result.rope_theta = defaults.rope_theta;
  return result;
}

}  // namespace

Tensor* find_parameter(MultiHeadAttentionParameters& parameters, const char* name) {
  return find(parameters, kParameters, name);
}

MultiHeadAttentionConfig config_of(const char* op, const attend_layer_config& config) {
  const attend_layer_config given = read_struct(op, "attend_layer_config", config, default_config());
  return {.dtype = static_cast<DType>(given.dtype),
          .width = given.width,
          .context_width = given.context_width,
          .output_width = given.output_width,
          .heads = given.heads,
          .kv_heads = given.kv_heads,
          .head_dim = given.head_dim,
          .value_dim = given.value_dim,
          .value_rank = given.value_rank,
          .qkv_bias = given.qkv_bias != 0,
          .output_bias = given.output_bias != 0,
          .qk_norm = given.qk_norm != 0,
          .norm_eps = given.norm_eps,
          .rope = rope_style_of(op, given.rope_style),
          .rope_theta = given.rope_theta,
          .rope_scaling = rope_scaling_of(op, given.rope_scaling),
          .inner = given.inner == nullptr ? nullptr : given.inner->inner};
}

}  // namespace attend::abi

using namespace attend::abi;

void attend_layer_config_init_sized(attend_layer_config* config, size_t size) {
  attend::abi::write_struct(config, size, attend::abi::default_config());
}

attend_status attend_layer_create(const attend_layer_config* config, attend_layer** layer) {
  const char* op = "attend_layer_create";
  return make(op, layer,
              [&] { return attend::MultiHeadAttention(attend::abi::config_of(op, require(op, "config", config))); });
}

attend_status attend_layer_initialise(attend_layer* layer, uint64_t seed) {
  return initialise(__func__, layer, seed);
}

attend_status attend_layer_parameter(attend_layer* layer, const char* name, attend_tensor* parameter) {
  return parameter_of(__func__, layer, kParameters, name, parameter);
}

attend_status attend_layer_parameter_count(const attend_layer* layer, int64_t* count) {
  return guard([&] {
    const char* op = "attend_layer_parameter_count";
    require(op, "count", count) = require(op, "layer", layer).layer.parameter_count();
  });
}

attend_status attend_layer_forward(const attend_layer* layer, const attend_tensor* x, const attend_tensor* context,
                                   const attend_attention_options* options, const attend_tensor* out,
                                   const attend_tensor* weights, attend_layer_saved** saved) {
  return guard([&] {
    using attend::DType;
    const char* op = "attend_layer_forward";
    if (saved != nullptr) *saved = nullptr;
    const attend::MultiHeadAttention& mha = require(op, "layer", layer).layer;
    const attend::MultiHeadAttentionConfig& config = mha.config();
    const attend::View x_view = view(op, "x", x);
    const std::int64_t B = x_view.batch(), M = x_view.length();
    const std::int64_t N = context == nullptr ? M : context->shape[2];
    const auto out_view = attend::abi::result_view(op, "out", out, config.dtype, {B, 1, M, config.output_width});
    std::optional<attend::MutableView> weights_view;
    if (weights != nullptr) {
      const DType dtype = config.dtype == DType::f64 ? DType::f64 : DType::f32;
      weights_view = attend::abi::result_view(op, "weights", weights, dtype, {B, config.heads, M, N});
    }

    auto kept = saved == nullptr ? nullptr : std::make_unique<attend_layer_saved>();
    attend::Tensor kept_weights;
    const attend::ForwardWants wants{.saved = kept ? &kept->saved : nullptr,
                                     .weights = weights == nullptr ? nullptr : &kept_weights};
    const attend::AttentionOptions rules =
        options_of(op, options, static_cast<std::int32_t>(config.dtype), saved != nullptr);
    const attend::Tensor result = context == nullptr ? mha.forward(x_view, rules, wants)
                                                     : mha.forward(x_view, view(op, "context", context), rules, wants);
    attend::abi::copy(result, out_view);
    if (weights_view) attend::abi::copy(kept_weights, *weights_view);
    if (saved != nullptr) *saved = kept.release();
  });
}

attend_status attend_layer_backward(const attend_layer* layer, const attend_tensor* dout,
                                    const attend_layer_saved* saved, attend_layer_gradients** gradients) {
  const char* op = "attend_layer_backward";
  return make(op, gradients, [&] {
    const attend::MultiHeadAttention& mha = require(op, "layer", layer).layer;
    attend_layer_gradients result{mha.backward(view(op, "dout", dout), require(op, "saved", saved).saved), {}};
    if (const auto& inner = mha.config().inner) {
      for (const attend::NamedTensor& own : inner->parameters()) result.inner_names.push_back("inner." + own.name);
    }
    return result;
  });
}

attend_status attend_layer_gradient(attend_layer_gradients* gradients, const char* name, attend_tensor* gradient) {
  return guard([&] {
    const char* op = "attend_layer_gradient";
    const char* wanted = &require(op, "name", name);
    attend::MultiHeadAttentionGradients& all = require(op, "gradients", gradients).gradients;
    attend::Tensor* tensor = attend::abi::find(all, attend::abi::kInputs, wanted);
    if (tensor == nullptr) tensor = attend::abi::find(all.parameters, attend::abi::kParameters, wanted);
    for (std::size_t n = 0; n < gradients->inner_names.size(); ++n) {
      if (gradients->inner_names[n] == wanted) tensor = &all.inner[n];
    }
    require(op, "gradient", gradient) = attend::abi::found(op, wanted, tensor);
  });
}

attend_status attend_kv_cache_create(const attend_layer* layer, int64_t batch, int64_t capacity,
                                     attend_kv_cache** cache) {
  const char* op = "attend_kv_cache_create";
  return make(op, cache, [&] { return attend::KvCache(require(op, "layer", layer).layer.config(), batch, capacity); });
}

attend_status attend_kv_cache_length(const attend_kv_cache* cache, int64_t* length) {
  return length_of(__func__, cache, length);
}

attend_status attend_kv_cache_truncate(attend_kv_cache* cache, int64_t length) {
  return truncate(__func__, cache, length);
}

attend_status attend_layer_step(const attend_layer* layer, const attend_tensor* x, attend_kv_cache* cache,
                                const attend_attention_options* options, const attend_tensor* out) {
  return guard([&] {
    const char* op = "attend_layer_step";
    const attend::MultiHeadAttention& mha = require(op, "layer", layer).layer;
    const attend::MultiHeadAttentionConfig& config = mha.config();
    const attend::View x_view = view(op, "x", x);
    attend::KvCache& tokens = require(op, "cache", cache).cache;
    // The result's place is checked first: a failed step must not have grown the cache.
    const auto out_view = attend::abi::result_view(op, "out", out, config.dtype,
                                                   {x_view.batch(), 1, x_view.length(), config.output_width});
    const attend::Tensor result =
        options == nullptr
            ? mha.step(x_view, tokens)
            : mha.step(x_view, tokens, options_of(op, options, static_cast<std::int32_t>(config.dtype), false));
    attend::abi::copy(result, out_view);
  });
}

void attend_layer_free(attend_layer* layer) {
  delete layer;
}

void attend_layer_saved_free(attend_layer_saved* saved) {
  delete saved;
}

void attend_layer_gradients_free(attend_layer_gradients* gradients) {
  delete gradients;
}

void attend_kv_cache_free(attend_kv_cache* cache) {
  delete cache;
}
