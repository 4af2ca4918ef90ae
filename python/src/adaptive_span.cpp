// adaptive_span over described arrays, with the GIL released.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {

void bind_adaptive_span(nb::module_& m) {
  // Options travel as one object, so that forward and backward cannot be given different ones by accident.
  nb::class_<AdaptiveSpanOptions>(m, "AdaptiveSpanOptions")
      .def(
          "__init__",
          [](AdaptiveSpanOptions* self, double ramp, double max_span, bool symmetric, const Diagonal& diagonal,
             const Mask& mask, std::optional<double> scale) {
            new (self) AdaptiveSpanOptions{ramp, max_span, symmetric, diagonal, mask, scale};
          },
          "ramp"_a, "max_span"_a, "symmetric"_a, "diagonal"_a, "mask"_a, "scale"_a.none());
  m.def(
      "adaptive_span",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& span, const ArrayView& out_array,
         const AdaptiveSpanOptions& options, const std::optional<ArrayView>& lse) {
        const MutableView result = out_array.out("out");
        const std::optional<MutableView> lse_view = out("lse", lse);
        const EngineCall call;
        adaptive_span(q.in(), k.in(), v.in(), span.in(), result, options, lse_view);
      },
      "q"_a, "k"_a, "v"_a, "span"_a, "out"_a, "options"_a, "lse"_a.none());
  m.def(
      "adaptive_span_backward",
      [](const ArrayView& dout, const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& span,
         const ArrayView& out_array, const ArrayView& lse, const ArrayView& dq, const ArrayView& dk,
         const ArrayView& dv, const ArrayView& dspan, const AdaptiveSpanOptions& options) {
        const AdaptiveSpanGradients gradients{dq.out("dq"), dk.out("dk"), dv.out("dv"), dspan.out("dspan")};
        const EngineCall call;
        adaptive_span_backward(dout.in(), q.in(), k.in(), v.in(), span.in(), out_array.in(), lse.in(), gradients,
                               options);
      },
      "dout"_a, "q"_a, "k"_a, "v"_a, "span"_a, "out"_a, "lse"_a, "dq"_a, "dk"_a, "dv"_a, "dspan"_a, "options"_a);
  m.def(
      "adaptive_span_penalty",
      [](const ArrayView& span, double loss_weight, const AdaptiveSpanOptions& options,
         const std::optional<ArrayView>& dspan) {
        return adaptive_span_penalty(span.in(), loss_weight, options, out("dspan", dspan));
      },
      "span"_a, "loss_weight"_a, "options"_a, "dspan"_a.none());
  m.def(
      "adaptive_span_inner",
      [](std::int64_t heads, double initial_span, const AdaptiveSpanOptions& options) {
        return adaptive_span_inner({heads, initial_span, options});
      },
      "heads"_a, "initial_span"_a, "options"_a);
}

}  // namespace attend::python
