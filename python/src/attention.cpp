// attention and attention_backward over described arrays, with the GIL released.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

AttentionOptions make_options(const Mask& mask, std::optional<double> scale, double softcap,
                              const std::optional<ArrayView>& bias, const std::optional<ArrayView>& alibi_slopes,
                              const Diagonal& alibi_diagonal, const std::optional<ArrayView>& sinks, double dropout,
                              std::uint64_t seed, const std::optional<ArrayView>& distance_bias) {
  AttentionOptions options;
  options.mask = mask;
  options.scale = scale;
  options.softcap = softcap;
  options.bias = in(bias);
  options.distance_bias = in(distance_bias);
  options.alibi_slopes = in(alibi_slopes);
  options.alibi_diagonal = alibi_diagonal;
  options.sinks = in(sinks);
  options.dropout = {dropout, seed};
  return options;
}

}  // namespace

void bind_attention(nb::module_& m) {
  // Options travel as one object, so that forward and backward cannot be given different ones by accident.
  nb::class_<AttentionOptions>(m, "Options")
      .def(
          "__init__",
          [](AttentionOptions* self, const Mask& mask, std::optional<double> scale, double softcap,
             const std::optional<ArrayView>& bias, const std::optional<ArrayView>& alibi_slopes,
             const Diagonal& alibi_diagonal, const std::optional<ArrayView>& sinks, double dropout, std::uint64_t seed,
             const std::optional<ArrayView>& distance_bias) {
            new (self) AttentionOptions(make_options(mask, scale, softcap, bias, alibi_slopes, alibi_diagonal, sinks,
                                                     dropout, seed, distance_bias));
          },
          "mask"_a, "scale"_a.none(), "softcap"_a, "bias"_a.none(), "alibi_slopes"_a.none(), "alibi_diagonal"_a,
          "sinks"_a.none(), "dropout"_a, "seed"_a, "distance_bias"_a = nb::none());

  m.def(
      "attention",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& out_array,
         const AttentionOptions& options, const std::optional<ArrayView>& lse,
         const std::optional<ArrayView>& weights) {
        const AttentionExtras extras{out("lse", lse), out("weights", weights)};
        const MutableView result = out_array.out("out");
        const EngineCall call;
        attention(q.in(), k.in(), v.in(), result, options, extras);
      },
      "q"_a, "k"_a, "v"_a, "out"_a, "options"_a, "lse"_a.none(), "weights"_a.none());

  m.def(
      "attention_backward",
      [](const ArrayView& dout, const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& out_array,
         const ArrayView& lse, const ArrayView& dq, const ArrayView& dk, const ArrayView& dv,
         const std::optional<ArrayView>& dbias, const std::optional<ArrayView>& dsinks,
         const AttentionOptions& options) {
        const AttentionGradients gradients{
            dq.out("dq"),          dk.out("dk"),
            dv.out("dv"),          out("dbias", options.bias ? dbias : std::nullopt),
            out("dsinks", dsinks), out("dbias", options.distance_bias ? dbias : std::nullopt)};
        const EngineCall call;
        attention_backward(dout.in(), q.in(), k.in(), v.in(), out_array.in(), lse.in(), gradients, options);
      },
      "dout"_a, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "dq"_a, "dk"_a, "dv"_a, "dbias"_a.none(), "dsinks"_a.none(),
      "options"_a);
}

}  // namespace attend::python
