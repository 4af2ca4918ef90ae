// Numbers of 8 bits as pairs of bf16, which hold them exactly: of four bytes the even ones, or the odd ones.
#pragma once

#include "cuda/ptx.cuh"

namespace attend::cuda {

struct Int8 {
  std::int8_t bits;
};
struct Fp8 {  // e4m3
  std::uint8_t bits;
};

// x = (x & 127) - (x & 128), both made behind the exponent of 128, where a step of the last bit is 1.
__device__ __forceinline__ std::uint32_t widen_int8(std::uint32_t even_bytes) {
  constexpr std::uint32_t k128 = 0x43004300U;
  return subtract_pairs((even_bytes & 0x007F007FU) | k128, (even_bytes & 0x00800080U) | k128);
}
__device__ __forceinline__ std::uint32_t widen_fp8(std::uint16_t two) {
  const std::uint32_t halves = widen_e4m3(two);
  return pack<Bf16>(__half2float(__ushort_as_half(static_cast<unsigned short>(halves))),
                    __half2float(__ushort_as_half(static_cast<unsigned short>(halves >> 16))));
}

template <class Stored>
__device__ __forceinline__ std::uint32_t even(std::uint32_t four) {
  if constexpr (std::is_same_v<Stored, Int8>)
    return widen_int8(four);
  else
    return widen_fp8(static_cast<std::uint16_t>(__byte_perm(four, 0, 0x4420)));
}
template <class Stored>
__device__ __forceinline__ std::uint32_t odd(std::uint32_t four) {
  if constexpr (std::is_same_v<Stored, Int8>)
    return widen_int8(four >> 8);
  else
    return widen_fp8(static_cast<std::uint16_t>(__byte_perm(four, 0, 0x4431)));
}

// A pair of f16 as bf16, and what that rounding took.
__device__ __forceinline__ void split_halves(std::uint32_t& pair, std::uint32_t& rest) {
  const float low = __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
  const float high = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
  pair = pack<Bf16>(low, high);
  rest = pack<Bf16>(low - low_float(pair), high - high_float(pair));
}

}  // namespace attend::cuda
