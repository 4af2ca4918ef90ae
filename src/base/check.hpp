// Argument checks: each throws InvalidArgument saying what was got and what was expected.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "attend/error.hpp"
#include "attend/tensor.hpp"

namespace attend {

[[noreturn]] void fail(std::string_view op, std::string_view text);  // "op: text"

// "attention: v heads is 4, expected 2 (k heads)"
void check_equal(std::string_view op, std::string_view what, std::int64_t got, std::int64_t expected,
                 const char* why = "");

void check_at_least(std::string_view op, std::string_view what, std::int64_t got, std::int64_t least);

// A view that can be read: known dtype, sizes >= 0 whose product fits, all offsets inside int64 bytes, a pointer
// unless it is empty.
void check_readable(std::string_view op, std::string_view what, const View& view);
// Also: no two elements in the same place.
void check_writable(std::string_view op, std::string_view what, const MutableView& view);

// What check_readable asks of the memory, for elements of any size.
void check_layout(std::string_view op, std::string_view what, const void* data, const Shape& shape,
                  const Strides& strides, std::int64_t element_bytes);

// The two do not share memory, as far as can be told: views of one layout are compared element by element, others by
// the stretch of memory they lie in.
void check_apart(std::string_view op, std::string_view what, const MutableView& written, std::string_view other,
                 const View& view);

// What an operation reads and writes, by the names of its header.
struct Read {
  const char* name;
  std::optional<View> view;
};
struct Written {
  const char* name;
  std::optional<MutableView> view;
  // The input that it may be, or one of two: in the very same place, with the same strides.
  std::string_view in_place_of = {}, or_of = {};
};
// The rule of every operation: what it writes shares no memory with what it reads, nor with anything else it writes.
void check_all_apart(std::string_view op, std::initializer_list<Written> written, std::initializer_list<Read> read);
// The same for memory that is no view: elements of any size, compared by the stretch they lie in.
void check_apart_from(std::string_view op, std::string_view other, const void* data, const Shape& shape,
                      const Strides& strides, std::int64_t element_bytes, std::initializer_list<Written> written);

void check_shape(std::string_view op, std::string_view what, const Shape& got, const Shape& expected);
void check_dtype(std::string_view op, std::string_view what, DType got, DType expected);
// All f64, or none of them.
void check_family(std::string_view op, std::string_view what, DType got, DType first);
// A result has the dtype of the inputs, or is f32 beside half types: the sum before it is rounded, for who adds more.
void check_result_dtype(std::string_view op, std::string_view what, DType got, DType inputs);

// Queries [B, H, M, D], keys [B, Hk, N, D] and values [B, Hk, N, E] by the names of their header: that they can be
// read, have one dtype, and sizes that fit together. Not how the heads divide.
struct Named {
  const char* name;
  const View& view;
};
void check_fitting(std::string_view op, const Named& q, const Named& k, const Named& v);
// The LSE that forward gave for inputs of this dtype and queries [B, H, M, any].
void check_lse(std::string_view op, const View& lse, const Shape& rows, DType inputs);
// What backward reads of forward's results: `dout` and `out` of `shape` and of q's dtype, an LSE beside them.
void check_results(std::string_view op, const View& dout, const View& out, const View& lse, const Shape& shape,
                   DType dtype);

std::string to_string(const std::array<std::int64_t, 4>& values);  // of a shape or strides: "[1, 8, 4096, 64]"

}  // namespace attend
