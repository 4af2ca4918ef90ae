// RoPE's scaling, sinusoids, learned positions, ALiBi's slopes and T5's bias over described arrays.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

RopeScaling::Kind scaling_kind(const std::string& kind) {
  if (kind == "linear") return RopeScaling::Kind::linear;
  if (kind == "llama3") return RopeScaling::Kind::llama3;
  if (kind == "yarn") return RopeScaling::Kind::yarn;
  throw InvalidArgument("kind is \"" + kind + "\", expected \"linear\", \"llama3\" or \"yarn\"");
}

}  // namespace

void bind_positions(nb::module_& m) {
  nb::class_<RopeScaling>(m, "RopeScaling", "How RoPE is stretched to longer sequences.")
      .def(
          "__init__",
          [](RopeScaling* self, const std::string& kind, double factor, std::int64_t original_length,
             double low_frequency, double high_frequency, double beta_fast, double beta_slow, bool truncate,
             std::optional<double> attention_factor, double mscale, double mscale_all_dim) {
            new (self)
                RopeScaling{scaling_kind(kind), factor,   original_length,  low_frequency, high_frequency, beta_fast,
                            beta_slow,          truncate, attention_factor, mscale,        mscale_all_dim};
            rope_frequencies(2, 1e4, *self);  // says now what makes no sense
          },
          "kind"_a, "factor"_a, "original_length"_a, "low_frequency"_a, "high_frequency"_a, "beta_fast"_a,
          "beta_slow"_a, "truncate"_a, "attention_factor"_a.none(), "mscale"_a, "mscale_all_dim"_a);
  m.def(
      "rope_frequencies",
      [](std::int64_t rotary_dim, double theta, const std::optional<RopeScaling>& scaling) {
        const RopeFrequencies frequencies = rope_frequencies(rotary_dim, theta, scaling.value_or(RopeScaling{}));
        return std::pair(frequencies.per_position, frequencies.magnitude);
      },
      "rotary_dim"_a, "theta"_a, "scaling"_a.none());
  m.def(
      "sinusoidal",
      [](const ArrayView& out_array, double theta, std::vector<std::int64_t> positions, std::int64_t first_position) {
        const MutableView result = out_array.out("out");
        const EngineCall call;
        sinusoidal(result, {theta, std::move(positions), first_position});
      },
      "out"_a, "theta"_a, "positions"_a, "first_position"_a);
  m.def(
      "add_positions",
      [](const ArrayView& x, const ArrayView& table, const ArrayView& y, std::int64_t first_position) {
        const MutableView result = y.out("out");
        const EngineCall call;
        add_positions(x.in(), table.in(), result, first_position);
      },
      "x"_a, "table"_a, "y"_a, "first_position"_a);
  m.def(
      "add_positions_backward",
      [](const ArrayView& dy, const ArrayView& dtable, std::int64_t first_position) {
        const MutableView result = dtable.out("dtable");
        const EngineCall call;
        add_positions_backward(dy.in(), result, first_position);
      },
      "dy"_a, "dtable"_a, "first_position"_a);
  m.def(
      "alibi_slopes",
      [](std::int64_t heads) {
        const Tensor slopes = alibi_slopes(heads);
        return std::vector<float>(slopes.data<float>(), slopes.data<float>() + heads);
      },
      "heads"_a);
  m.def(
      "t5_bucket",
      [](std::int64_t distance, bool bidirectional, std::int64_t count, std::int64_t max_distance) {
        return t5_bucket(distance, {bidirectional, count, max_distance});
      },
      "distance"_a, "bidirectional"_a, "count"_a, "max_distance"_a);
  m.def(
      "t5_bias",
      [](const ArrayView& table, const ArrayView& out_array, std::int64_t first_distance, bool bidirectional,
         std::int64_t count, std::int64_t max_distance) {
        t5_bias(table.in(), out_array.out("out"), first_distance, {bidirectional, count, max_distance});
      },
      "table"_a, "out"_a, "first_distance"_a, "bidirectional"_a, "count"_a, "max_distance"_a);
  m.def(
      "t5_bias_backward",
      [](const ArrayView& dout, const ArrayView& dtable, std::int64_t first_distance, bool bidirectional,
         std::int64_t count, std::int64_t max_distance) {
        t5_bias_backward(dout.in(), dtable.out("dtable"), first_distance, {bidirectional, count, max_distance});
      },
      "dout"_a, "dtable"_a, "first_distance"_a, "bidirectional"_a, "count"_a, "max_distance"_a);
}

}  // namespace attend::python
