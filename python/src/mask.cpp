// Masks: the factories of attend/mask.hpp.
#include <nanobind/stl/array.h>

#include "bindings.hpp"

namespace attend::python {
namespace {

using Ints = std::vector<std::int64_t>;

}  // namespace

void bind_mask(nb::module_& m) {
  nb::class_<Diagonal>(m, "Diagonal", "Where query 0 stands among the keys.")
      .def_static("first_key", [] { return Diagonal(Align::first_key); })
      .def_static("last_key", [] { return Diagonal(Align::last_key); })
      .def_static(
          "at", [](Ints offsets) { return Diagonal::at(std::move(offsets)); }, "offsets"_a)
      .def("__getstate__",
           [](const Diagonal& d) {
             return std::pair(d.align == Align::first_key, d.offsets ? std::optional(*d.offsets) : std::nullopt);
           })
      .def("__setstate__", [](Diagonal& d, const std::pair<bool, std::optional<Ints>>& state) {
        const auto& [first_key, offsets] = state;
        new (&d) Diagonal(offsets ? Diagonal::at(*offsets) : Diagonal(first_key ? Align::first_key : Align::last_key));
      });

  nb::class_<Mask>(m, "Mask", "Which keys a query may see. Masks compose with &.")
      .def("__and__", [](const Mask& a, const Mask& b) { return a & b; })
      .def_prop_ro("rules", [](const Mask& mask) { return mask.rules.size(); });

  m.def("no_mask", &no_mask);
  m.def("causal", &causal, "diagonal"_a);
  m.def(
      "window",
      [](std::int64_t left, std::int64_t right, const Diagonal& diagonal) { return window(left, right, diagonal); },
      "left"_a, "right"_a, "diagonal"_a);
  m.def("padding", &padding, "lengths"_a);
  m.def("left_padding", &left_padding, "counts"_a);
  m.def("prefix", &prefix, "lengths"_a, "diagonal"_a);
  m.def(
      "segments", [](Ints queries, Ints keys) { return segments(std::move(queries), std::move(keys)); },
      "cumulative_queries"_a, "cumulative_keys"_a);
  m.def(
      "blocks",
      [](std::int64_t block_queries, std::int64_t block_keys, std::int64_t heads, std::int64_t rows, std::int64_t cols,
         nb::bytes bits) {
        const auto* data = static_cast<const std::uint8_t*>(bits.data());
        return blocks(block_queries, block_keys, heads, rows, cols, {data, data + bits.size()});
      },
      "block_queries"_a, "block_keys"_a, "heads"_a, "rows"_a, "cols"_a, "bits"_a);
  // The array must outlive the mask: the Python wrapper keeps a reference to it.
  m.def(
      "dense",
      [](std::uintptr_t address, const FourNumbers& shape, const FourNumbers& strides) {
        return dense(reinterpret_cast<const std::uint8_t*>(address), shape_of(shape), strides_of(strides));
      },
      "address"_a, "shape"_a, "strides"_a);
}

}  // namespace attend::python
