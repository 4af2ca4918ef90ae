// LatentAttention, its cache and its gradients.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

using Parameters = LatentAttentionParameters;
constexpr std::pair<const char*, Tensor Parameters::*> kParameters[] = {{"wq_down", &Parameters::wq_down},
                                                                        {"q_norm", &Parameters::q_norm},
                                                                        {"wq", &Parameters::wq},
                                                                        {"wkv_down", &Parameters::wkv_down},
                                                                        {"kv_norm", &Parameters::kv_norm},
                                                                        {"wkv_up", &Parameters::wkv_up},
                                                                        {"wo", &Parameters::wo}};

// Only those the config calls for.
nb::dict arrays_of(Parameters& parameters, nb::handle owner) {
  nb::dict result;
  for (const auto& [name, member] : kParameters)
    if (!(parameters.*member).empty()) result[name] = array_of(parameters.*member, owner);
  return result;
}

LatentAttentionConfig make_config(const std::string& dtype, std::int64_t width, std::int64_t heads, std::int64_t q_rank,
                                  std::int64_t kv_rank, std::int64_t nope_dim, std::int64_t rope_dim,
                                  std::int64_t value_dim, double norm_eps, const std::string& rope, double rope_theta,
                                  const std::optional<RopeScaling>& rope_scaling, std::optional<double> scale) {
  return {.dtype = dtype_named(dtype),
          .width = width,
          .heads = heads,
          .q_rank = q_rank,
          .kv_rank = kv_rank,
          .nope_dim = nope_dim,
          .rope_dim = rope_dim,
          .value_dim = value_dim,
          .norm_eps = norm_eps,
          .rope = *rope_style(rope),
          .rope_theta = rope_theta,
          .rope_scaling = rope_scaling.value_or(RopeScaling{}),
          .scale = scale};
}

}  // namespace

void bind_latent_attention(nb::module_& m) {
  nb::class_<LatentAttentionSaved>(m, "LatentSaved");
  nb::class_<LatentCache>(m, "LatentCache")
      .def_prop_ro("length", &LatentCache::length)
      .def_prop_ro("capacity", &LatentCache::capacity)
      .def_prop_ro("bytes", &LatentCache::bytes)
      .def_prop_ro("bytes_per_token", &LatentCache::bytes_per_token)
      .def("truncate", &LatentCache::truncate, "length"_a);
  nb::class_<LatentAttentionGradients>(m, "LatentGradients")
      .def_prop_ro("dx", [](nb::handle self) { return array_of(nb::cast<LatentAttentionGradients&>(self).dx, self); })
      .def_prop_ro("parameters", [](nb::handle self) {
        return arrays_of(nb::cast<LatentAttentionGradients&>(self).parameters, self);
      });
  nb::class_<LatentAttention>(m, "LatentAttention")
      .def(
          "__init__",
          [](LatentAttention* self, const std::string& dtype, std::int64_t width, std::int64_t heads,
             std::int64_t q_rank, std::int64_t kv_rank, std::int64_t nope_dim, std::int64_t rope_dim,
             std::int64_t value_dim, double norm_eps, const std::string& rope, double rope_theta,
             const std::optional<RopeScaling>& rope_scaling, std::optional<double> scale) {
            new (self) LatentAttention(make_config(dtype, width, heads, q_rank, kv_rank, nope_dim, rope_dim, value_dim,
                                                   norm_eps, rope, rope_theta, rope_scaling, scale));
          },
          "dtype"_a, "width"_a, "heads"_a, "q_rank"_a, "kv_rank"_a, "nope_dim"_a, "rope_dim"_a, "value_dim"_a,
          "norm_eps"_a, "rope"_a, "rope_theta"_a, "rope_scaling"_a.none(), "scale"_a.none())
      .def("initialise", &LatentAttention::initialise, "seed"_a)
      .def_prop_ro("parameter_count", &LatentAttention::parameter_count)
      .def_prop_ro("width", [](const LatentAttention& layer) { return layer.config().width; })
      .def_prop_ro("scale", &LatentAttention::scale)
      .def_prop_ro("bytes_per_token", &LatentAttention::bytes_per_token)
      .def_prop_ro("expanded_bytes_per_token", &LatentAttention::expanded_bytes_per_token)
      .def_prop_ro("parameters",
                   [](nb::handle self) { return arrays_of(nb::cast<LatentAttention&>(self).parameters(), self); })
      .def(
          "forward",
          [](const LatentAttention& layer, const ArrayView& x, const AttentionOptions& options, const ArrayView& result,
             bool save) -> std::optional<LatentAttentionSaved> {
            const MutableView target = result.out("out");
            LatentAttentionSaved saved;
            const EngineCall call;
            copy_into(layer.forward(x.in(), options, save ? &saved : nullptr), target, "out");
            if (!save) return std::nullopt;
            return saved;
          },
          "x"_a, "options"_a, "out"_a, "save"_a)
      .def(
          "backward",
          [](const LatentAttention& layer, const ArrayView& dout, const LatentAttentionSaved& saved) {
            const EngineCall call;
            return layer.backward(dout.in(), saved);
          },
          "dout"_a, "saved"_a)
      .def(
          "cache",
          [](const LatentAttention& layer, std::int64_t batch, std::int64_t capacity) {
            return LatentCache(layer.config(), batch, capacity);
          },
          "batch"_a, "capacity"_a)
      .def(
          "append",
          [](const LatentAttention& layer, const ArrayView& x, LatentCache& cache,
             const std::optional<AttentionOptions>& options, const ArrayView& result, bool expanded) {
            const MutableView target = result.out("out");
            const EngineCall call;
            const AttentionOptions rules = options.value_or(AttentionOptions{.mask = causal()});
            copy_into(expanded ? layer.prefill(x.in(), cache, rules) : layer.step(x.in(), cache, rules), target, "out");
          },
          "x"_a, "cache"_a, "options"_a.none(), "out"_a, "expanded"_a);
}

}  // namespace attend::python
