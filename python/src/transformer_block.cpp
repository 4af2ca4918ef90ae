// TransformerBlock and its gradients.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

FeedForward feed_forward_named(const std::string& kind) {
  if (kind == "swiglu") return FeedForward::swiglu;
  if (kind == "gelu") return FeedForward::gelu;
  if (kind == "relu") return FeedForward::relu;
  throw InvalidArgument("feed_forward is \"" + kind + "\", expected \"swiglu\", \"gelu\" or \"relu\"");
}

nb::dict all_arrays(TransformerBlockParameters& own, MultiHeadAttentionParameters& attention, nb::handle owner) {
  nb::dict result = arrays_of(attention, owner);
  const std::pair<const char*, Tensor*> named[] = {
      {"norm1", &own.norm1}, {"norm2", &own.norm2}, {"gate", &own.gate}, {"up", &own.up}, {"down", &own.down}};
  for (const auto& [name, tensor] : named)
    if (!tensor->empty()) result[name] = array_of(*tensor, owner);
  return result;
}

}  // namespace

void bind_transformer_block(nb::module_& m) {
  const auto member = [](Tensor TransformerBlockGradients::* tensor) {
    return [tensor](nb::handle self) { return array_of(nb::cast<TransformerBlockGradients&>(self).*tensor, self); };
  };
  nb::class_<TransformerBlockGradients>(m, "BlockGradients")
      .def_prop_ro("dx", member(&TransformerBlockGradients::dx))
      .def_prop_ro("dbias", member(&TransformerBlockGradients::dbias))
      .def_prop_ro("dsinks", member(&TransformerBlockGradients::dsinks))
      .def_prop_ro("parameters", [](nb::handle self) {
        auto& gradients = nb::cast<TransformerBlockGradients&>(self);
        return all_arrays(gradients.parameters, gradients.attention, self);
      });
  nb::class_<TransformerBlock>(m, "TransformerBlock")
      .def(
          "__init__",
          [](TransformerBlock* self, const MultiHeadAttention& layer, const std::string& feed_forward,
             std::int64_t hidden, double norm_eps) {
            TransformerBlockConfig config;
            config.attention = layer.config();
            config.feed_forward = feed_forward_named(feed_forward);
            config.hidden = hidden;
            config.norm_eps = norm_eps;
            new (self) TransformerBlock(config);
          },
          "layer"_a, "feed_forward"_a, "hidden"_a, "norm_eps"_a)
      .def("initialise", &TransformerBlock::initialise, "seed"_a)
      .def_prop_ro("parameter_count", &TransformerBlock::parameter_count)
      .def_prop_ro("parameters",
                   [](nb::handle self) {
                     auto& block = nb::cast<TransformerBlock&>(self);
                     return all_arrays(block.parameters(), block.attention().parameters(), self);
                   })
      .def(
          "forward",
          [](const TransformerBlock& layer, const ArrayView& x, const AttentionOptions& options, std::int64_t block,
             const ArrayView& result) {
            const MutableView target = result.out("out");
            const EngineCall call;
            copy_into(layer.forward(x.in(), options, {block}), target, "out");
          },
          "x"_a, "options"_a, "block"_a, "out"_a)
      .def(
          "backward",
          [](const TransformerBlock& layer, const ArrayView& dout, const ArrayView& x, const AttentionOptions& options,
             std::int64_t block) {
            const EngineCall call;
            return layer.backward(dout.in(), x.in(), options, {block});
          },
          "dout"_a, "x"_a, "options"_a, "block"_a);
}

}  // namespace attend::python
