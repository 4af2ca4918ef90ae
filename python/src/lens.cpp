// The lens: statistics of rows, maps, top keys, zoom and cells of weights that are never stored.
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

using Number = std::int64_t;
using Place = std::pair<Number, Number>;  // batch, head
using Area = std::array<Number, 4>;       // first query, queries, first key, keys

// A result as an array that owns it.
nb::object given(Tensor tensor) {
  auto* kept = new Tensor(std::move(tensor));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  return array_of(*kept, owner);
}
nb::object given(std::vector<Number> numbers) {
  auto* kept = new std::vector<Number>(std::move(numbers));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Number>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, Number>(kept->data(), {kept->size()}, owner));
}

LensHead head_of(const Place& place) {
  return {place.first, place.second};
}
LensArea area_of(const Area& area) {
  return {area[0], area[1], area[2], area[3]};
}

template <class F>
auto without_gil(F&& f) {
  const EngineCall call;
  return f();
}

nb::dict cell_of(const CellArithmetic& cell) {
  nb::dict result;
  result["q"] = cell.q;
  result["k"] = cell.k;
  result["products"] = cell.products;
  result["dot"] = cell.dot;
  result["scale"] = cell.scale;
  result["scaled"] = cell.scaled;
  result["softcap"] = cell.softcap;
  result["capped"] = cell.capped;
  result["bias"] = cell.bias;
  result["alibi_slope"] = cell.alibi_slope;
  result["alibi_distance"] = cell.alibi_distance;
  result["alibi"] = cell.alibi;
  result["score"] = cell.score;
  result["visible"] = cell.visible;
  result["lse"] = cell.lse;
  result["sink"] = cell.sink ? nb::cast(*cell.sink) : nb::none();
  result["sink_weight"] = cell.sink_weight;
  result["weight"] = cell.weight;
  result["v"] = cell.v;
  result["weighted"] = cell.weighted;
  return result;
}

// progress(first_row, mass, peak) -> whether to go on.
MapProgress progress_of(nb::handle called) {
  if (called.is_none()) return {};
  return [called](const MapBand& band) {
    const GilAcquire acquire;
    const auto copied = [&](const float* cells) {
      Tensor copy(DType::f32, {1, 1, band.rows, band.cols});
      std::copy_n(cells, band.rows * band.cols, copy.data<float>());
      return given(std::move(copy));
    };
    return nb::cast<bool>(nb::bool_(called(band.first_row, copied(band.mass), copied(band.peak))));
  };
}

}  // namespace

void bind_lens(nb::module_& m) {
  nb::class_<RowStatisticsOptions>(m, "RowStatisticsOptions")
      .def(
          "__init__",
          [](RowStatisticsOptions* self, Number sink_tokens, bool sinks_apart, Number local_width, Number recent_width,
             const Diagonal& diagonal, std::vector<std::int32_t> tokens) {
            new (self)
                RowStatisticsOptions{sink_tokens, sinks_apart, local_width, recent_width, diagonal, std::move(tokens)};
          },
          "sink_tokens"_a, "sinks_apart"_a, "local_width"_a, "recent_width"_a, "diagonal"_a, "tokens"_a);
  nb::class_<Lens>(m, "Lens")
      .def(
          "__init__",
          [](Lens* self, const ArrayView& q, const ArrayView& k, const AttentionOptions& options,
             const std::optional<ArrayView>& lse,
             const std::optional<ArrayView>& v) { new (self) Lens(q.in(), k.in(), options, {in(lse), in(v)}); },
          "q"_a, "k"_a, "options"_a, "lse"_a.none(), "v"_a.none())
      .def_prop_ro("shape",
                   [](const Lens& lens) {
                     return std::array<Number, 4>{lens.batches(), lens.heads(), lens.queries(), lens.keys()};
                   })
      .def(
          "statistics",
          [](const Lens& lens, const RowStatisticsOptions& options) {
            return given(without_gil([&] { return lens.statistics(options); }));
          },
          "options"_a)
      .def("lse",
           [](const Lens& lens) {
             const View lse = without_gil([&] { return lens.lse(); });
             Tensor copy(lse.dtype, lse.shape);
             const auto& [B, H, M, one] = lse.shape;
             for (Number row = 0; row < copy.size(); ++row) {
               const Number at = row / M / H * lse.strides[0] + row / M % H * lse.strides[1] + row % M * lse.strides[2];
               if (lse.dtype == DType::f64)
                 copy.data<double>()[row] = static_cast<const double*>(lse.data)[at];
               else
                 copy.data<float>()[row] = static_cast<const float*>(lse.data)[at];
             }
             return given(std::move(copy));
           })
      .def(
          "map",
          [](const Lens& lens, const Place& head, const Area& area, Number rows, Number cols, nb::object progress) {
            const MapOptions options{area_of(area), rows, cols, progress_of(progress)};
            PooledMap map = without_gil([&] { return lens.map(head_of(head), options); });
            return nb::make_tuple(given(std::move(map.mass)), given(std::move(map.peak)), map.finished);
          },
          "head"_a, "area"_a, "rows"_a, "cols"_a, "progress"_a.none())
      .def(
          "received",
          [](const Lens& lens, const Place& head, const Area& area) {
            return given(without_gil([&] { return lens.received(head_of(head), area_of(area)); }));
          },
          "head"_a, "area"_a)
      .def(
          "zoom",
          [](const Lens& lens, const Place& head, const Area& area) {
            return given(without_gil([&] { return lens.zoom(head_of(head), area_of(area)); }));
          },
          "head"_a, "area"_a)
      .def(
          "top_keys",
          [](const Lens& lens, const Place& head, Number count, const Area& area) {
            TopKeys top = without_gil([&] { return lens.top_keys(head_of(head), count, area_of(area)); });
            return nb::make_tuple(given(std::move(top.keys)), given(std::move(top.weights)));
          },
          "head"_a, "count"_a, "area"_a)
      .def(
          "histogram",
          [](const Lens& lens, const Place& head, Number bins, const Area& area) {
            WeightHistogram histogram = without_gil([&] { return lens.histogram(head_of(head), bins, area_of(area)); });
            return nb::make_tuple(given(std::move(histogram.counts)), histogram.below);
          },
          "head"_a, "bins"_a, "area"_a)
      .def(
          "cell",
          [](const Lens& lens, const Place& head, Number query, Number key) {
            return cell_of(without_gil([&] { return lens.cell(head_of(head), query, key); }));
          },
          "head"_a, "query"_a, "key"_a);
}

}  // namespace attend::python
