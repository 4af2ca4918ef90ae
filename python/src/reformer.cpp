// reformer over described arrays, with the GIL released.
#include <cstring>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

// The caller's memory, written as int32: the hashes of a call.
void copy_hashes(const std::vector<std::int32_t>& hashes, std::uintptr_t address, std::int64_t count) {
  if (static_cast<std::int64_t>(hashes.size()) != count)
    throw InvalidArgument("there are " + std::to_string(hashes.size()) + " hashes, room for " + std::to_string(count));
  if (count > 0) std::memcpy(reinterpret_cast<void*>(address), hashes.data(), hashes.size() * sizeof(std::int32_t));
}

}  // namespace

void bind_reformer(nb::module_& m) {
  nb::class_<ReformerOptions>(m, "ReformerOptions")
      .def(
          "__init__",
          [](ReformerOptions* self, std::int64_t rounds, std::int64_t chunk, std::vector<std::int64_t> buckets,
             bool causal, std::uint64_t seed, std::optional<double> scale) {
            new (self) ReformerOptions{rounds, chunk, std::move(buckets), causal, seed, scale};
          },
          "rounds"_a, "chunk"_a, "buckets"_a, "causal"_a, "seed"_a, "scale"_a.none());
  m.def(
      "reformer",
      [](const ArrayView& q, const ArrayView& v, const ArrayView& out_array, const ReformerOptions& options,
         const std::optional<ArrayView>& lse) {
        const MutableView result = out_array.out("out");
        const std::optional<MutableView> lse_view = out("lse", lse);
        const EngineCall call;
        reformer(q.in(), v.in(), result, options, lse_view);
      },
      "q"_a, "v"_a, "out"_a, "options"_a, "lse"_a.none());
  m.def(
      "reformer_backward",
      [](const ArrayView& dout, const ArrayView& q, const ArrayView& v, const ArrayView& out_array,
         const ArrayView& lse, const ArrayView& dq, const ArrayView& dv, const ReformerOptions& options) {
        const ReformerGradients gradients{dq.out("dq"), dv.out("dv")};
        const EngineCall call;
        reformer_backward(dout.in(), q.in(), v.in(), out_array.in(), lse.in(), gradients, options);
      },
      "dout"_a, "q"_a, "v"_a, "out"_a, "lse"_a, "dq"_a, "dv"_a, "options"_a);
  m.def(
      "reformer_factors",
      [](std::int64_t length, const ReformerOptions& options) { return reformer_factors(length, options); }, "length"_a,
      "options"_a);
  m.def(
      "reformer_rotations",
      [](std::int64_t length, const ReformerOptions& options, const ArrayView& to) {
        const MutableView target = to.out("rotations");
        const Tensor rotations = reformer_rotations(target.heads(), length, target.dim(), options);
        if (target.dtype != DType::f32 || target.shape != rotations.shape() ||
            target.strides != contiguous_strides(target.shape))
          throw InvalidArgument("rotations must be contiguous, f32, [rounds, heads, factors / 2, dim]");
        std::memcpy(target.data, rotations.view().data, static_cast<std::size_t>(rotations.bytes()));
      },
      "length"_a, "options"_a, "rotations"_a);
  m.def(
      "reformer_hashes",
      [](const ArrayView& q, const ReformerOptions& options, std::uintptr_t address, std::int64_t count) {
        const EngineCall call;
        copy_hashes(reformer_hashes(q.in(), options), address, count);
      },
      "q"_a, "options"_a, "address"_a, "count"_a);
  m.def(
      "reformer_recall",
      [](const ArrayView& q, const ReformerOptions& options, std::int64_t samples) {
        const EngineCall call;
        return reformer_recall(q.in(), options, samples);
      },
      "q"_a, "options"_a, "samples"_a);
  m.def("reformer_inner", [](const ReformerOptions& options) { return reformer_inner(options); }, "options"_a);
}

}  // namespace attend::python
