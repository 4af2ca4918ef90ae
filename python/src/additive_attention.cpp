// Additive attention and Luong's scores over described arrays, with the GIL released.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

Alignment alignment_named(const std::string& score) {
  if (score == "dot") return Alignment::dot;
  if (score == "general") return Alignment::general;
  if (score == "concat") return Alignment::concat;
  throw InvalidArgument("score is \"" + score + "\", expected \"dot\", \"general\" or \"concat\"");
}

}  // namespace

void bind_additive_attention(nb::module_& m) {
  m.def(
      "additive_attention",
      [](const ArrayView& a, const ArrayView& b, const ArrayView& w, const ArrayView& v, const ArrayView& out_array,
         const Mask& mask, double scale, const std::optional<ArrayView>& lse) {
        const MutableView result = out_array.out("out");
        const std::optional<MutableView> lse_view = out("lse", lse);
        const EngineCall call;
        additive_attention(a.in(), b.in(), w.in(), v.in(), result, {mask, scale}, lse_view);
      },
      "a"_a, "b"_a, "w"_a, "v"_a, "out"_a, "mask"_a, "scale"_a, "lse"_a.none());
  m.def(
      "additive_attention_backward",
      [](const ArrayView& dout, const ArrayView& a, const ArrayView& b, const ArrayView& w, const ArrayView& v,
         const ArrayView& out_array, const ArrayView& lse, const ArrayView& da, const ArrayView& db,
         const ArrayView& dw, const ArrayView& dv, const Mask& mask, double scale) {
        const AdditiveAttentionGradients gradients{da.out("da"), db.out("db"), dw.out("dw"), dv.out("dv")};
        const EngineCall call;
        additive_attention_backward(dout.in(), a.in(), b.in(), w.in(), v.in(), out_array.in(), lse.in(), gradients,
                                    {mask, scale});
      },
      "dout"_a, "a"_a, "b"_a, "w"_a, "v"_a, "out"_a, "lse"_a, "da"_a, "db"_a, "dw"_a, "dv"_a, "mask"_a, "scale"_a);
  m.def(
      "aligned_attention",
      [](const std::string& score, const ArrayView& q, const ArrayView& k, const ArrayView& v,
         const std::optional<ArrayView>& wq, const std::optional<ArrayView>& wk, const std::optional<ArrayView>& w,
         const ArrayView& out_array, const Mask& mask, double scale, const std::optional<ArrayView>& lse) {
        const Alignment alignment = alignment_named(score);
        const MutableView result = out_array.out("out");
        const std::optional<MutableView> lse_view = out("lse", lse);
        const EngineCall call;
        aligned_attention(alignment, q.in(), k.in(), v.in(), {in(wq), in(wk), in(w)}, result, {mask, scale}, lse_view);
      },
      "score"_a, "q"_a, "k"_a, "v"_a, "wq"_a.none(), "wk"_a.none(), "w"_a.none(), "out"_a, "mask"_a, "scale"_a,
      "lse"_a.none());
  m.def(
      "aligned_attention_backward",
      [](const std::string& score, const ArrayView& dout, const ArrayView& q, const ArrayView& k, const ArrayView& v,
         const std::optional<ArrayView>& wq, const std::optional<ArrayView>& wk, const std::optional<ArrayView>& w,
         const ArrayView& out_array, const ArrayView& lse, const ArrayView& dq, const ArrayView& dk,
         const ArrayView& dv, const std::optional<ArrayView>& dwq, const std::optional<ArrayView>& dwk,
         const std::optional<ArrayView>& dw, const Mask& mask, double scale) {
        const Alignment alignment = alignment_named(score);
        const AlignmentGradients gradients{dq.out("dq"),    dk.out("dk"),    dv.out("dv"),
                                           out("dwq", dwq), out("dwk", dwk), out("dw", dw)};
        const EngineCall call;
        aligned_attention_backward(alignment, dout.in(), q.in(), k.in(), v.in(), {in(wq), in(wk), in(w)},
                                   out_array.in(), lse.in(), gradients, {mask, scale});
      },
      "score"_a, "dout"_a, "q"_a, "k"_a, "v"_a, "wq"_a.none(), "wk"_a.none(), "w"_a.none(), "out"_a, "lse"_a, "dq"_a,
      "dk"_a, "dv"_a, "dwq"_a.none(), "dwk"_a.none(), "dw"_a.none(), "mask"_a, "scale"_a);
  m.def(
      "additive_attention_inner",
      [](const std::string& dtype, std::int64_t heads, std::int64_t head_dim, const Mask& mask, double scale) {
        return additive_attention_inner({dtype_named(dtype), heads, head_dim, {mask, scale}});
      },
      "dtype"_a, "heads"_a, "head_dim"_a, "mask"_a, "scale"_a);
}

}  // namespace attend::python
