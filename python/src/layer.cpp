// MultiHeadAttention, its cache and its gradients.
#include <nanobind/ndarray.h>

#include <array>
#include <cstring>
#include <string>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {

nb::object array_of(const MutableView& view, nb::handle owner) {
  nb::dlpack::dtype dtype = nb::dtype<float>();
  if (view.dtype == DType::f64) dtype = nb::dtype<double>();
  if (view.dtype == DType::bf16) dtype = nb::dtype<std::uint16_t>();
  if (view.dtype == DType::f16) dtype = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  std::array<std::size_t, 4> shape{};
  for (std::size_t n = 0; n < 4; ++n) shape[n] = static_cast<std::size_t>(view.shape[n]);
  return nb::cast(nb::ndarray<nb::numpy>(view.data, 4, shape.data(), owner, nullptr, dtype));
}
nb::object array_of(Tensor& tensor, nb::handle owner) {
  return tensor.empty() ? nb::none() : array_of(tensor.view(), owner);
}

namespace {

struct NamedParameter {
  const char* name;
  Tensor MultiHeadAttentionParameters::* tensor;
};
constexpr NamedParameter kParameters[] = {
    {"wq", &MultiHeadAttentionParameters::wq},         {"wk", &MultiHeadAttentionParameters::wk},
    {"wv", &MultiHeadAttentionParameters::wv},         {"wv_down", &MultiHeadAttentionParameters::wv_down},
    {"wo", &MultiHeadAttentionParameters::wo},         {"bq", &MultiHeadAttentionParameters::bq},
    {"bk", &MultiHeadAttentionParameters::bk},         {"bv", &MultiHeadAttentionParameters::bv},
    {"bo", &MultiHeadAttentionParameters::bo},         {"q_norm", &MultiHeadAttentionParameters::q_norm},
    {"k_norm", &MultiHeadAttentionParameters::k_norm},
};

}  // namespace

nb::dict arrays_of(MultiHeadAttentionParameters& parameters, nb::handle owner) {
  nb::dict result;
  for (const NamedParameter& p : kParameters)
    if (!(parameters.*p.tensor).empty()) result[p.name] = array_of(parameters.*p.tensor, owner);
  return result;
}

void copy_into(const Tensor& from, const MutableView& to, const char* what) {
  const Strides one_after_another = contiguous_strides(to.shape);
  bool contiguous = true;
  for (std::size_t d = 0; d < 4; ++d)
    contiguous &= from.size() == 0 || to.shape[d] == 1 || to.strides[d] == one_after_another[d];
  if (to.shape != from.shape() || to.dtype != from.dtype() || !contiguous)
    throw InvalidArgument(std::string(what) + " must be contiguous and of the layer's dtype and output shape");
  std::memcpy(to.data, from.view().data, static_cast<std::size_t>(from.bytes()));
}

std::optional<RopeStyle> rope_style(const std::optional<std::string>& style) {
  if (!style) return std::nullopt;
  if (*style == "half_split") return RopeStyle::half_split;
  if (*style == "interleaved") return RopeStyle::interleaved;
  throw InvalidArgument("rope is \"" + *style + "\", expected \"half_split\", \"interleaved\" or None");
}

void bind_layer(nb::module_& m) {
  nb::class_<MultiHeadAttentionSaved>(m, "Saved");
  nb::class_<KvCache>(m, "KvCache")
      .def_prop_ro("length", &KvCache::length)
      .def_prop_ro("capacity", &KvCache::capacity)
      .def_prop_ro("bytes", &KvCache::bytes)
      .def("truncate", &KvCache::truncate, "length"_a);
  nb::class_<MultiHeadAttentionGradients>(m, "Gradients")
      .def_prop_ro("dx",
                   [](nb::handle self) { return array_of(nb::cast<MultiHeadAttentionGradients&>(self).dx, self); })
      .def_prop_ro(
          "dcontext",
          [](nb::handle self) { return array_of(nb::cast<MultiHeadAttentionGradients&>(self).dcontext, self); })
      .def_prop_ro(
          "parameters",
          [](nb::handle self) { return arrays_of(nb::cast<MultiHeadAttentionGradients&>(self).parameters, self); })
      .def_prop_ro("inner", [](nb::handle self) {
        nb::list result;
        for (Tensor& gradient : nb::cast<MultiHeadAttentionGradients&>(self).inner)
          result.append(array_of(gradient, self));
        return result;
      });
  nb::class_<InnerAttention>(
      m, "InnerAttention", "What a layer may compute between its projections.",
      nb::dynamic_attr())  // what it was made from, which also keeps alive what it reads in place
      .def_prop_ro("name", &InnerAttention::name)
      .def_prop_ro("parameters", [](nb::handle self) {
        nb::dict result;
        for (const NamedTensor& own : nb::cast<InnerAttention&>(self).parameters())
          result[own.name.c_str()] = array_of(own.value, self);
        return result;
      });

  nb::class_<MultiHeadAttention>(m, "MultiHeadAttention")
      .def(
          "__init__",
          [](MultiHeadAttention* self, const std::string& dtype, std::int64_t width, std::int64_t heads,
             std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim, std::int64_t context_width,
             std::int64_t output_width, std::int64_t value_rank, bool qkv_bias, bool output_bias, bool qk_norm,
             double norm_eps, const std::optional<std::string>& rope, double rope_theta,
             const std::optional<RopeScaling>& rope_scaling, std::shared_ptr<InnerAttention> inner) {
            MultiHeadAttentionConfig config;
            config.dtype = dtype_named(dtype);
            config.width = width;
            config.heads = heads;
            config.kv_heads = kv_heads;
            config.head_dim = head_dim;
            config.value_dim = value_dim;
            config.context_width = context_width;
            config.output_width = output_width;
            config.value_rank = value_rank;
            config.qkv_bias = qkv_bias;
            config.output_bias = output_bias;
            config.qk_norm = qk_norm;
            config.norm_eps = norm_eps;
            config.rope = rope_style(rope);
            config.rope_theta = rope_theta;
            config.rope_scaling = rope_scaling.value_or(RopeScaling{});
            config.inner = std::move(inner);
            new (self) MultiHeadAttention(config);
          },
          "dtype"_a, "width"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "value_dim"_a, "context_width"_a,
          "output_width"_a, "value_rank"_a, "qkv_bias"_a, "output_bias"_a, "qk_norm"_a, "norm_eps"_a, "rope"_a.none(),
          "rope_theta"_a, "rope_scaling"_a.none(), "inner"_a.none())
      .def("initialise", &MultiHeadAttention::initialise, "seed"_a)
      .def_prop_ro("parameter_count", &MultiHeadAttention::parameter_count)
      .def_prop_ro("output_width", [](const MultiHeadAttention& layer) { return layer.config().output_width; })
      .def_prop_ro("heads", [](const MultiHeadAttention& layer) { return layer.config().heads; })
      .def_prop_ro("parameters",
                   [](nb::handle self) { return arrays_of(nb::cast<MultiHeadAttention&>(self).parameters(), self); })
      .def(
          "forward",
          [](const MultiHeadAttention& layer, const ArrayView& x, const std::optional<ArrayView>& context,
             const AttentionOptions& options, const ArrayView& result, const std::optional<ArrayView>& weights,
             bool save) -> std::optional<MultiHeadAttentionSaved> {
            const MutableView target = result.out("out");
            const std::optional<MutableView> weights_target = out("weights", weights);
            MultiHeadAttentionSaved saved;
            Tensor weights_tensor;
            const EngineCall call;
            const ForwardWants wants{save ? &saved : nullptr, weights_target ? &weights_tensor : nullptr};
            const Tensor y =
                context ? layer.forward(x.in(), context->in(), options, wants) : layer.forward(x.in(), options, wants);
            copy_into(y, target, "out");
            if (weights_target) copy_into(weights_tensor, *weights_target, "weights");
            if (!save) return std::nullopt;
            return saved;
          },
          "x"_a, "context"_a.none(), "options"_a, "out"_a, "weights"_a.none(), "save"_a)
      .def(
          "backward",
          [](const MultiHeadAttention& layer, const ArrayView& dout, const MultiHeadAttentionSaved& saved) {
            const EngineCall call;
            return layer.backward(dout.in(), saved);
          },
          "dout"_a, "saved"_a)
      .def(
          "cache",
          [](const MultiHeadAttention& layer, std::int64_t batch, std::int64_t capacity) {
            return KvCache(layer.config(), batch, capacity);
          },
          "batch"_a, "capacity"_a)
      .def(
          "step",
          [](const MultiHeadAttention& layer, const ArrayView& x, KvCache& cache,
             const std::optional<AttentionOptions>& options, const ArrayView& result) {
            const MutableView target = result.out("out");
            const EngineCall call;
            const Tensor y = options ? layer.step(x.in(), cache, *options) : layer.step(x.in(), cache);
            copy_into(y, target, "out");
          },
          "x"_a, "cache"_a, "options"_a.none(), "out"_a);
}

}  // namespace attend::python
