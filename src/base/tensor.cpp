// Dtypes, the half formats, strides, and the tensor that owns its memory.
#include "attend/tensor.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "attend/runtime.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/half.hpp"

namespace attend {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
  }
  return "unknown";
}

std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f64:
      return 8;
  }
  fail("size_of", "dtype is " + std::to_string(static_cast<std::int32_t>(dtype)) + ", expected f32, f16, bf16 or f64");
}

float to_float(Float16 x) {
  return f16_to_float(x.bits);
}
float to_float(BFloat16 x) {
  return bf16_to_float(x.bits);
}
Float16 to_float16(float x) {
  return {float_to_f16(x)};
}
BFloat16 to_bfloat16(float x) {
  return {float_to_bf16(x)};
}

Strides contiguous_strides(const Shape& shape) {
  const auto [B, H, M, D] = shape;
  if (checked_product("elements of a contiguous tensor", {B, H, M, D}) == 0)
    return {0, 0, 0, 0};  // no element is reached
  const char* what = "stride of a contiguous tensor";
  return {checked_product(what, {H, M, D}), checked_product(what, {M, D}), D, 1};
}

Strides length_major_strides(const Shape& shape) {
  const auto [B, H, M, D] = shape;
  if (checked_product("elements of a length-major tensor", {B, H, M, D}) == 0) return {0, 0, 0, 0};
  const char* what = "stride of a length-major tensor";
  return {checked_product(what, {M, H, D}), D, checked_product(what, {H, D}), 1};
}

Tensor::Tensor(DType dtype, const Shape& shape) : view_{dtype, nullptr, shape, contiguous_strides(shape)} {
  const std::int64_t bytes =
      checked_product("bytes of a tensor", {shape[0], shape[1], shape[2], shape[3], size_of(dtype)});
  // At least one byte: a tensor without elements still differs from no tensor.
  const std::size_t allocated = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  memory_.reset(::operator new(allocated, kAlignment));
  use_large_pages(memory_.get(), bytes);
  std::memset(memory_.get(), 0, allocated);
  view_.data = memory_.get();
}

Tensor::Tensor(Tensor&& other) noexcept
    : memory_(std::move(other.memory_)), view_(std::exchange(other.view_, MutableView{})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  memory_ = std::move(other.memory_);
  view_ = std::exchange(other.view_, MutableView{});
  return *this;
}

std::int64_t Tensor::size() const {
  const auto [B, H, M, D] = view_.shape;
  return checked_product("elements of a tensor", {B, H, M, D});
}

std::int64_t Tensor::bytes() const {
  return size() * size_of(view_.dtype);
}

Tensor Tensor::clone() const {
  if (empty()) return {};
  Tensor copy(dtype(), shape());
  std::memcpy(copy.memory_.get(), memory_.get(), static_cast<std::size_t>(bytes()));
  return copy;
}

void Tensor::require(DType dtype) const {
  check_dtype("Tensor::data", "tensor", view_.dtype, dtype);
}

void Tensor::Free::operator()(void* p) const noexcept {
  ::operator delete(p, kAlignment);
}

}  // namespace attend
