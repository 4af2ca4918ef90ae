// The building blocks of a model over described arrays: norms, activations, sums, dropout, embedding, cross-entropy.
#include <span>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

Activation activation_named(const std::string& kind) {
  if (kind == "silu") return Activation::silu;
  if (kind == "gelu") return Activation::gelu;
  if (kind == "gelu_tanh") return Activation::gelu_tanh;
  if (kind == "relu") return Activation::relu;
  throw InvalidArgument("kind is \"" + kind + "\", expected \"silu\", \"gelu\", \"gelu_tanh\" or \"relu\"");
}

// Whole numbers that the Python side keeps alive, one after the other.
struct Integers {
  std::uintptr_t address;
  std::int64_t count;

  std::span<const std::int64_t> span() const {
    return {reinterpret_cast<const std::int64_t*>(address), static_cast<std::size_t>(count)};
  }
};

void bind_norms(nb::module_& m) {
  m.def(
      "rms_norm",
      [](const ArrayView& x, const ArrayView& weight, const ArrayView& y, double eps) {
        const MutableView result = y.out("out");
        const EngineCall call;
        rms_norm(x.in(), weight.in(), result, eps);
      },
      "x"_a, "weight"_a, "y"_a, "eps"_a);
  m.def(
      "rms_norm_backward",
      [](const ArrayView& dy, const ArrayView& x, const ArrayView& weight, const ArrayView& dx,
         const ArrayView& dweight, double eps) {
        const MutableView to = dx.out("dx"), to_weight = dweight.out("dweight");
        const EngineCall call;
        rms_norm_backward(dy.in(), x.in(), weight.in(), to, to_weight, eps);
      },
      "dy"_a, "x"_a, "weight"_a, "dx"_a, "dweight"_a, "eps"_a);
  m.def(
      "layer_norm",
      [](const ArrayView& x, const ArrayView& weight, const std::optional<ArrayView>& bias, const ArrayView& y,
         double eps) {
        const MutableView result = y.out("out");
        const EngineCall call;
        layer_norm(x.in(), weight.in(), in(bias), result, eps);
      },
      "x"_a, "weight"_a, "bias"_a.none(), "y"_a, "eps"_a);
  m.def(
      "layer_norm_backward",
      [](const ArrayView& dy, const ArrayView& x, const ArrayView& weight, const ArrayView& dx,
         const ArrayView& dweight, const ArrayView& dbias, double eps) {
        const LayerNormGradients to{dx.out("dx"), dweight.out("dweight"), dbias.out("dbias")};
        const EngineCall call;
        layer_norm_backward(dy.in(), x.in(), weight.in(), to, eps);
      },
      "dy"_a, "x"_a, "weight"_a, "dx"_a, "dweight"_a, "dbias"_a, "eps"_a);
}

void bind_elementwise(nb::module_& m) {
  m.def(
      "activation",
      [](const std::string& kind, const ArrayView& x, const std::optional<ArrayView>& up, const ArrayView& y) {
        const Activation act = activation_named(kind);
        const MutableView result = y.out("out");
        const EngineCall call;
        if (up)
          gated_activation(act, x.in(), up->in(), result);
        else
          activation(act, x.in(), result);
      },
      "kind"_a, "x"_a, "up"_a.none(), "y"_a);
  m.def(
      "activation_backward",
      [](const std::string& kind, const ArrayView& dy, const ArrayView& x, const std::optional<ArrayView>& up,
         const ArrayView& dx, const std::optional<ArrayView>& dup) {
        const Activation act = activation_named(kind);
        const MutableView to = dx.out("dx");
        const std::optional<MutableView> to_up = out("dup", dup);
        const EngineCall call;
        if (up && to_up)
          gated_activation_backward(act, dy.in(), x.in(), up->in(), to, *to_up);
        else
          activation_backward(act, dy.in(), x.in(), to);
      },
      "kind"_a, "dy"_a, "x"_a, "up"_a.none(), "dx"_a, "dup"_a.none());
  m.def(
      "add",
      [](const ArrayView& x, const ArrayView& y, const ArrayView& z) {
        const MutableView result = z.out("out");
        const EngineCall call;
        add(x.in(), y.in(), result);
      },
      "x"_a, "y"_a, "z"_a);
  m.def(
      "dropout",
      [](const ArrayView& x, const ArrayView& y, double probability, std::uint64_t seed) {
        const MutableView result = y.out("out");
        const EngineCall call;
        dropout(x.in(), result, {probability, seed});
      },
      "x"_a, "y"_a, "probability"_a, "seed"_a);
}

void bind_tokens(nb::module_& m) {
  nb::class_<Integers>(m, "Integers", "Whole numbers in memory that stays the caller's: int64, one after the other.")
      .def(nb::init<std::uintptr_t, std::int64_t>(), "address"_a, "count"_a);
  m.def(
      "embedding",
      [](const ArrayView& table, const Integers& tokens, const ArrayView& y) {
        const MutableView result = y.out("out");
        const EngineCall call;
        embedding(table.in(), tokens.span(), result);
      },
      "table"_a, "tokens"_a, "y"_a);
  m.def(
      "embedding_backward",
      [](const ArrayView& dy, const Integers& tokens, const ArrayView& dtable) {
        const MutableView result = dtable.out("dtable");
        const EngineCall call;
        embedding_backward(dy.in(), tokens.span(), result);
      },
      "dy"_a, "tokens"_a, "dtable"_a);
  m.def(
      "cross_entropy",
      [](const ArrayView& hidden, const ArrayView& weight, const Integers& targets, const ArrayView& loss,
         std::int64_t ignore_index) {
        const MutableView result = loss.out("loss");
        const EngineCall call;
        cross_entropy(hidden.in(), weight.in(), targets.span(), result, {ignore_index});
      },
      "hidden"_a, "weight"_a, "targets"_a, "loss"_a, "ignore_index"_a);
  m.def(
      "cross_entropy_backward",
      [](const ArrayView& dloss, const ArrayView& hidden, const ArrayView& weight, const Integers& targets,
         const ArrayView& dhidden, const ArrayView& dweight, const ArrayView& loss, std::int64_t ignore_index) {
        const CrossEntropyGradients to{dhidden.out("dhidden"), dweight.out("dweight"), loss.out("loss")};
        const EngineCall call;
        cross_entropy_backward(dloss.in(), hidden.in(), weight.in(), targets.span(), to, {ignore_index});
      },
      "dloss"_a, "hidden"_a, "weight"_a, "targets"_a, "dhidden"_a, "dweight"_a, "loss"_a, "ignore_index"_a);
}

}  // namespace

void bind_blocks(nb::module_& m) {
  bind_norms(m);
  bind_elementwise(m);
  bind_tokens(m);
}

}  // namespace attend::python
