// Views over anyone's memory, and a small tensor that owns its own.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

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

using Shape = std::array<std::int64_t, 4>;    // [batch, heads, length, dim]
using Strides = std::array<std::int64_t, 4>;  // in elements, any sign; 0 repeats

ATTEND_API Strides contiguous_strides(const Shape& shape);

// What an operation writes must share no memory with what it reads, nor with anything else that it writes: it throws
// InvalidArgument before touching either. "y may be x" beside an operation allows the one thing: the very same view,
// with the same strides.

// A view owns nothing. The logical order is always [batch, heads, length, dim]; other layouts are strides.
template <class Void>
struct BasicView {
  DType dtype = DType::f32;
  Void* data = nullptr;
  Shape shape{};
  Strides strides{};

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
