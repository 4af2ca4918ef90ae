// What the binding files share: views over Python's arrays, and the parts of the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attend/attend.hpp"

namespace attend::python {

namespace nb = nanobind;
using namespace nb::literals;

// The memory of an array, as the Python side described it. It owns nothing: the array stays alive through the call.
struct ArrayView {
  MutableView view;
  bool writable;

  View in() const { return view; }
  MutableView out(const char* what) const {
    if (!writable) throw InvalidArgument(std::string(what) + " is read-only, expected an array that can be written");
    return view;
  }
};

inline std::optional<View> in(const std::optional<ArrayView>& array) {
  if (!array) return std::nullopt;
  return array->in();
}
inline std::optional<MutableView> out(const char* what, const std::optional<ArrayView>& array) {
  if (!array) return std::nullopt;
  return array->out(what);
}

// What nanobind gives for four numbers: it converts to std::array, not to what derives from it.
using FourNumbers = std::array<std::int64_t, 4>;
inline Shape shape_of(const FourNumbers& n) {
  return {n[0], n[1], n[2], n[3]};
}
inline Strides strides_of(const FourNumbers& n) {
  return {n[0], n[1], n[2], n[3]};
}

DType dtype_named(const std::string& text);  // TypeError unless it is one of the four

// Contiguous memory as a NumPy array over it, kept alive by `owner`; None for an empty tensor. bf16 travels as uint16:
// NumPy has no such type, and the package gives it ml_dtypes' when that is installed.
nb::object array_of(const MutableView& view, nb::handle owner);
nb::object array_of(Tensor& tensor, nb::handle owner);
nb::dict arrays_of(MultiHeadAttentionParameters& parameters, nb::handle owner);  // those the config calls for
void copy_into(const Tensor& from, const MutableView& to, const char* what);
std::optional<RopeStyle> rope_style(const std::optional<std::string>& style);
// Row sums of the function values(n, batch, head, first_row, first_col, rows, cols), which the caller keeps alive.
RowSums row_sums_of(const MutableView& sums, nb::handle values);

void bind_tensor(nb::module_& m);
void bind_mask(nb::module_& m);
void bind_patterns(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_array_attention(nb::module_& m);
void bind_torch_operators(nb::module_& m);
void bind_gpu_cache(nb::module_& m);
void bind_observers(nb::module_& m);
void bind_lens(nb::module_& m);
void bind_paged_kv_cache(nb::module_& m);
void bind_weight(nb::module_& m);
void bind_operations(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_linformer(nb::module_& m);
void bind_reformer(nb::module_& m);
void bind_adaptive_span(nb::module_& m);
void bind_linear_attention(nb::module_& m);
void bind_layer(nb::module_& m);
void bind_additive_attention(nb::module_& m);
void bind_transformer_block(nb::module_& m);
void bind_positions(nb::module_& m);
void bind_latent_attention(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_llm(nb::module_& m);  // nothing where attend is built without language models

}  // namespace attend::python
