// Dtypes, the half formats, strides, and the tensor that owns its memory.
#include "attend/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"

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
  const std::uint32_t sign = (x.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = x.bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: multiples of 2^-24
    return std::copysign(static_cast<float>(mantissa) * 0x1p-24F, std::bit_cast<float>(sign));
  }
  if (exponent == 31) {  // inf, or NaN made quiet, as the hardware's conversion does
    const std::uint32_t quiet = mantissa == 0 ? 0 : 0x400000U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

Float16 to_float16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half;
  if (magnitude > 0x7f800000U) {  // NaN: quiet, with the top of its payload
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520, halfway past the largest, and up
    half = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // normal: 2^-14 and up
    const std::uint32_t rebased = magnitude - (112U << 23);
    half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
  } else {  // 0.5 has steps of 2^-24, the subnormals' own: adding it rounds to nearest even
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

BFloat16 to_bfloat16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

Strides contiguous_strides(const Shape& shape) {
  const auto [B, H, M, D] = shape;
  checked_product("elements of a contiguous tensor", {B, H, M, D});
  const char* what = "stride of a contiguous tensor";
  return {checked_product(what, {H, M, D}), checked_product(what, {M, D}), D, 1};
}

Strides length_major_strides(const Shape& shape) {
  const auto [B, H, M, D] = shape;
  checked_product("elements of a length-major tensor", {B, H, M, D});
  const char* what = "stride of a length-major tensor";
  return {checked_product(what, {M, H, D}), D, checked_product(what, {H, D}), 1};
}

Tensor::Tensor(DType dtype, const Shape& shape) : view_{dtype, nullptr, shape, contiguous_strides(shape)} {
  const std::int64_t bytes =
      checked_product("bytes of a tensor", {shape[0], shape[1], shape[2], shape[3], size_of(dtype)});
  // At least one byte: a tensor without elements still differs from no tensor.
  const std::size_t allocated = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  memory_.reset(::operator new(allocated, kAlignment));
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
