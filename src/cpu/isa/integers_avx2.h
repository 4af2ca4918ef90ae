// Integers in the vectors of AVX2. Included after simd_avx2.h.
using Integers = __m256i;

inline Integers zeros() {
  return _mm256_setzero_si256();
}
inline Integers set_32(int x) {
  return _mm256_set1_epi32(x);
}
inline Integers set_16(short x) {
  return _mm256_set1_epi16(x);
}
inline Integers add_32(Integers a, Integers b) {
  return _mm256_add_epi32(a, b);
}
inline Integers add_16(Integers a, Integers b) {
  return _mm256_add_epi16(a, b);
}
// Sums of two products: of unsigned and signed bytes, to 16 bits, and of 16 bits, to 32.
inline Integers multiply_bytes(Integers a, Integers b) {
  return _mm256_maddubs_epi16(a, b);
}
inline Integers multiply_16(Integers a, Integers b) {
  return _mm256_madd_epi16(a, b);
}
template <int Count>
[[gnu::always_inline]] inline Integers shift_left(Integers x) {  // of 32 bits each
  return _mm256_slli_epi32(x, Count);
}
inline V to_floats(Integers x) {  // of 32 bits each
  return _mm256_cvtepi32_ps(x);
}
