// The C ABI of latent attention: handles around LatentAttention, what it saves, its gradients and its cache.
#include "attend/latent_attention.hpp"

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

struct attend_latent {
  attend::LatentAttention layer;
};
struct attend_latent_saved {
  attend::LatentAttentionSaved saved;
};
struct attend_latent_gradients {
  attend::LatentAttentionGradients gradients;
};
struct attend_latent_cache {
  attend::LatentCache cache;
};

namespace attend::abi {
namespace {

using Parameters = LatentAttentionParameters;

constexpr std::array<std::pair<const char*, Tensor Parameters::*>, 7> kParameters{{{"wq_down", &Parameters::wq_down},
                                                                                   {"q_norm", &Parameters::q_norm},
                                                                                   {"wq", &Parameters::wq},
                                                                                   {"wkv_down", &Parameters::wkv_down},
                                                                                   {"kv_norm", &Parameters::kv_norm},
                                                                                   {"wkv_up", &Parameters::wkv_up},
                                                                                   {"wo", &Parameters::wo}}};

attend_latent_config default_config() {
  const LatentAttentionConfig defaults;
  attend_latent_config result{};
  result.heads = defaults.heads;
  result.norm_eps = defaults.norm_eps;
  result.rope_style = ATTEND_ROPE_INTERLEAVED;
  result.rope_theta = defaults.rope_theta;
  return result;
}

LatentAttentionConfig latent_config_of(const char* op, const attend_latent_config& config) {
  const attend_latent_config given = read_struct(op, "attend_latent_config", config, default_config());
  const std::optional<RopeStyle> style = rope_style_of(op, given.rope_style);
  if (!style) fail(op, "RoPE style is ATTEND_ROPE_NONE (0), expected ATTEND_ROPE_HALF_SPLIT or _INTERLEAVED (1-2)");
  return {.dtype = static_cast<DType>(given.dtype),
          .width = given.width,
          .heads = given.heads,
          .q_rank = given.q_rank,
          .kv_rank = given.kv_rank,
          .nope_dim = given.nope_dim,
          .rope_dim = given.rope_dim,
          .value_dim = given.value_dim,
          .norm_eps = given.norm_eps,
          .rope = *style,
          .rope_theta = given.rope_theta,
          .rope_scaling = rope_scaling_of(op, given.rope_scaling),
          .scale = given.has_scale != 0 ? std::optional(given.scale) : std::nullopt};
}

// The next tokens, by prefill or by step. The result's place is checked first: a failed call must not have grown the
// cache.
attend_status append(const char* op, const attend_latent* layer, const attend_tensor* x, attend_latent_cache* cache,
                     const attend_attention_options* options, const attend_tensor* out, bool expanded) {
  return guard([&] {
    const LatentAttention& mla = require(op, "layer", layer).layer;
    const View x_view = view(op, "x", x);
    LatentCache& tokens = require(op, "cache", cache).cache;
    const DType dtype = mla.config().dtype;
    const MutableView to = result_view(op, "out", out, dtype, {x_view.batch(), 1, x_view.length(), mla.config().width});
    AttentionOptions rules{.mask = causal()};
    if (options != nullptr) rules = options_of(op, options, static_cast<std::int32_t>(dtype), false);
    copy(expanded ? mla.prefill(x_view, tokens, rules) : mla.step(x_view, tokens, rules), to);
  });
}

}  // namespace
}  // namespace attend::abi

using namespace attend::abi;

void attend_latent_config_init_sized(attend_latent_config* config, size_t size) {
  attend::abi::write_struct(config, size, attend::abi::default_config());
}

attend_status attend_latent_create(const attend_latent_config* config, attend_latent** layer) {
  const char* op = "attend_latent_create";
  return make(op, layer, [&] {
    return attend::LatentAttention(attend::abi::latent_config_of(op, require(op, "config", config)));
  });
}

attend_status attend_latent_initialise(attend_latent* layer, uint64_t seed) {
  return initialise(__func__, layer, seed);
}

attend_status attend_latent_parameter(attend_latent* layer, const char* name, attend_tensor* parameter) {
  return parameter_of(__func__, layer, kParameters, name, parameter);
}

attend_status attend_latent_bytes_per_token(const attend_latent* layer, int64_t* bytes, int64_t* expanded) {
  return guard([&] {
    const attend::LatentAttention& mla = require("attend_latent_bytes_per_token", "layer", layer).layer;
    if (bytes != nullptr) *bytes = mla.bytes_per_token();
    if (expanded != nullptr) *expanded = mla.expanded_bytes_per_token();
  });
}

attend_status attend_latent_forward(const attend_latent* layer, const attend_tensor* x,
                                    const attend_attention_options* options, const attend_tensor* out,
                                    attend_latent_saved** saved) {
  return guard([&] {
    const char* op = "attend_latent_forward";
    if (saved != nullptr) *saved = nullptr;
    const attend::LatentAttention& mla = require(op, "layer", layer).layer;
    const attend::DType dtype = mla.config().dtype;
    const attend::View x_view = view(op, "x", x);
    const auto to =
        attend::abi::result_view(op, "out", out, dtype, {x_view.batch(), 1, x_view.length(), mla.config().width});
    auto kept = saved == nullptr ? nullptr : std::make_unique<attend_latent_saved>();
    const attend::AttentionOptions rules = options_of(op, options, static_cast<std::int32_t>(dtype), saved != nullptr);
    attend::abi::copy(mla.forward(x_view, rules, kept ? &kept->saved : nullptr), to);
    if (saved != nullptr) *saved = kept.release();
  });
}

attend_status attend_latent_backward(const attend_latent* layer, const attend_tensor* dout,
                                     const attend_latent_saved* saved, attend_latent_gradients** gradients) {
  const char* op = "attend_latent_backward";
  return make(op, gradients, [&] {
    return require(op, "layer", layer).layer.backward(view(op, "dout", dout), require(op, "saved", saved).saved);
  });
}

attend_status attend_latent_gradient(attend_latent_gradients* gradients, const char* name, attend_tensor* gradient) {
  return guard([&] {
    const char* op = "attend_latent_gradient";
    const char* wanted = &require(op, "name", name);
    attend::LatentAttentionGradients& all = require(op, "gradients", gradients).gradients;
    attend::Tensor* tensor =
        std::strcmp(wanted, "dx") == 0 ? &all.dx : attend::abi::find(all.parameters, attend::abi::kParameters, wanted);
    require(op, "gradient", gradient) = attend::abi::found(op, wanted, tensor);
  });
}

attend_status attend_latent_cache_create(const attend_latent* layer, int64_t batch, int64_t capacity,
                                         attend_latent_cache** cache) {
  const char* op = "attend_latent_cache_create";
  return make(op, cache,
              [&] { return attend::LatentCache(require(op, "layer", layer).layer.config(), batch, capacity); });
}

attend_status attend_latent_cache_length(const attend_latent_cache* cache, int64_t* length) {
  return length_of(__func__, cache, length);
}

attend_status attend_latent_cache_truncate(attend_latent_cache* cache, int64_t length) {
  return truncate(__func__, cache, length);
}

attend_status attend_latent_prefill(const attend_latent* layer, const attend_tensor* x, attend_latent_cache* cache,
                                    const attend_attention_options* options, const attend_tensor* out) {
  return attend::abi::append("attend_latent_prefill", layer, x, cache, options, out, true);
}

attend_status attend_latent_step(const attend_latent* layer, const attend_tensor* x, attend_latent_cache* cache,
                                 const attend_attention_options* options, const attend_tensor* out) {
  return attend::abi::append("attend_latent_step", layer, x, cache, options, out, false);
}

void attend_latent_free(attend_latent* layer) {
  delete layer;
}

void attend_latent_saved_free(attend_latent_saved* saved) {
  delete saved;
}

void attend_latent_gradients_free(attend_latent_gradients* gradients) {
  delete gradients;
}

void attend_latent_cache_free(attend_latent_cache* cache) {
  delete cache;
}
