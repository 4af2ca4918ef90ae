// Products of bytes by VPDPBUSD: four unsigned weights times four signed numbers of x, added to an int32. Included
// after simd_avx512.h.
#include "cpu/isa/packed.h"

constexpr int kDotRows = 6;  // 6 x 2 sums, as many floats, 2 vectors of weights and 1 broadcast: 27 of 32 registers
template <int Bits>
constexpr int kDotVectors = 2;
constexpr int kLoneRowVectors = 4;

using DotInput = __m512i;
template <int Bits>
struct DotWeights {
  __m512i bytes;
};
template <int Bits>
struct DotSum {
  __m512i sum;
};

inline DotInput dot_input(const std::int8_t* p) {
  int four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}
template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  return {reinterpret_cast<__m512i>(bytes)};
}
// The sum starts at `start` times 2^(Bits-1), or at 0.
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t start) {
  if constexpr (Centred)
    return {_mm512_slli_epi32(_mm512_set1_epi32(start), Bits - 1)};
  else
    return {_mm512_setzero_si512()};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, DotInput x) {
  sum.sum = _mm512_dpbusd_epi32(sum.sum, w.bytes, x);
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t) {
  return _mm512_cvtepi32_ps(sum.sum);
}
