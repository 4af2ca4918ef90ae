// attention and attention_backward over arrays of any library: one call from Python, for the way there costs more than
// the engine takes for a few tokens.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <string>

#include "arrays.hpp"
#include "attend/cuda.hpp"
#include "engine_call.hpp"

namespace attend::python {
namespace {

std::string dimensions(const char* name, const Array& array) {
  return std::string(name) + " has " + std::to_string(array.rank()) + " dimensions, expected ";
}

Array describe_four(nb::handle x, const char* name, Asker asker = Asker::function) {
  Array array = describe(x, name, asker, Memory::cpu_or_gpu);
  if (array.rank() != 4) throw InvalidArgument(dimensions(name, array) + "4: batch, heads, length and dim");
  return array;
}

// The score options of a call, kept alive together: forward and backward must be given the same.
struct ScoreOptions {
  AttentionOptions engine;
  std::vector<nb::object> keep;
  Dims bias_shape;  // of bias or distance_bias, as the caller gave it
  Asker asker = Asker::function;
  std::vector<std::pair<const char*, int>> places;  // of the arrays among them, and their GPU

  // What the engine reads of an option, which stays alive with this.
  View kept(Array& array, const char* name, const ArrayView& view) {
    places.push_back({name, array.gpu});
    keep.push_back(std::move(array.keep));
    return view.in();
  }
};

void give_bias(ScoreOptions& options, nb::handle x) {
  Array array = describe(x, "bias", options.asker, Memory::cpu_or_gpu);
  if (array.rank() > 4) throw InvalidArgument(dimensions("bias", array) + "at most 4");
  options.engine.bias = options.kept(array, "bias", array.view_at(std::span(kInOrder).last(array.rank())));
  options.bias_shape = std::move(array.shape);
}

// [n] or [heads, n] as [1, 1|heads, 1, n].
void give_distance_bias(ScoreOptions& options, nb::handle x) {
  Array array = describe(x, "distance_bias", options.asker, Memory::cpu_or_gpu);
  if (array.rank() != 1 && array.rank() != 2)
    throw InvalidArgument(dimensions("distance_bias", array) + "[queries + keys - 1] or [heads, queries + keys - 1]");
  options.engine.distance_bias =
      options.kept(array, "distance_bias", array.rank() == 2 ? array.view_at({1, 3}) : array.view_at({3}));
  options.bias_shape = std::move(array.shape);
}

// [H] or [B, H] as [1|B, H, 1, 1].
View per_head(ScoreOptions& options, nb::handle x, const char* name) {
  Array array = describe(x, name, options.asker, Memory::cpu_or_gpu);
  if (array.rank() != 1 && array.rank() != 2)
    throw InvalidArgument(dimensions(name, array) + "[heads] or [batch, heads]");
  return options.kept(array, name, array.rank() == 2 ? array.view_at({0, 1}) : array.view_at({1}));
}

double number(nb::handle x) {
  return nb::cast<double>(nb::float_(x));
}

std::uint64_t seed_of(nb::handle x) {
  PyObject* index = PyNumber_Index(x.ptr());
  if (index == nullptr) {
    PyErr_Clear();
    throw nb::type_error(("seed is " + std::string(nb::repr(x).c_str()) + ", expected a whole number").c_str());
  }
  const nb::object whole = nb::steal(index);
  std::uint64_t seed = 0;
  if (!nb::try_cast(whole, seed))
    throw nb::type_error(("seed is " + std::string(nb::str(whole).c_str()) + ", expected 0 to 2**64 - 1").c_str());
  return seed;
}

bool flag(nb::handle x, const char* name) {
  if (x.is(Py_True)) return true;
  if (x.is(Py_False)) return false;
  return nb::module_::import_("attend._whole").attr("flag")(x, name).is(Py_True);
}

std::string place_name(int gpu) {
  return gpu < 0 ? "the CPU" : "cuda:" + std::to_string(gpu);
}
// All arrays of a call lie where q does.
void check_place(const char* name, int gpu, const Array& q) {
  if (gpu != q.gpu)
    throw InvalidArgument(std::string(name) + " is on " + place_name(gpu) + ", expected " + place_name(q.gpu) +
                          ", where q is");
}
void check_places(const Array& q, std::initializer_list<std::pair<const char*, const Array*>> arrays,
                  const ScoreOptions& options) {
  for (const auto& [name, array] : arrays) check_place(name, array->gpu, q);
  for (const auto& [name, gpu] : options.places) check_place(name, gpu, q);
}

DType wide(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

Dims in_order(const Shape& shape, const Order& order) {
  Dims result(4);
  for (std::size_t i = 0; i < 4; ++i) result[order[i]] = shape[i];
  return result;
}

// A new array in the caller's order, and the engine's view of it.
struct Result {
  NewArray array;
  ArrayView view;
};

Result new_result(const Array& beside, const Shape& shape, const Order& order) {
  const DType dtype = beside.dtype;
  const Dims lying = in_order(shape, order);
  NewArray made = empty_beside(beside, dtype, lying);
  const ArrayView lies = made.view({lying[0], lying[1], lying[2], lying[3]});
  ArrayView view{{dtype, made.address, shape, {}}, true};
  for (std::size_t i = 0; i < 4; ++i) view.view.strides[i] = lies.view.strides[order[i]];
  return {std::move(made), view};
}

// [batch, heads, queries], as [batch, heads, queries, 1].
Array describe_lse(nb::handle x, Asker asker = Asker::function) {
  Array array = describe(x, "lse", asker, Memory::cpu_or_gpu);
  if (array.rank() != 3) throw InvalidArgument(dimensions("lse", array) + "3: batch, heads and queries");
  return array;
}
constexpr std::initializer_list<std::size_t> kLsePlaces = {0, 1, 2};

// On the CPU, or put on the current stream of the GPU that q lies on.
void run_attention(const Array& q_array, const View& q, const View& k, const View& v, const MutableView& out,
                   const ScoreOptions& options, const AttentionExtras& extras) {
  if (q_array.gpu >= 0) return cuda::attention(q, k, v, out, options.engine, extras, current_stream(q_array.gpu));
  const EngineCall call;
  attention(q, k, v, out, options.engine, extras);
}
void run_attention_backward(const Array& q_array, const View& dout, const View& q, const View& k, const View& v,
                            const View& out, const View& lse, const AttentionGradients& gradients,
                            const ScoreOptions& options) {
  if (q_array.gpu >= 0)
    return cuda::attention_backward(dout, q, k, v, out, lse, gradients, options.engine, cuda::Order::fixed,
                                    current_stream(q_array.gpu));
  const EngineCall call;
  attention_backward(dout, q, k, v, out, lse, gradients, options.engine);
}

nb::object array_attention(nb::handle q, nb::handle k, nb::handle v, const ScoreOptions& options, const Order& order,
                           nb::handle want_lse, nb::handle want_weights,
                           const std::optional<RowStatisticsOptions>& want_statistics) {
  const Array q_array = describe_four(q, "q"), k_array = describe_four(k, "k"), v_array = describe_four(v, "v");
  const View q_view = q_array.view(order).in(), k_view = k_array.view(order).in(), v_view = v_array.view(order).in();
  const auto [B, H, M, D] = q_view.shape;
  const Library library = q_array.library;
  const DType dtype = q_array.dtype;

  check_places(q_array, {{"k", &k_array}, {"v", &v_array}}, options);
  const Result out = new_result(q_array, {B, H, M, v_view.dim()}, order);
  NewArray lse{nb::none(), wide(dtype), nullptr}, weights = lse, statistics = lse;
  AttentionExtras extras;
  if (flag(want_lse, "return_lse")) {
    lse = empty_beside(q_array, wide(dtype), {B, H, M});
    extras.lse = lse.view({B, H, M, 1}).view;
  }
  if (flag(want_weights, "return_weights")) {
    weights = empty_beside(q_array, wide(dtype), {B, H, M, k_view.length()});
    extras.weights = weights.view({B, H, M, k_view.length()}).view;
  }
  if (want_statistics) {
    statistics = empty_beside(q_array, wide(dtype), {B, H, M, kRowStatistics});
    extras.statistics = RowStatistics{statistics.view({B, H, M, kRowStatistics}).view, *want_statistics};
  }
  run_attention(q_array, q_view, k_view, v_view, out.view.view, options, extras);
  return nb::make_tuple(finish(library, out.array.object), finish(library, lse.object), finish(library, weights.object),
                        finish(library, statistics.object));
}

nb::object array_attention_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                                    nb::handle lse, const ScoreOptions& options, const Order& order, bool want_dbias) {
  const Array dout_array = describe_four(dout, "dout"), q_array = describe_four(q, "q"),
              k_array = describe_four(k, "k"), v_array = describe_four(v, "v"), out_array = describe_four(out, "out"),
              lse_array = describe_lse(lse);
  const View q_view = q_array.view(order).in(), k_view = k_array.view(order).in(), v_view = v_array.view(order).in();
  const Library library = q_array.library;
  const DType dtype = q_array.dtype;

  check_places(q_array,
               {{"dout", &dout_array}, {"k", &k_array}, {"v", &v_array}, {"out", &out_array}, {"lse", &lse_array}},
               options);
  const Result dq = new_result(q_array, q_view.shape, order), dk = new_result(q_array, k_view.shape, order),
               dv = new_result(q_array, v_view.shape, order);
  AttentionGradients gradients{dq.view.view, dk.view.view, dv.view.view, {}, {}, {}};
  NewArray dbias{nb::none(), wide(dtype), nullptr}, dsinks = dbias;
  const std::optional<View>& bias = options.engine.bias ? options.engine.bias : options.engine.distance_bias;
  if (bias && want_dbias) {
    dbias = empty_beside(q_array, wide(dtype), options.bias_shape);
    (options.engine.bias ? gradients.dbias : gradients.ddistance_bias) = dbias.view(bias->shape).view;
  }
  if (options.engine.sinks) {
    const Shape& shape = options.engine.sinks->shape;
    dsinks = empty_beside(q_array, wide(dtype), {shape[0] * shape[1]});
    gradients.dsinks = dsinks.view(shape).view;
  }
  run_attention_backward(q_array, dout_array.view(order).in(), q_view, k_view, v_view, out_array.view(order).in(),
                         lse_array.view_at(kLsePlaces).in(), gradients, options);
  return nb::make_tuple(finish(library, dq.array.object), finish(library, dk.array.object),
                        finish(library, dv.array.object), finish(library, dbias.object),
                        finish(library, dsinks.object));
}

// Of CUDA tensors alone: a lens over the CPU's arrays keeps what it has found.
nb::object array_map(nb::handle q, nb::handle k, nb::handle lse, const ScoreOptions& options, const Order& order,
                     const std::pair<std::int64_t, std::int64_t>& head, const std::array<std::int64_t, 4>& area,
                     std::int64_t rows, std::int64_t cols, bool want_peak) {
  const Array q_array = describe_four(q, "q"), k_array = describe_four(k, "k"), lse_array = describe_lse(lse);
  check_places(q_array, {{"k", &k_array}, {"lse", &lse_array}}, options);
  const auto cells_of = [](std::int64_t wanted, std::int64_t places) {
    return std::min(wanted, std::max<std::int64_t>(places, 0));
  };
  const Shape shape{1, 1, cells_of(rows, area[1]), cells_of(cols, area[3])};
  if (shape[2] < 0 || shape[3] < 0)
    throw InvalidArgument("a map has " + std::to_string(rows) + " x " + std::to_string(cols) +
                          " cells, expected at least one");
  const Dims dims(shape.begin(), shape.end());
  const NewArray mass = empty_beside(q_array, DType::f32, dims);
  NewArray peak{nb::none(), DType::f32, nullptr};
  cuda::MapView map{{area[0], area[1], area[2], area[3]}, mass.view(shape).view, {}};
  if (want_peak) {
    peak = empty_beside(q_array, DType::f32, dims);
    map.peak = peak.view(shape).view;
  }
  cuda::map(q_array.view(order).in(), k_array.view(order).in(), lse_array.view_at(kLsePlaces).in(),
            {head.first, head.second}, map, options.engine, current_stream(q_array.gpu));
  return nb::make_tuple(mass.object, peak.object);
}

// The same for PyTorch's operators, which make their results themselves, in memory ordered as q is.

struct OperatorArray {
  OperatorArray(nb::handle x, const char* name)
      : array(describe_four(x, name, Asker::torch_operator)), view(array.view().view) {}
  Array array;
  MutableView view;
};

void operator_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle weights,
                        const ScoreOptions& options) {
  const OperatorArray q_array(q, "q"), k_array(k, "k"), v_array(v, "v"), out_array(out, "out");
  const Array lse_array = describe_lse(lse, Asker::torch_operator);
  std::optional<OperatorArray> weights_array;
  if (!weights.is_none()) weights_array.emplace(weights, "weights");
  AttentionExtras extras;
  extras.lse = lse_array.view_at(kLsePlaces).view;
  if (weights_array) extras.weights = weights_array->view;
  check_places(q_array.array, {{"k", &k_array.array}, {"v", &v_array.array}, {"out", &out_array.array}}, options);
  run_attention(q_array.array, q_array.view, k_array.view, v_array.view, out_array.view, options, extras);
}

void operator_attention_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                                 nb::handle lse, nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dbias,
                                 const ScoreOptions& options) {
  const OperatorArray dout_array(dout, "dout"), q_array(q, "q"), k_array(k, "k"), v_array(v, "v"),
      out_array(out, "out"), dq_array(dq, "dq"), dk_array(dk, "dk"), dv_array(dv, "dv");
  const Array lse_array = describe_lse(lse, Asker::torch_operator);
  AttentionGradients gradients{dq_array.view, dk_array.view, dv_array.view, {}, {}, {}};
  std::optional<OperatorArray> dbias_array;
  if (!dbias.is_none()) gradients.dbias = dbias_array.emplace(dbias, "dbias").view;
  check_places(q_array.array, {{"dout", &dout_array.array}, {"k", &k_array.array}, {"v", &v_array.array}}, options);
  run_attention_backward(q_array.array, dout_array.view, q_array.view, k_array.view, v_array.view, out_array.view,
                         lse_array.view_at(kLsePlaces).in(), gradients, options);
}

}  // namespace

void bind_array_attention(nb::module_& m) {
  nb::class_<AttentionOptions>(m, "Options", "Those of ScoreOptions, as the other functions take them.");
  nb::class_<ScoreOptions>(m, "ScoreOptions",
                           "The score options of a call, kept alive together: forward and backward must be given the "
                           "same.")
      .def(
          "__init__",
          [](ScoreOptions* self, const Mask& mask, nb::object kept_by_mask, nb::handle scale, nb::handle bias,
             nb::handle softcap, nb::handle alibi_slopes, const Diagonal& alibi_diagonal, nb::handle sinks,
             nb::handle dropout, nb::handle seed, nb::handle distance_bias, bool in_operator) {
            ScoreOptions options;
            if (in_operator) options.asker = Asker::torch_operator;
            options.engine.mask = mask;
            options.keep.push_back(std::move(kept_by_mask));
            if (!bias.is_none()) give_bias(options, bias);
            if (!distance_bias.is_none()) give_distance_bias(options, distance_bias);
            if (!alibi_slopes.is_none()) options.engine.alibi_slopes = per_head(options, alibi_slopes, "alibi_slopes");
            if (!sinks.is_none()) options.engine.sinks = per_head(options, sinks, "sinks");
            if (!scale.is_none()) options.engine.scale = number(scale);
            options.engine.softcap = number(softcap);
            options.engine.alibi_diagonal = alibi_diagonal;
            options.engine.dropout = {number(dropout), seed_of(seed)};
            new (self) ScoreOptions(std::move(options));
          },
          "mask"_a, "kept_by_mask"_a.none(), "scale"_a.none(), "bias"_a.none(), "softcap"_a, "alibi_slopes"_a.none(),
          "alibi_diagonal"_a, "sinks"_a.none(), "dropout"_a, "seed"_a, "distance_bias"_a.none(),
          "in_operator"_a = false)
      .def_prop_ro(
          "bias_shape",
          [](const ScoreOptions& options) { return options.engine.bias ? tuple_of(options.bias_shape) : nb::none(); })
      .def_prop_ro("has_sinks", [](const ScoreOptions& options) { return options.engine.sinks.has_value(); })
      .def_prop_ro(
          "core", [](const ScoreOptions& options) -> const AttentionOptions& { return options.engine; },
          nb::rv_policy::reference_internal);

  m.def("array_attention", &array_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "options"_a, "order"_a,
        "want_lse"_a.none(), "want_weights"_a.none(), "want_statistics"_a.none() = nb::none(),
        "(out, lse, weights, statistics), those not wanted None.");
  m.def("array_attention_backward", &array_attention_backward, "dout"_a.none(), "q"_a.none(), "k"_a.none(),
        "v"_a.none(), "out"_a.none(), "lse"_a.none(), "options"_a, "order"_a, "want_dbias"_a = true,
        "(dq, dk, dv, dbias, dsinks), the last two None without bias (or if it is not wanted) and sinks.");
  m.def("array_map", &array_map, "q"_a, "k"_a, "lse"_a, "options"_a, "order"_a, "head"_a, "area"_a, "rows"_a, "cols"_a,
        "want_peak"_a,
        "(mass, peak) of one head of CUDA tensors, [1, 1, rows, cols]; peak None where it is not wanted.");
  m.def("gpu_why_not", &cuda::why_not, "Why tensors of a GPU cannot be worked on; empty where they can.");
  m.def("operator_attention", &operator_attention, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "weights"_a.none(),
        "options"_a, "For PyTorch's operators: fills `out`, `lse` and, unless it is None, `weights`.");
  m.def("operator_attention_backward", &operator_attention_backward, "dout"_a, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a,
        "dq"_a, "dk"_a, "dv"_a, "dbias"_a.none(), "options"_a, "The same for the gradients.");
}

}  // namespace attend::python
