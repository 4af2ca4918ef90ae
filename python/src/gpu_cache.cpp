// Caches of keys and values on a GPU, for attend.flash_attn: tensors of PyTorch's as the engine's view of a cache.
#include <nanobind/stl/array.h>

#include "arrays.hpp"
#include "attend/cuda.hpp"

namespace attend::python {
namespace {

// Where the numbers of one side lie, in types that no View has: 8 bits among them.
struct Side {
  std::uintptr_t address;
  Shape shape;
  Strides strides;
};

cuda::CacheFormat format_named(const std::string& name) {
  if (name == "plain") return cuda::CacheFormat::plain;
  if (name == "int8") return cuda::CacheFormat::int8;
  if (name == "fp8") return cuda::CacheFormat::fp8;
  throw InvalidArgument("the format of a cache is " + name + ", expected plain, int8 or fp8");
}

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

struct GpuCache {
  cuda::CacheView view;
  std::vector<nb::object> keep;

  cuda::CachePages pages_of(const Side& side, nb::handle scales, const char* name) {
    cuda::CachePages pages{pointer(side.address), side.shape, side.strides, {}};
    if (scales.is_none()) return pages;
    Array array = describe(scales, name, Asker::torch_operator, Memory::cpu_or_gpu);
    if (array.rank() != 4)
      throw InvalidArgument(std::string(name) + " has not 4 dimensions, expected those of a cache");
    pages.scales = array.view().view;
    keep.push_back(std::move(array.keep));
    return pages;
  }
};

Array four(nb::handle x, const char* name) {
  Array array = describe(x, name, Asker::torch_operator, Memory::cpu_or_gpu);
  if (array.rank() != 4) throw InvalidArgument(std::string(name) + " has not 4 dimensions, expected 4");
  return array;
}

}  // namespace

void bind_gpu_cache(nb::module_& m) {
  nb::class_<Side>(m, "GpuCacheSide")
      .def(
          "__init__",
          [](Side* self, std::uintptr_t address, const FourNumbers& shape, const FourNumbers& strides) {
            new (self) Side{address, shape_of(shape), strides_of(strides)};
          },
          "address"_a, "shape"_a, "strides"_a);
  nb::class_<GpuCache>(m, "GpuCache", "A view of a cache in a GPU's memory: [pages, KV heads, tokens, dim].")
      .def(
          "__init__",
          [](GpuCache* self, const std::string& format, const Side& k, const Side& v, nb::handle k_scales,
             nb::handle v_scales, std::uintptr_t lengths, std::uintptr_t table, std::int64_t table_pages,
             std::int64_t table_stride) {
            GpuCache made;
            made.view.format = format_named(format);
            made.view.k = made.pages_of(k, k_scales, "k_descale"),
            made.view.v = made.pages_of(v, v_scales, "v_descale");
            made.view.lengths = static_cast<const std::int32_t*>(pointer(lengths));
            made.view.table = static_cast<const std::int32_t*>(pointer(table));
            made.view.table_pages = table_pages, made.view.table_stride = table_stride;
            new (self) GpuCache(std::move(made));
          },
          "format"_a, "k"_a, "v"_a, "k_scales"_a.none(), "v_scales"_a.none(), "lengths"_a, "table"_a, "table_pages"_a,
          "table_stride"_a)
      .def(
          "attention",
          [](const GpuCache& cache, nb::handle q, nb::handle out, nb::handle lse, const AttentionOptions& options,
             std::uintptr_t stream) {
            const Array q_array = four(q, "q"), out_array = four(out, "out"), lse_array = four(lse, "lse");
            cuda::attention(q_array.view().in(), cache.view, out_array.view().view, options,
                            {.lse = lse_array.view().view}, pointer(stream));
          },
          "q"_a, "out"_a, "lse"_a, "options"_a, "stream"_a)
      .def(
          "append",
          [](const GpuCache& cache, nb::handle k, nb::handle v, bool own_scales, std::uintptr_t stream) {
            const Array k_array = four(k, "k"), v_array = four(v, "v");
            cuda::append(k_array.view().in(), v_array.view().in(), cache.view, own_scales, pointer(stream));
          },
          "k"_a, "v"_a, "own_scales"_a, "stream"_a);
}

}  // namespace attend::python
