// linear_attention, its gradients and its step over described arrays.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

FeatureMap map_named(const std::string& text) {
  if (text == "elu+1") return FeatureMap::Kind::elu_plus_one;
  if (text == "relu") return FeatureMap::Kind::relu;
  if (text == "identity") return FeatureMap::Kind::identity;
  throw nb::value_error(("feature_map is " + text + ", expected \"elu+1\", \"relu\" or \"identity\"").c_str());
}

}  // namespace

void bind_linear_attention(nb::module_& m) {
  nb::class_<LinearAttentionOptions>(m, "LinearAttentionOptions")
      .def(
          "__init__",
          [](LinearAttentionOptions* self, const std::string& feature_map, bool causal, bool normalise, double scale,
             double eps, const std::optional<ArrayView>& log_decay, const std::optional<ArrayView>& beta,
             std::vector<std::int64_t> lengths, const std::optional<ArrayView>& initial_state) {
            new (self) LinearAttentionOptions{
                map_named(feature_map), causal,           normalise, scale, eps, in(log_decay), in(beta),
                std::move(lengths),     in(initial_state)};
          },
          "feature_map"_a, "causal"_a, "normalise"_a, "scale"_a, "eps"_a, "log_decay"_a.none(), "beta"_a.none(),
          "lengths"_a, "initial_state"_a.none());

  m.def(
      "linear_state_shape",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const LinearAttentionOptions& options) {
        const Shape shape = linear_state_shape(q.in(), k.in(), v.in(), options);
        return std::vector<std::int64_t>(shape.begin(), shape.end());
      },
      "q"_a, "k"_a, "v"_a, "options"_a);
  m.def(
      "linear_attention",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& out_array,
         const LinearAttentionOptions& options, const std::optional<ArrayView>& final_state) {
        const MutableView result = out_array.out("out");
        const std::optional<MutableView> state = out("final_state", final_state);
        const EngineCall call;
        linear_attention(q.in(), k.in(), v.in(), result, options, state);
      },
      "q"_a, "k"_a, "v"_a, "out"_a, "options"_a, "final_state"_a.none());
  m.def(
      "linear_attention_backward",
      [](const ArrayView& dout, const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& dq,
         const ArrayView& dk, const ArrayView& dv, const std::optional<ArrayView>& dlog_decay,
         const std::optional<ArrayView>& dbeta, const std::optional<ArrayView>& dinitial_state,
         const LinearAttentionOptions& options, const std::optional<ArrayView>& dfinal_state,
         const std::optional<ArrayView>& final_state) {
        const LinearAttentionGradients gradients{dq.out("dq"),        dk.out("dk"),
                                                 dv.out("dv"),        out("dlog_decay", dlog_decay),
                                                 out("dbeta", dbeta), out("dinitial_state", dinitial_state)};
        const std::optional<View> dfinal = in(dfinal_state), last = in(final_state);
        const EngineCall call;
        linear_attention_backward(dout.in(), q.in(), k.in(), v.in(), gradients, options, dfinal, last);
      },
      "dout"_a, "q"_a, "k"_a, "v"_a, "dq"_a, "dk"_a, "dv"_a, "dlog_decay"_a.none(), "dbeta"_a.none(),
      "dinitial_state"_a.none(), "options"_a, "dfinal_state"_a.none(), "final_state"_a.none());
  m.def(
      "linear_attention_step",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& out_array, const ArrayView& state,
         const LinearAttentionOptions& options) {
        const MutableView result = out_array.out("out"), held = state.out("state");
        const EngineCall call;
        linear_attention_step(q.in(), k.in(), v.in(), result, held, options);
      },
      "q"_a, "k"_a, "v"_a, "out"_a, "state"_a, "options"_a);
  m.def(
      "linear_attention_inner", [](const LinearAttentionOptions& options) { return linear_attention_inner(options); },
      "options"_a);
}

}  // namespace attend::python
