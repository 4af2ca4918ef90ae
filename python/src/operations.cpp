// softmax and rope over described arrays.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

RopeOptions rope_options(bool interleaved, double theta, std::int64_t rotary_dim, std::vector<std::int64_t> positions,
                         std::int64_t first_position, const std::optional<RopeScaling>& scaling) {
  return {interleaved ? RopeStyle::interleaved : RopeStyle::half_split,
          theta,
          rotary_dim,
          std::move(positions),
          first_position,
          scaling.value_or(RopeScaling{})};
}

}  // namespace

void bind_operations(nb::module_& m) {
  m.def(
      "softmax",
      [](const ArrayView& x, const ArrayView& y) {
        const MutableView result = y.out("out");
        const EngineCall call;
        softmax(x.in(), result);
      },
      "x"_a, "y"_a);
  m.def(
      "softmax_backward",
      [](const ArrayView& dy, const ArrayView& y, const ArrayView& dx) {
        const MutableView result = dx.out("dx");
        const EngineCall call;
        softmax_backward(dy.in(), y.in(), result);
      },
      "dy"_a, "y"_a, "dx"_a);
  nb::class_<RopeTable>(m, "RopeTable", "Cosines and sines of some positions, made once.")
      .def(
          "__init__",
          [](RopeTable* self, std::int64_t dim, std::int64_t length, bool interleaved, double theta,
             std::int64_t rotary_dim, std::vector<std::int64_t> positions, std::int64_t first_position,
             const std::optional<RopeScaling>& scaling) {
            const RopeOptions options =
                rope_options(interleaved, theta, rotary_dim, std::move(positions), first_position, scaling);
            const EngineCall call;
            new (self) RopeTable(dim, length, options);
          },
          "dim"_a, "length"_a, "interleaved"_a, "theta"_a, "rotary_dim"_a, "positions"_a, "first_position"_a,
          "scaling"_a.none())
      .def_prop_ro("length", &RopeTable::length)
      .def_prop_ro("rotary_dim", [](const RopeTable& table) { return 2 * table.pairs(); });
  m.def(
      "rope_by_table",
      [](const ArrayView& x, const ArrayView& y, bool backward, const RopeTable& table, std::int64_t first) {
        const MutableView result = y.out("out");
        const EngineCall call;
        if (backward)
          rope_backward(x.in(), result, table, first);
        else
          rope(x.in(), result, table, first);
      },
      "x"_a, "y"_a, "backward"_a, "table"_a, "first"_a);
  m.def(
      "rope",
      [](const ArrayView& x, const ArrayView& y, bool backward, bool interleaved, double theta, std::int64_t rotary_dim,
         std::vector<std::int64_t> positions, std::int64_t first_position, const std::optional<RopeScaling>& scaling) {
        const MutableView result = y.out("out");
        const RopeOptions options =
            rope_options(interleaved, theta, rotary_dim, std::move(positions), first_position, scaling);
        const EngineCall call;
        if (backward)
          rope_backward(x.in(), result, options);
        else
          rope(x.in(), result, options);
      },
      "x"_a, "y"_a, "backward"_a, "interleaved"_a, "theta"_a, "rotary_dim"_a, "positions"_a, "first_position"_a,
      "scaling"_a.none());
}

}  // namespace attend::python
