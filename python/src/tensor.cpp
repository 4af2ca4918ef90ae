// Array descriptions coming in.
#include <string>

#include "bindings.hpp"

namespace attend::python {

DType dtype_named(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    if (text == name(dtype)) return dtype;
  throw nb::type_error(("dtype is " + text + ", expected f32, f16, bf16 or f64").c_str());
}

void bind_tensor(nb::module_& m) {
  nb::class_<ArrayView>(m, "View", "The memory of an array as the engine's [batch, heads, length, dim].");
}

}  // namespace attend::python
