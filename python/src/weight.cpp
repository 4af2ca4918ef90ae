// Weights of projections in the formats of model files, and projections with them.
#include <cstddef>
#include <span>

#include "bindings.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

WeightFormat format_named(const std::string& text) {
  std::string all;
  for (int n = 0; n <= static_cast<int>(WeightFormat::q6_k); ++n) {
    const auto format = static_cast<WeightFormat>(n);
    if (text == name(format)) return format;
    if (!all.empty()) all += ", ";
    all += name(format);
  }
  throw InvalidArgument("format is \"" + text + "\", expected one of " + all);
}

}  // namespace

void bind_weight(nb::module_& m) {
  nb::class_<Weight>(m, "Weight", "A matrix [out, in] in the format of its file.")
      .def(
          "__init__",
          [](Weight* self, const std::string& format, std::int64_t out, std::int64_t in, std::uintptr_t address,
             std::int64_t bytes) {
            const WeightFormat of = format_named(format);
            const std::span data(reinterpret_cast<const std::byte*>(address), static_cast<std::size_t>(bytes));
            const EngineCall call;
            new (self) Weight(of, out, in, data);
          },
          "format"_a, "out"_a, "in_"_a, "address"_a, "bytes"_a)
      .def_prop_ro("format", [](const Weight& w) { return name(w.format()); })
      .def_prop_ro("shape", [](const Weight& w) { return std::pair(w.out(), w.in()); })
      .def_prop_ro("bytes", &Weight::bytes)
      .def(
          "row",
          [](const Weight& w, std::int64_t r, const ArrayView& y) {
            const MutableView row = y.out("y");
            if (row.dtype != DType::f32 || row.shape != Shape{1, 1, 1, w.in()})
              throw InvalidArgument("y is not a row of " + std::to_string(w.in()) + " floats");
            w.row(r, static_cast<float*>(row.data));
          },
          "r"_a, "y"_a);

  m.def(
      "weight_bytes",
      [](const std::string& format, std::int64_t out, std::int64_t in) {
        return weight_bytes(format_named(format), out, in);
      },
      "format"_a, "out"_a, "in_"_a);
  m.def(
      "weight_block",
      [](const std::string& format) {
        const WeightBlock block = block_of(format_named(format));
        return std::pair(block.numbers, block.bytes);
      },
      "format"_a);
  m.def(
      "project",
      [](const ArrayView& x, const std::vector<const Weight*>& weights,
         const std::vector<std::optional<ArrayView>>& biases, const std::vector<ArrayView>& results) {
        if (weights.size() != biases.size() || weights.size() != results.size())
          throw InvalidArgument("project: as many weights, biases and results are expected");
        std::vector<Projection> all;
        for (std::size_t n = 0; n < weights.size(); ++n)
          all.push_back({weights[n], in(biases[n]), results[n].out("a result")});
        const EngineCall call;
        project(x.in(), all);
      },
      "x"_a, "weights"_a, "biases"_a, "results"_a);
}

}  // namespace attend::python
