// Integers in the vectors of AVX-512. Included after simd_avx512.h.
using Integers = __m512i;

inline Integers zeros() {
  return _mm512_setzero_si512();
}
inline Integers set_32(int x) {
  return _mm512_set1_epi32(x);
}
inline Integers set_16(short x) {
  return _mm512_set1_epi16(x);
}
inline Integers add_32(Integers a, Integers b) {
  return _mm512_add_epi32(a, b);
}
inline Integers add_16(Integers a, Integers b) {
  return _mm512_add_epi16(a, b);
}
// Sums of two products: of unsigned and signed bytes, to 16 bits, and of 16 bits, to 32.
inline Integers multiply_bytes(Integers a, Integers b) {
  return _mm512_maddubs_epi16(a, b);
}
inline Integers multiply_16(Integers a, Integers b) {
  return _mm512_madd_epi16(a, b);
}
template <int Count>
[[gnu::always_inline]] inline Integers shift_left(Integers x) {  // of 32 bits each
  return _mm512_slli_epi32(x, Count);
}
inline V to_floats(Integers x) {  // of 32 bits each
  return _mm512_cvtepi32_ps(x);
}
