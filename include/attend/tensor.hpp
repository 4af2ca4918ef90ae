// Views over anyone's memory, and a small tensor that owns its own.
#pragma once

#if __cplusplus < 202002L
#error "attend's C++ headers need C++20 or later: compile with -std=c++20"
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>

#include "attend/export.h"

namespace attend {

enum class DType : std::int32_t { f32 = 0, f16 = 1, bf16 = 2, f64 = 3 };

ATTEND_API const char* name(DType dtype);      // "f32", "f16", "bf16", "f64"
ATTEND_API std::int64_t size_of(DType dtype);  // bytes of one element

// The two half formats as bits; conversions round to nearest even and keep NaN, inf and subnormals.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
ATTEND_API float to_float(Float16 x);
ATTEND_API float to_float(BFloat16 x);
ATTEND_API Float16 to_float16(float x);
ATTEND_API BFloat16 to_bfloat16(float x);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};

// [batch, heads, length, dim]. All four sizes are given: a matrix is {1, 1, rows, columns}, and {rows, columns} does
// not compile.
struct Shape : std::array<std::int64_t, 4> {
  constexpr Shape() : array{} {}
  constexpr Shape(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim)
      : array{batch, heads, length, dim} {}
};

inline constexpr std::int64_t kUnsetStride = -(std::int64_t{1} << 62);

// In elements, any sign; 0 repeats. Strides that were not given are kUnsetStride: no operation reads through them.
struct Strides : std::array<std::int64_t, 4> {
  constexpr Strides() : array{kUnsetStride, kUnsetStride, kUnsetStride, kUnsetStride} {}
  constexpr Strides(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim)
      : array{batch, heads, length, dim} {}
};

ATTEND_API Strides contiguous_strides(const Shape& shape);
// Of a view that was given a shape and no strides. Without a shape they stay unset: fields that are assigned later, one
// by one, must include the strides.
inline Strides default_strides(const Shape& shape) {
  return shape == Shape() ? Strides() : contiguous_strides(shape);
}

// What an operation writes must share no memory with what it reads, nor with anything else that it writes: it throws
// InvalidArgument before touching either. "y may be x" beside an operation allows the one thing: the very same view,
// with the same strides.

// A view owns nothing. The logical order is always [batch, heads, length, dim]; other layouts are strides. A view that
// is given by dtype, data and shape is contiguous: View{DType::f32, data, {1, 8, 4096, 64}}.
template <class Void>
struct BasicView {
  DType dtype = DType::f32;
  Void* data = nullptr;
  Shape shape{};
  Strides strides = default_strides(shape);

  std::int64_t batch() const { return shape[0]; }
  std::int64_t heads() const { return shape[1]; }
  std::int64_t length() const { return shape[2]; }
  std::int64_t dim() const { return shape[3]; }

  // A view that may be written can always be read.
  operator BasicView<const void>() const { return {dtype, data, shape, strides}; }
};
using MutableView = BasicView<void>;
using View = BasicView<const void>;

// Contiguous [batch, heads, length, dim].
template <class T>
View view_of(const T* data, const Shape& shape) {
  return {DTypeOf<T>::value, data, shape, contiguous_strides(shape)};
}
template <class T>
MutableView view_of(T* data, const Shape& shape) {
  return {DTypeOf<T>::value, data, shape, contiguous_strides(shape)};
}

// [batch, length, heads, dim] in memory, as PyTorch projections and FlashAttention lay it out; `shape` stays logical.
ATTEND_API Strides length_major_strides(const Shape& shape);

// Owns 64-byte-aligned memory, zeroed. Move-only, and empty once moved from; clone() copies.
class ATTEND_API Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;

  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  bool empty() const { return view_.data == nullptr; }
  std::int64_t size() const;  // elements
  std::int64_t bytes() const;

  MutableView view() { return view_; }
  View view() const { return view_; }
  operator MutableView() { return view_; }
  operator View() const { return view_; }

  // The elements as T; throws InvalidArgument if T is not what the tensor holds.
  template <class T>
  T* data() {
    require(DTypeOf<T>::value);
    return static_cast<T*>(view_.data);
  }
  template <class T>
  const T* data() const {
    require(DTypeOf<T>::value);
    return static_cast<const T*>(view_.data);
  }

  Tensor clone() const;

 private:
  void require(DType dtype) const;
  struct Free {
    void operator()(void* p) const noexcept;
  };
  std::unique_ptr<void, Free> memory_;
  MutableView view_;
};

}  // namespace attend

// So that `const auto [B, H, M, D] = shape` works.
template <>
struct std::tuple_size<attend::Shape> : std::integral_constant<std::size_t, 4> {};
template <std::size_t N>
struct std::tuple_element<N, attend::Shape> {
  using type = std::int64_t;
};
