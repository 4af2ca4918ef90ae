// Pairs of bf16: VDPBF16PS multiplies sixteen pairs of a and b and adds both products to sixteen floats. Included after
// simd_avx512.h.
struct PairFormat {
  using Element = std::uint32_t;  // two neighbours along the sum, the first in the low half
  using Vector = __m512bh;
  using Stored = Element;
  static constexpr bool kPrefetchesNext = false;
  static constexpr int kRows = 1;
  static Vector from_bits(V x) { return reinterpret_cast<__m512bh>(x); }
};
inline __m512bh as_pairs(__m512i x) {
  return reinterpret_cast<__m512bh>(x);
}

inline __m512bh load_elements(const std::uint32_t* p) {
  return as_pairs(_mm512_loadu_si512(p));
}
inline __m512bh set1_element(std::uint32_t x) {
  return as_pairs(_mm512_set1_epi32(static_cast<int>(x)));
}
inline V multiply_add(__m512bh a, __m512bh b, V c) {
  return _mm512_dpbf16_ps(c, a, b);
}
inline V low_halves(const std::uint32_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline V high_halves(const std::uint32_t* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)));
}

// Sixteen floats to bf16, to nearest even.
inline __m256i to_halves(V x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
}
inline V widen_halves(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline void store_halves(std::uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_halves(x));
}
inline __m512i interleave(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}
// Sixteen elements from two rows.
inline void store_pairs(std::uint32_t* p, V low, V high) {
  _mm512_storeu_si512(p, interleave(to_halves(low), to_halves(high)));
}
inline __m512i interleave(const std::uint16_t* low, const std::uint16_t* high) {
  return interleave(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)),
                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
}
inline void store_pairs(std::uint32_t* p, const std::uint16_t* low, const std::uint16_t* high) {
  _mm512_storeu_si512(p, interleave(low, high));
}
// The largest exponents of elements: whether one of them is an inf or NaN is asked once, at the end.
struct Exponents {
  __m512i largest = _mm512_setzero_si512();
  void see(__m512i elements) {
    largest = _mm512_max_epu16(largest, _mm512_and_si512(elements, _mm512_set1_epi16(0x7F80)));
  }
  void see(const std::uint32_t* p) { see(_mm512_loadu_si512(p)); }
  bool finite() const { return _mm512_cmpeq_epi16_mask(largest, _mm512_set1_epi16(0x7F80)) == 0; }
};
// 32 numbers of two rows: as they lie, and as elements that hold one of each row.
inline void split_rows(const char* low, const char* high, std::uint32_t* low_row, std::uint32_t* high_row,
                       std::uint32_t* both, Exponents& exponents) {
  const __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(high);
  _mm512_storeu_si512(low_row, a);
  _mm512_storeu_si512(high_row, b);
  exponents.see(a);
  exponents.see(b);
  _mm512_storeu_si512(both, interleave(_mm512_castsi512_si256(a), _mm512_castsi512_si256(b)));
  _mm512_storeu_si512(both + 16, interleave(_mm512_extracti64x4_epi64(a, 1), _mm512_extracti64x4_epi64(b, 1)));
}

// 2^t to 3.1 ULP in eight operations, for weights that are rounded to bf16: 2^floor(t) times a fit of 2^r, 0 <= r < 1,
// that is exactly 1 at 0. -inf gives 0; NaN stays NaN.
inline V exp2_bf16(V t) {
  const V r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  V p = fma(r, set1(1.867130166e-3F), set1(9.017029777e-3F));
  p = fma(r, p, set1(5.579991266e-2F));
  p = fma(r, p, set1(2.401644439e-1F));
  p = fma(r, p, set1(6.931512952e-1F));
  p = fma(r, p, set1(1.0F));
  return _mm512_scalef_ps(p, t);
}

// Sixteen elements from 32 int8: whole numbers below 2^8 fit bf16 exactly.
inline __m512i load_int8_pairs(const void* src) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(src)));
  const V low = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24));
  const V high = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(x, 16), 24));
  const __m512i top = _mm512_and_si512(_mm512_castps_si512(high), _mm512_set1_epi32(-65536));
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), top);
}
inline void store_int8_pairs(std::uint32_t* p, const std::int8_t* src) {
  _mm512_storeu_si512(p, load_int8_pairs(src));
}
