// Eight floats at a time: AVX2, FMA and F16C. Included by one source file alone, inside its anonymous namespace.
using V = __m256;
using Mask = __m256;
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 6 x 2 accumulators, 2 vectors of b and 1 broadcast: 15 of 16 registers
constexpr int kTileVectors = 2;

inline V load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, V x) {
  _mm256_storeu_ps(p, x);
}
inline V set1(float x) {
  return _mm256_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm256_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm256_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm256_mul_ps(a, b);
}
inline V div(V a, V b) {
  return _mm256_div_ps(a, b);
}
inline V reciprocal(V x) {
  return _mm256_div_ps(_mm256_set1_ps(1.0F), x);
}
inline V fma(V a, V b, V c) {
  return _mm256_fmadd_ps(a, b, c);
}  // a * b + c
inline V fnma(V a, V b, V c) {
  return _mm256_fnmadd_ps(a, b, c);
}  // c - a * b
inline V max(V a, V b) {
  return _mm256_max_ps(a, b);
}  // b if either is NaN
inline V min(V a, V b) {
  return _mm256_min_ps(a, b);
}  // b if either is NaN
inline V abs(V a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a);
}
inline V copy_sign(V magnitude, V sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0F)));
}
inline Mask less(V a, V b) {
  return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
inline Mask equal(V a, V b) {
  return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
inline bool any(Mask m) {
  return _mm256_movemask_ps(m) != 0;
}
inline std::uint64_t bits(Mask m) {
  return static_cast<unsigned>(_mm256_movemask_ps(m));
}  // bit n is lane n
inline bool all(Mask m) {
  return _mm256_movemask_ps(m) == 0xFF;
}
inline V select(Mask m, V a, V b) {
  return _mm256_blendv_ps(b, a, m);
}  // m ? a : b
inline V add_where(Mask m, V a, V b) {
  return _mm256_add_ps(a, _mm256_and_ps(m, b));
}  // m ? a + b : a
inline V round(V x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V times_power_of_two(V x, V n) {  // n whole; at -127 and below the factor is 0, from 128 on inf
  const V bounded = _mm256_min_ps(_mm256_set1_ps(128.0F), _mm256_max_ps(_mm256_set1_ps(-127.0F), n));
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
inline V iota() {
  return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}
inline float reduce_max(V x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}
inline float reduce_add(V x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}

inline V load_int8(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline V load_uint8(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store_int8(std::int8_t* p, V x) {  // x whole, from -128 to 127
  const __m256i wide = _mm256_cvtps_epi32(x);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}
inline V load_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline void store_f16(void* p, V x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V load_bf16(const void* p) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
inline void store_bf16(void* p, V x) {  // round to nearest even; NaN stays NaN
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// Numbers 0, 2, 4, ... and 1, 3, 5, ... of the sixteen in a and b, and back.
inline void split_pairs(V a, V b, V& even, V& odd) {
  const V low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  even = _mm256_shuffle_ps(low, high, 0x88);
  odd = _mm256_shuffle_ps(low, high, 0xDD);
}
inline void join_pairs(V even, V odd, V& a, V& b) {
  const V low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}

// Row r of the block becomes column r.
inline void transpose(V (&x)[kLanes]) {
  V t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    x[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    x[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    x[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    x[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
    t[4 + i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) x[i] = t[i];
}

// Number j of eight rows into x[j]. The pieces of two rows are joined as they are loaded: half the shuffles of a
// transposition.
inline void load_four_columns(const float* p, std::int64_t row, V (&x)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + i * row)), _mm_loadu_ps(p + (i + 4) * row), 1);
  const V a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
  const V c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
  x[0] = _mm256_shuffle_ps(a, c, 0x44);
  x[1] = _mm256_shuffle_ps(a, c, 0xEE);
  x[2] = _mm256_shuffle_ps(b, d, 0x44);
  x[3] = _mm256_shuffle_ps(b, d, 0xEE);
}
