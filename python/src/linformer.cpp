// linformer over described arrays, with the GIL released.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {

void bind_linformer(nb::module_& m) {
  m.def(
      "linformer",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& e,
         const std::optional<ArrayView>& f, const ArrayView& out_array, const Mask& mask, std::optional<double> scale,
         const std::optional<ArrayView>& lse, const std::optional<ArrayView>& keys,
         const std::optional<ArrayView>& values) {
        const MutableView result = out_array.out("out");
        const LinformerExtras extras{out("lse", lse), out("keys", keys), out("values", values)};
        const EngineCall call;
        linformer(q.in(), k.in(), v.in(), e.in(), in(f), result, {mask, scale}, extras);
      },
      "q"_a, "k"_a, "v"_a, "e"_a, "f"_a.none(), "out"_a, "mask"_a, "scale"_a.none(), "lse"_a.none(), "keys"_a.none(),
      "values"_a.none());
  m.def(
      "linformer_backward",
      [](const ArrayView& dout, const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& e,
         const std::optional<ArrayView>& f, const ArrayView& out_array, const ArrayView& lse,
         const std::optional<ArrayView>& keys, const std::optional<ArrayView>& values, const ArrayView& dq,
         const ArrayView& dk, const ArrayView& dv, const ArrayView& de, const std::optional<ArrayView>& df,
         const Mask& mask, std::optional<double> scale) {
        const LinformerGradients gradients{dq.out("dq"), dk.out("dk"), dv.out("dv"), de.out("de"), out("df", df)};
        const EngineCall call;
        linformer_backward(dout.in(), q.in(), k.in(), v.in(), e.in(), in(f), out_array.in(), lse.in(), gradients,
                           {mask, scale}, {in(keys), in(values)});
      },
      "dout"_a, "q"_a, "k"_a, "v"_a, "e"_a, "f"_a.none(), "out"_a, "lse"_a, "keys"_a.none(), "values"_a.none(), "dq"_a,
      "dk"_a, "dv"_a, "de"_a, "df"_a.none(), "mask"_a, "scale"_a.none());
  m.def(
      "linformer_inner",
      [](const std::string& dtype, std::int64_t length, std::int64_t rank, std::int64_t kv_heads, bool shared,
         std::uint64_t seed) { return linformer_inner({dtype_named(dtype), length, rank, kv_heads, shared, seed}); },
      "dtype"_a, "length"_a, "rank"_a, "kv_heads"_a, "shared"_a, "seed"_a);
}

}  // namespace attend::python
