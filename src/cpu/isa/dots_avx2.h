// Products of bytes without VNNI: VPMADDUBSW makes sums of two products, which must fit 16 bits. Bytes of x are at most
// 127, so numbers of four bits leave room for eight such sums and those of six for one; bytes are taken as two nibbles.
// Included after simd_avx2.h.
#include "cpu/isa/packed.h"

constexpr int kDotRows = 3;
template <int Bits>
constexpr int kDotVectors = Bits == 8 ? 1 : 2;
constexpr int kLoneRowVectors = 2;

using DotInput = __m256i;
template <int Bits>
struct DotWeights {
  __m256i bytes;
};
template <>
struct DotWeights<8> {
  __m256i low, high;
};
template <int Bits>
struct DotSum {
  __m256i sum;  // of 16 bits each for four bits, else of 32
};
template <>
struct DotSum<8> {
  __m256i low, high;  // of 16 bits each
};

inline DotInput dot_input(const std::int8_t* p) {
  int four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}
template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  if constexpr (Bits == 8)
    return {reinterpret_cast<__m256i>(bytes & 0x0F0F0F0FU), reinterpret_cast<__m256i>(bytes >> 4 & 0x0F0F0F0FU)};
  else
    return {reinterpret_cast<__m256i>(bytes)};
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t) {
  if constexpr (Bits == 8)
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
  else
    return {_mm256_setzero_si256()};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, DotInput x) {
  if constexpr (Bits == 8) {
    sum.low = _mm256_add_epi16(sum.low, _mm256_maddubs_epi16(w.low, x));
    sum.high = _mm256_add_epi16(sum.high, _mm256_maddubs_epi16(w.high, x));
  } else if constexpr (Bits == 4) {
    sum.sum = _mm256_add_epi16(sum.sum, _mm256_maddubs_epi16(w.bytes, x));
  } else {
    const __m256i two = _mm256_maddubs_epi16(w.bytes, x);
    sum.sum = _mm256_add_epi32(sum.sum, _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
  }
}
// What was begun at 0 and should have begun at `start` times 2^(Bits-1).
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t start) {
  __m256i total;
  if constexpr (Bits == 8)
    total = _mm256_add_epi32(_mm256_madd_epi16(sum.low, _mm256_set1_epi16(1)),
                             _mm256_madd_epi16(sum.high, _mm256_set1_epi16(16)));
  else if constexpr (Bits == 4)
    total = _mm256_madd_epi16(sum.sum, _mm256_set1_epi16(1));
  else
    total = sum.sum;
  if constexpr (Centred) total = _mm256_add_epi32(total, _mm256_slli_epi32(_mm256_set1_epi32(start), Bits - 1));
  return _mm256_cvtepi32_ps(total);
}
