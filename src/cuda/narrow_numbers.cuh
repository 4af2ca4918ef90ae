// Numbers of 8 bits as pairs of f16, which holds them exactly: of four bytes two at a time.
#pragma once

#include "cuda/ptx.cuh"

namespace attend::cuda {

struct Int8 {
  std::int8_t bits;
};
struct Fp8 {  // e4m3
  std::uint8_t bits;
};

__device__ __forceinline__ float float_of_half(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Keys: two of four bytes as f16, the even or the odd ones of int8, the first or the last two of fp8.
template <class Stored, int kWhich>
__device__ __forceinline__ std::uint32_t narrow_keys(std::uint32_t four) {
  if constexpr (std::is_same_v<Stored, Int8>)  // x + 128 behind the exponent of 1024, where a step of the last bit is 1
    return subtract_halves(mask_and_flip(kWhich ? four >> 8 : four, 0x00FF00FFU, 0x64806480U), 0x64806480U);
  else
    return widen_e4m3(static_cast<std::uint16_t>(kWhich ? four >> 16 : four));
}
// Queries to go with them: of the pairs that lie together, those that meet the first and the second of the above.
template <class Stored>
__device__ __forceinline__ void order_queries(std::uint32_t& first, std::uint32_t& second) {
  if constexpr (std::is_same_v<Stored, Int8>) {
    const std::uint32_t even = __byte_perm(first, second, 0x5410);
    second = __byte_perm(first, second, 0x7632), first = even;
  }
}

// Values: the even or the odd ones of four bytes.
template <class Stored, int kOdd>
__device__ __forceinline__ std::uint32_t narrow_values(std::uint32_t four) {
  if constexpr (std::is_same_v<Stored, Int8>)
    return narrow_keys<Stored, kOdd>(four);
  else
    return widen_e4m3(static_cast<std::uint16_t>(__byte_perm(four, 0, kOdd ? 0x4431 : 0x4420)));
}

}  // namespace attend::cuda
