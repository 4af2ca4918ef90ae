// The half formats, one element at a time, inline. Everything here is static: code built for an instruction set
// includes it too, and must not leave a copy that others could be linked to.
#pragma once

#include <cstdint>

namespace attend {

static inline float bf16_to_float(std::uint16_t half) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(half) << 16);
}

static inline std::uint16_t float_to_bf16(float x) {  // to nearest even; a NaN is made quiet
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

static inline float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t rest = half & 0x7FFFU;
  if (rest >= 0x7C00U) {  // inf, or NaN made quiet, as the hardware's conversion does
    const std::uint32_t quiet = rest > 0x7C00U ? 0x400000U : 0U;
    return __builtin_bit_cast(float, sign | 0x7F800000U | quiet | ((rest & 0x3FFU) << 13));
  }
  if (rest >= 0x400U) return __builtin_bit_cast(float, sign | ((rest << 13) + (112U << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24F;  // zero and subnormals: exact
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, magnitude));
}

static inline std::uint16_t float_to_f16(float x) {  // to nearest even; a NaN is made quiet
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t rest = bits & 0x7FFFFFFFU;
  std::uint32_t half;
  if (rest > 0x7F800000U) {
    half = 0x7E00U | ((rest >> 13) & 0x3FFU);
  } else if (rest >= 0x47800000U) {  // 65536 and up; from 65520 on the next branch carries into inf by itself
    half = 0x7C00U;
  } else if (rest >= 0x38800000U) {  // normal: 2^-14 and up
    half = (rest - (112U << 23) + 0xFFFU + ((rest >> 13) & 1U)) >> 13;
  } else {  // 0.5 has steps of 2^-24, the subnormals' own: adding it rounds to nearest even
    half = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, rest) + 0.5F) - 0x3F000000U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace attend
