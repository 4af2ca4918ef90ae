// Array descriptions coming in.
#include <nanobind/stl/array.h>

#include <string>

#include "bindings.hpp"

namespace attend::python {

DType dtype_named(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    if (text == name(dtype)) return dtype;
  throw nb::type_error(("dtype is " + text + ", expected f32, f16, bf16 or f64").c_str());
}

void bind_tensor(nb::module_& m) {
  nb::class_<ArrayView>(m, "View", "The memory of an array: address, dtype, shape and strides in elements.")
      .def(
          "__init__",
          [](ArrayView* self, std::uintptr_t address, const std::string& dtype, const Shape& shape,
             const Strides& strides, bool writable) {
            new (self) ArrayView{{dtype_named(dtype), reinterpret_cast<void*>(address), shape, strides}, writable};
          },
          "address"_a, "dtype"_a, "shape"_a, "strides"_a, "writable"_a);
}

}  // namespace attend::python
