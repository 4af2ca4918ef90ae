// Sixteen floats at a time: AVX-512 F, BW, DQ, VL. Included by one source file alone, inside its anonymous namespace.
using V = __m512;
using Mask = __mmask16;
constexpr int kLanes = 16;
constexpr int kTileRows = 6;  // 6 x 4 accumulators, 4 vectors of b and 1 broadcast: 29 of 32 registers
constexpr int kTileVectors = 4;

inline V load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, V x) {
  _mm512_storeu_ps(p, x);
}
inline V set1(float x) {
  return _mm512_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm512_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm512_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm512_mul_ps(a, b);
}
inline V div(V a, V b) {
  return _mm512_div_ps(a, b);
}
inline V reciprocal(V x) {  // an estimate and a Newton step: 1 ULP, for finite x from 1 up
  const V r = _mm512_rcp14_ps(x);
  return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(x, r, _mm512_set1_ps(1.0F)), r);
}
inline V fma(V a, V b, V c) {
  return _mm512_fmadd_ps(a, b, c);
}  // a * b + c
inline V fnma(V a, V b, V c) {
  return _mm512_fnmadd_ps(a, b, c);
}  // c - a * b
inline V max(V a, V b) {
  return _mm512_max_ps(a, b);
}  // b if either is NaN
inline V min(V a, V b) {
  return _mm512_min_ps(a, b);
}  // b if either is NaN
inline V abs(V a) {
  return _mm512_abs_ps(a);
}
inline V copy_sign(V magnitude, V sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0F)));
}
inline Mask less(V a, V b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
inline Mask equal(V a, V b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
inline bool any(Mask m) {
  return m != 0;
}
inline std::uint64_t bits(Mask m) {
  return m;
}  // bit n is lane n
inline bool all(Mask m) {
  return m == 0xFFFF;
}
inline V select(Mask m, V a, V b) {
  return _mm512_mask_blend_ps(m, b, a);
}  // m ? a : b
inline V add_where(Mask m, V a, V b) {
  return _mm512_mask_add_ps(a, m, a, b);
}  // m ? a + b : a
inline V round(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V times_power_of_two(V x, V n) {
  return _mm512_scalef_ps(x, n);
}  // n whole; deep underflow gives 0
inline V iota() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline float reduce_max(V x) {
  return _mm512_reduce_max_ps(x);
}
inline float reduce_add(V x) {
  return _mm512_reduce_add_ps(x);
}

inline V load_int8(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline V load_uint8(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_int8(std::int8_t* p, V x) {  // x whole, from -128 to 127
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
inline V load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline void store_f16(void* p, V x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V load_bf16(const void* p) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline void store_bf16(void* p, V x) {  // round to nearest even; NaN stays NaN
#ifdef __AVX512BF16__
  constexpr int kSubnormal = 0x20;  // which the instruction takes for zero
  if (_mm512_fpclass_ps_mask(x, kSubnormal) == 0) [[likely]] {
    _mm256_storeu_si256(static_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    return;
  }
#endif
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// Numbers 0, 2, 4, ... and 1, 3, 5, ... of the 32 in a and b, and back.
inline void split_pairs(V a, V b, V& even, V& odd) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_ps(a, evens, b);
  odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b);
}
inline void join_pairs(V even, V odd, V& a, V& b) {
  const __m512i firsts = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  a = _mm512_permutex2var_ps(even, firsts, odd);
  b = _mm512_permutex2var_ps(even, _mm512_add_epi32(firsts, _mm512_set1_epi32(8)), odd);
}

// Row r of the block becomes column r.
inline void transpose(V (&x)[kLanes]) {
  V t[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    x[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    x[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    x[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    x[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
    x[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xDD);
    x[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
    x[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xDD);
  }
}

// Number j of sixteen rows into x[j]. The pieces of four rows are joined as they are loaded: half the shuffles of a
// transposition.
inline void load_four_columns(const float* p, std::int64_t row, V (&x)[4]) {
  const auto two_rows = [&](std::int64_t r) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + r * row)), _mm_loadu_ps(p + (r + 4) * row), 1);
  };
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x[i] = _mm512_insertf32x8(_mm512_castps256_ps512(two_rows(i)), two_rows(i + 8), 1);
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1])),
                b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3])),
                d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
  x[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
  x[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  x[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
  x[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
