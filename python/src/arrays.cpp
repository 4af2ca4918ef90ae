// Reads the memory of NumPy's, PyTorch's and JAX's arrays through their Python faces: no library is linked.
#include "arrays.hpp"

#include <nanobind/stl/array.h>

#include <algorithm>
#include <functional>
#include <string>

#include "dlpack_exchange.hpp"

namespace attend::python {
namespace {

constexpr std::array kDTypes{DType::f32, DType::f16, DType::bf16, DType::f64};
constexpr std::size_t kBf16 = 2;

using OfDTypes = std::array<nb::object, kDTypes.size()>;  // a library's own, in that order

std::size_t index_of(DType dtype) {
  return static_cast<std::size_t>(std::find(kDTypes.begin(), kDTypes.end(), dtype) - kDTypes.begin());
}

nb::object interned(const char* text) {
  return nb::steal(PyUnicode_InternFromString(text));
}
nb::object get(nb::handle x, const nb::object& name) {
  return x.attr(nb::handle(name));
}
nb::object call(nb::handle x, const nb::object& method) {
  return x.attr(nb::handle(method))();
}
std::string text(nb::handle x) {
  return nb::str(x).c_str();
}

bool is_a(nb::handle x, nb::handle type) {
  const int result = PyObject_IsInstance(x.ptr(), type.ptr());
  if (result < 0) throw nb::python_error();
  return result != 0;
}

[[noreturn]] void type_error(const std::string& message) {
  throw nb::type_error(message.c_str());
}

nb::handle imported(const char* module) {  // null unless somebody imported it: what does not exist has no arrays
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return found == Py_None ? nullptr : found;
}

Dims dims_of(const nb::object& sizes) {
  const nb::object tuple = PyTuple_Check(sizes.ptr()) ? sizes : nb::tuple(sizes);
  Dims dims(static_cast<std::size_t>(NB_TUPLE_GET_SIZE(tuple.ptr())));
  for (std::size_t i = 0; i < dims.size(); ++i)
    dims[i] = nb::cast<std::int64_t>(nb::handle(NB_TUPLE_GET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i))));
  return dims;
}

Dims contiguous(const Dims& shape) {
  Dims strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0; step *= std::max<std::int64_t>(shape[i], 1)) strides[i] = step;
  return strides;
}

// What is looked up once: names, types and functions. Never freed, for the interpreter may go first.

struct Numpy {
  nb::object module = nb::module_::import_("numpy");
  nb::object ndarray = module.attr("ndarray"), empty = module.attr("empty");
  nb::object array_struct = interned("__array_struct__"), dtype = interned("dtype");
  OfDTypes dtypes{descriptor("float32"), descriptor("float16"), nb::object(), descriptor("float64")};

  nb::object descriptor(const char* name) const { return module.attr("dtype")(name); }
  // bfloat16 comes with ml_dtypes, which need not be there: known once somebody needs it.
  const nb::object& bf16() {
    if (!dtypes[kBf16]) {
      try {
        dtypes[kBf16] = module.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
      } catch (nb::python_error& error) {
        if (!error.matches(PyExc_ImportError)) throw;
        nb::raise_from(error, PyExc_ImportError,
                       "bfloat16 in NumPy needs the package ml_dtypes: pip install ml_dtypes");
      }
    }
    return dtypes[kBf16];
  }
  const nb::object& of(DType wanted) {
    if (wanted == DType::bf16) return bf16();
    return dtypes[index_of(wanted)];
  }
};

Numpy& numpy() {  // made while the module is imported: later, who makes it could wait for the lock of who waits for it
  static auto* numpy = new Numpy;
  return *numpy;
}

// Null before PyTorch 2.10, which has none.
const dlpack::Exchange* exchange_of(nb::handle tensor_type) {
  if (!nb::hasattr(tensor_type, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = tensor_type.attr("__dlpack_c_exchange_api__");
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeName)) return nullptr;
  const auto* exchange =
      static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeName));
  return exchange->major == dlpack::kExchangeMajor && exchange->show != nullptr ? exchange : nullptr;
}

struct Torch {
  explicit Torch(nb::handle torch)
      : tensor(torch.attr("Tensor")),
        strided(torch.attr("strided")),
        is_grad_enabled(torch.attr("is_grad_enabled")),
        empty(torch.attr("empty")),
        cpu(torch.attr("device")("cpu")),
        forward_ad(torch.attr("autograd").attr("forward_ad")),
        is_wrapped(torch.attr("_C").attr("_functorch").attr("is_functorch_wrapped_tensor")),
        exchange(exchange_of(tensor)),
        dtypes{torch.attr("float32"), torch.attr("float16"), torch.attr("bfloat16"), torch.attr("float64")} {}

  nb::object tensor, strided, is_grad_enabled, empty, cpu, forward_ad, is_wrapped;
  const dlpack::Exchange* exchange;
  OfDTypes dtypes;
  nb::object arguments_of_empty = nb::make_tuple(interned("size"), interned("dtype"), interned("device"));
  nb::object is_cpu = interned("is_cpu"), layout = interned("layout"), requires_grad = interned("requires_grad"),
             dtype = interned("dtype"), is_neg = interned("is_neg"), data_ptr = interned("data_ptr"),
             shape = interned("shape"), stride = interned("stride"), level = interned("_current_level");
};

const Torch* torch_if_imported() {
  static const Torch* torch = nullptr;
  if (torch == nullptr)
    if (const nb::handle module = imported("torch")) torch = new Torch(module);
  return torch;
}

const DType* find(const OfDTypes& dtypes, nb::handle dtype) {
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i].is(dtype)) return &kDTypes[i];
  return nullptr;
}

// ---- PyTorch ----

bool has_no_memory(nb::handle tensor) {
  return nb::cast<std::int64_t>(tensor.attr("numel")()) != 0 &&
         nb::cast<std::uintptr_t>(tensor.attr("untyped_storage")().attr("data_ptr")()) == 0;
}

void* address_of(const Torch& torch, nb::handle tensor) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(call(tensor, torch.data_ptr)));
}

std::optional<DType> dtype_of(const dlpack::ElementType& type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == dlpack::kBfloat) return DType::bf16;
  if (type.code != dlpack::kFloat) return std::nullopt;
  return type.bits == 32   ? std::optional(DType::f32)
         : type.bits == 16 ? std::optional(DType::f16)
         : type.bits == 64 ? std::optional(DType::f64)
                           : std::nullopt;
}

// Device, dtype, address, shape and strides in one call, which the attributes take half a microsecond for. False where
// there is anything to refuse: the attributes say what.
bool read_by_exchange(const Torch& torch, Array& array) {
  if (torch.exchange == nullptr || !array.keep.type().is(torch.tensor)) return false;
  dlpack::Tensor tensor;
  if (torch.exchange->show(array.keep.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::optional<DType> dtype = dtype_of(tensor.type);
  if (!dtype || tensor.device.type != dlpack::kCpu) return false;
  array.dtype = *dtype;
  array.address = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  array.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  array.strides.assign(tensor.strides, tensor.strides + tensor.rank);
  return true;
}

void read_by_attributes(const Torch& torch, Array& array, const std::string& name) {
  const nb::object& x = array.keep;
  const DType* dtype = find(torch.dtypes, get(x, torch.dtype));
  if (dtype == nullptr)
    type_error(name + " dtype is " + text(x.attr("dtype")) + ", expected float32, float16, bfloat16 or float64");
  array.dtype = *dtype;
  array.address = address_of(torch, x);
  array.shape = dims_of(get(x, torch.shape));
  array.strides = dims_of(call(x, torch.stride));
}

// The CUDA device that a tensor lies on; -1: another memory.
int gpu_of(nb::handle x) {
  if (!x.attr("is_cuda").is(Py_True)) return -1;
  return nb::cast<int>(x.attr("get_device")());
}

void refuse_other_memory(const Torch& torch, nb::handle x, const std::string& name, bool on_gpu) {
  // A fake tensor says that it lies on the meta device here, and which one it stands for there.
  if (!on_gpu && !get(x, torch.is_cpu).is(Py_True) && text(x.attr("device").attr("type")) != "cpu")
    throw InvalidArgument(name + " is on " + text(x.attr("device")) + ", expected a CPU tensor: move it with .cpu()");
  if (!get(x, torch.layout).is(torch.strided))
    type_error(name + " is a " + text(x.attr("layout")) + " tensor, expected a dense one: .to_dense()");
  if (!x.type().is(torch.tensor) && has_no_memory(x))
    throw InvalidArgument(name + " has no memory (a fake or meta tensor), expected a CPU tensor with values");
}

[[noreturn]] void refuse_transform(const std::string& name) {
  throw InvalidArgument(name +
                        " is inside torch.func or forward-mode differentiation, which this function does not "
                        "know: use attend.torch");
}

void refuse_gradient(const Torch& torch, nb::handle x, const std::string& name) {
  if (get(x, torch.requires_grad).is(Py_True) && torch.is_grad_enabled().is(Py_True))
    throw InvalidArgument(name +
                          " needs a gradient, which this function does not record: use attend.torch, or call it under "
                          "torch.no_grad() or on .detach()");
  const bool forward_mode = nb::cast<int>(get(torch.forward_ad, torch.level)) >= 0;
  if (forward_mode && !torch.forward_ad.attr("unpack_dual")(x).attr("tangent").is_none()) refuse_transform(name);
}

Array from_torch(const Torch& torch, nb::object x, const std::string& name, Asker asker, Memory memory) {
  Array array{Library::torch, std::move(x), DType::f32, nullptr, {}, {}, true};
  const bool read = read_by_exchange(torch, array);
  if (!read && memory == Memory::cpu_or_gpu) array.gpu = gpu_of(array.keep);
  if (!read) refuse_other_memory(torch, array.keep, name, array.gpu >= 0);
  if (asker == Asker::function) refuse_gradient(torch, array.keep, name);
  if (!read && torch.is_wrapped(array.keep).is(Py_True)) refuse_transform(name);  // it has no memory of its own
  if (call(array.keep, torch.is_neg).is(Py_True))
    return from_torch(torch, array.keep.attr("resolve_neg")(), name, asker, memory);
  if (!read) read_by_attributes(torch, array, name);
  return array;
}

nb::object empty_torch(const Torch& torch, DType dtype, const Dims& shape) {
  const nb::object size = tuple_of(shape);
  // By name, and with its device: a size by position takes half a microsecond more, and the default device may be
  // another. (Tensor.new_empty is faster still, but needs a tensor to start from, which a mode may have made a fake.)
  PyObject* const arguments[] = {size.ptr(), torch.dtypes[index_of(dtype)].ptr(), torch.cpu.ptr()};
  PyObject* made = PyObject_Vectorcall(torch.empty.ptr(), arguments, 0, torch.arguments_of_empty.ptr());
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// ---- NumPy ----

// What __array_struct__ points to: version 3 of NumPy's array interface.
struct ArrayInterface {
  int two;
  int rank;
  char kind;
  int itemsize;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int kWriteable = 0x400;

class NumpyMemory {
 public:
  explicit NumpyMemory(nb::handle array) : capsule_(get(array, numpy().array_struct)) {
    interface_ = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule_.ptr(), nullptr));
    if (interface_ == nullptr) throw nb::python_error();
  }
  const ArrayInterface* operator->() const { return interface_; }

 private:
  nb::object capsule_;
  const ArrayInterface* interface_;
};

DType numpy_dtype_of(nb::handle array, const std::string& name) {
  const nb::object dtype = get(array, numpy().dtype);
  if (const DType* known = find(numpy().dtypes, dtype)) return *known;
  // Not one of NumPy's own objects: a copy of one, or ml_dtypes' bfloat16 for the first time.
  const std::string called = text(dtype.attr("name"));
  if (dtype.attr("isnative").is(Py_True)) {
    if (called == "bfloat16") return numpy().dtypes[kBf16] = dtype, DType::bf16;
    if (called == "float32") return DType::f32;
    if (called == "float16") return DType::f16;
    if (called == "float64") return DType::f64;
  }
  type_error(name + " dtype is " + text(dtype) + ", expected float32, float16, float64 or ml_dtypes' bfloat16");
}

Array from_numpy(nb::object x, const std::string& name, Library library) {
  const DType dtype = numpy_dtype_of(x, name);
  const NumpyMemory memory(x);
  const auto rank = static_cast<std::size_t>(memory->rank);
  Dims shape(rank), strides(rank);
  bool whole = true;  // else a field of a record: no whole number of elements apart
  for (std::size_t i = 0; i < rank; ++i) {
    shape[i] = memory->shape[i];
    strides[i] = memory->strides[i] / memory->itemsize;
    whole &= memory->strides[i] % memory->itemsize == 0;
  }
  if (!whole) {
    x = numpy().module.attr("ascontiguousarray")(x);
    return {library, x, dtype, NumpyMemory(x)->data, shape, contiguous(shape), true};
  }
  return {library,
          std::move(x),
          dtype,
          memory->data,
          std::move(shape),
          std::move(strides),
          (memory->flags & kWriteable) != 0};
}

// ---- From Python ----

const char* name_of(Library library) {
  return library == Library::torch ? "torch" : library == Library::jax ? "jax" : "numpy";
}

Library library_named(const std::string& name) {
  for (const Library library : {Library::numpy, Library::torch, Library::jax})
    if (name == name_of(library)) return library;
  throw InvalidArgument("library is " + name + ", expected numpy, torch or jax");
}

}  // namespace

nb::object tuple_of(const Dims& dims) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(dims.size())));
  for (std::size_t i = 0; i < dims.size(); ++i)
    NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(dims[i]));
  return tuple;
}

ArrayView Array::view(const Order& order) const {
  ArrayView result{{dtype, address, {}, {}}, writable};
  for (std::size_t i = 0; i < 4; ++i) {
    result.view.shape[i] = shape.at(order[i]);
    result.view.strides[i] = strides.at(order[i]);
  }
  return result;
}

ArrayView Array::view_at(std::span<const std::size_t> places) const {
  ArrayView result{{dtype, address, {1, 1, 1, 1}, {0, 0, 0, 0}}, writable};
  for (std::size_t i = 0; i < places.size(); ++i) {
    result.view.shape.at(places[i]) = shape.at(i);
    result.view.strides.at(places[i]) = strides.at(i);
  }
  return result;
}

ArrayView NewArray::view(const Shape& shape) const {
  return {{dtype, address, shape, contiguous_strides(shape)}, true};
}

Array describe(nb::handle x, const char* name, Asker asker, Memory memory) {
  const nb::handle type = x.type();
  if (type.is(numpy().ndarray)) return from_numpy(nb::borrow(x), name, Library::numpy);
  const Torch* torch = torch_if_imported();
  if (torch != nullptr && (type.is(torch->tensor) || is_a(x, torch->tensor)))
    return from_torch(*torch, nb::borrow(x), name, asker, memory);

  const nb::object& np = numpy().module;
  if (is_a(x, np.attr("ma").attr("MaskedArray")))
    type_error(std::string(name) + " is a masked array, whose mask would be lost: give x.data and a mask of attend's");
  if (is_a(x, numpy().ndarray)) return from_numpy(nb::borrow(x), name, Library::numpy);
  const nb::handle jax = imported("jax");
  if (jax && is_a(x, jax.attr("Array"))) return from_numpy(np.attr("asarray")(x), name, Library::jax);
  if (nb::hasattr(x, "__dlpack__")) return from_numpy(np.attr("from_dlpack")(x), name, Library::numpy);
  if (nb::hasattr(x, "__array__") || PyMemoryView_Check(x.ptr()))
    return from_numpy(np.attr("asarray")(x), name, Library::numpy);
  type_error(std::string(name) + " is a " + text(type.attr("__name__")) +
             ", expected an array: NumPy, PyTorch (CPU), JAX (CPU) or DLPack");
}

NewArray empty(Library library, DType dtype, const Dims& shape) {
  if (library == Library::torch) {
    const Torch& torch = *torch_if_imported();
    nb::object x = empty_torch(torch, dtype, shape);
    void* address = address_of(torch, x);
    std::int64_t bytes = size_of(dtype);
    for (const std::int64_t n : shape) bytes *= n;  // fits: torch has allocated it
    use_large_pages(address, bytes);                // as NumPy does of its own accord
    return {std::move(x), dtype, address};
  }
  nb::object x = numpy().empty(tuple_of(shape), numpy().of(dtype));
  void* address = NumpyMemory(x)->data;
  return {std::move(x), dtype, address};
}

NewArray empty_beside(const Array& array, DType dtype, const Dims& shape) {
  if (array.gpu < 0) return empty(array.library, dtype, shape);
  const Torch& torch = *torch_if_imported();
  const nb::object size = tuple_of(shape), device = array.keep.attr("device");
  PyObject* const arguments[] = {size.ptr(), torch.dtypes[index_of(dtype)].ptr(), device.ptr()};
  PyObject* made = PyObject_Vectorcall(torch.empty.ptr(), arguments, 0, torch.arguments_of_empty.ptr());
  if (made == nullptr) throw nb::python_error();
  nb::object x = nb::steal(made);
  void* address = address_of(torch, x);
  return {std::move(x), dtype, address};
}

void* current_stream(int gpu) {
  const nb::object cuda = nb::module_::import_("torch.cuda");
  const int current = nb::cast<int>(cuda.attr("current_device")());
  if (current != gpu)
    throw InvalidArgument("q is on cuda:" + std::to_string(gpu) + ", expected the current device, cuda:" +
                          std::to_string(current) + ": call it within torch.cuda.device(q.device)");
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(cuda.attr("current_stream")(gpu).attr("cuda_stream")));
}

nb::object finish(Library library, nb::object x) {
  if (library != Library::jax || x.is_none()) return x;
  return nb::module_::import_("jax.numpy").attr("asarray")(x);
}

void bind_arrays(nb::module_& m) {
  numpy();
  nb::class_<Array>(m, "Array",
                    "One argument: its library, its memory, and what has to stay alive while the engine reads it.")
      .def_prop_ro("kind", [](const Array& a) { return name_of(a.library); })
      .def_prop_ro("dtype", [](const Array& a) { return name(a.dtype); })
      .def_prop_ro("address", [](const Array& a) { return reinterpret_cast<std::uintptr_t>(a.address); })
      .def_prop_ro("writable", [](const Array& a) { return a.writable; })
      .def_prop_rw(
          "shape", [](const Array& a) { return tuple_of(a.shape); }, [](Array& a, Dims shape) { a.shape = shape; })
      .def_prop_rw(
          "strides", [](const Array& a) { return tuple_of(a.strides); },
          [](Array& a, Dims strides) { a.strides = strides; })
      .def(
          "view",
          [](const Array& a, const Order& order) {
            if (a.rank() != 4 || a.strides.size() != 4) throw InvalidArgument("view of an array without 4 dimensions");
            return a.view(order);
          },
          "order"_a = kInOrder, "The engine's [batch, heads, length, dim]; `order` says where they stand.")
      .def(
          "view_at",
          [](const Array& a, const std::vector<std::size_t>& places) {
            const bool rising =
                std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) == places.end();
            if (places.size() != a.rank() || !rising || (!places.empty() && places.back() > 3))
              throw InvalidArgument("view of an array of " + std::to_string(a.rank()) + " dimensions at " +
                                    std::to_string(places.size()) + " places, expected as many, rising, up to 3");
            return a.view_at(places);
          },
          "places"_a, "Where the array's dimensions stand among the engine's four; ones elsewhere.");

  m.def(
      "describe", [](nb::handle x, const char* name) { return describe(x, name); }, "x"_a.none(), "name"_a,
      "The memory of `x`, without a copy wherever its library allows.");
  m.def(
      "empty",
      [](const std::string& kind, const std::string& dtype, const Dims& shape) {
        const Library library = library_named(kind);
        NewArray made = empty(library, dtype_named(dtype), shape);
        return nb::make_tuple(made.object,
                              Array{library, made.object, made.dtype, made.address, shape, contiguous(shape), true});
      },
      "kind"_a, "dtype"_a, "shape"_a,
      "A new array of the library `kind`, and its description. JAX arrays are made from NumPy memory at the end.");
  m.def(
      "finish", [](const std::string& kind, nb::object x) { return finish(library_named(kind), std::move(x)); },
      "kind"_a, "x"_a.none(), "What the caller gets: the library's own array.");
  m.def(
      "numpy_dtype", [](const std::string& dtype) { return numpy().of(dtype_named(dtype)); }, "dtype"_a,
      "NumPy's dtype; bf16 is ml_dtypes'.");
}

}  // namespace attend::python
