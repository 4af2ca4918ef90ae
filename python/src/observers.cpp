// Observers: sums over the weights of a row, and the weights tile by tile, through functions in Python.
#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A copy of the tile, which the function may keep: the engine's memory is gone after the call.
nb::object copied(const ScoreTile<const float>& tile) {
  const auto rows = static_cast<std::size_t>(tile.rows), cols = static_cast<std::size_t>(tile.cols);
  auto* copy = new float[rows * cols];
  const nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  for (std::int64_t r = 0; r < tile.rows; ++r)
    std::copy_n(tile.data + r * tile.row_stride, tile.cols, copy + r * tile.cols);
  return nb::cast(nb::ndarray<nb::numpy, float>(copy, {rows, cols}, owner));
}

}  // namespace

RowSums row_sums_of(const MutableView& sums, nb::handle values) {
  // By handle: the function is copied where there is no GIL, and the caller keeps the object alive.
  return {sums, [values](std::int64_t n, ScoreTile<float> tile) {
            const GilAcquire acquire;
            const nb::object made =
                values(n, tile.batch, tile.head, tile.first_row, tile.first_col, tile.rows, tile.cols);
            const auto floats = nb::cast<Floats>(made);
            if (floats.shape(0) != static_cast<std::size_t>(tile.rows) ||
                floats.shape(1) != static_cast<std::size_t>(tile.cols))
              throw InvalidArgument("values returned [" + std::to_string(floats.shape(0)) + ", " +
                                    std::to_string(floats.shape(1)) + "], expected [" + std::to_string(tile.rows) +
                                    ", " + std::to_string(tile.cols) + "]");
            for (std::int64_t r = 0; r < tile.rows; ++r)
              std::copy_n(floats.data() + r * tile.cols, tile.cols, tile.data + r * tile.row_stride);
          }};
}

void bind_observers(nb::module_& m) {
  m.def(
      "attention_row_sums",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& v, const ArrayView& out_array,
         const AttentionOptions& options, const std::optional<ArrayView>& lse, const ArrayView& sums,
         nb::object values) {
        const AttentionExtras extras{.lse = out("lse", lse), .row_sums = row_sums_of(sums.out("sums"), values)};
        const MutableView result = out_array.out("out");
        const EngineCall call;
        attention(q.in(), k.in(), v.in(), result, options, extras);
      },
      "q"_a, "k"_a, "v"_a, "out"_a, "options"_a, "lse"_a.none(), "sums"_a, "values"_a);

  m.def(
      "visit_weights",
      [](const ArrayView& q, const ArrayView& k, const ArrayView& lse, nb::object visitor,
         const AttentionOptions& options) {
        const nb::handle called = visitor;
        const auto show = [called](ScoreTile<const float> tile) {
          const GilAcquire acquire;
          called(tile.batch, tile.head, tile.first_row, tile.first_col, copied(tile));
        };
        const EngineCall call;
        visit_weights(q.in(), k.in(), lse.in(), show, options);
      },
      "q"_a, "k"_a, "lse"_a, "visitor"_a, "options"_a);
}

}  // namespace attend::python
