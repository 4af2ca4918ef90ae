// Additive attention: scores of a tile and their gradients, one reciprocal for each tanh.
//
// tanh(x + y) = 1 - 2u with u = 1 / (1 + e), e = e^2x e^2y, and its derivative is 4u (eu): eu is 1 - u, without what
// that loses where u is nearly 1. The two exponentials belong to one row each and are made once; what is left for a
// pair is some products and a reciprocal. Where e might leave the range of a float the caller gives x and y themselves,
// and u and the derivative come from tanh.

// n is a whole number of vectors.
void additive_exponents(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(y + i, exp(add(load(x + i), load(x + i))));
}

template <bool kExponents>
inline V additive_u(V q, V k) {
  if constexpr (kExponents) return reciprocal(fma(q, k, set1(1.0F)));
  return fnma(set1(0.5F), tanh(add(q, k)), set1(0.5F));
}

// Rows r .. r+kRows against all keys of the tile; a vector runs along the keys.
template <bool kExponents, int kRows>
inline void additive_score_rows(const AdditiveTile& t, std::int64_t r, const float* w, float half_sum, float factor,
                                float* scores) {
  constexpr int kVectors = kLanes >= 16 ? 4 : 2;  // what the registers hold
  static_assert(kKeyTile % (kVectors * kLanes) == 0);
  for (std::int64_t c = 0; c < kKeyTile; c += kVectors * kLanes) {
    V sum[std::size_t{kRows}][std::size_t{kVectors}];
    for (int i = 0; i < kRows; ++i)
      for (int n = 0; n < kVectors; ++n) sum[i][n] = set1(half_sum);
    for (std::int64_t d = 0; d < t.D; ++d) {
      V k[std::size_t{kVectors}];
      for (int n = 0; n < kVectors; ++n) k[n] = load(t.k + d * kKeyTile + c + n * kLanes);
      const V weight = set1(w[d]);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const V q = set1(t.q[(r + i) * t.stride + d]);
#pragma GCC unroll 4
        for (int n = 0; n < kVectors; ++n) sum[i][n] = fnma(weight, additive_u<kExponents>(q, k[n]), sum[i][n]);
      }
    }
    const V twice = set1(2 * factor);
    for (int i = 0; i < kRows; ++i)
      for (int n = 0; n < kVectors; ++n) store(scores + (r + i) * kKeyTile + c + n * kLanes, mul(twice, sum[i][n]));
  }
}

template <bool kExponents>
inline void additive_scores_of(const AdditiveTile& t, const float* w, float half_sum, float factor, float* scores) {
  constexpr int kRows = kLanes >= 16 ? 4 : 2;
  std::int64_t r = 0;
  for (; r + kRows <= t.rows; r += kRows) additive_score_rows<kExponents, kRows>(t, r, w, half_sum, factor, scores);
  for (; r < t.rows; ++r) additive_score_rows<kExponents, 1>(t, r, w, half_sum, factor, scores);
}

// scores[rows][kKeyTile] = factor * sum over d of w tanh; half_sum is half the sum of w.
void additive_scores(const AdditiveTile& t, const float* w, float half_sum, float factor, float* scores) {
  (t.exponents ? additive_scores_of<true> : additive_scores_of<false>)(t, w, half_sum, factor, scores);
}

// Rows r .. r+kRows and the dimensions of the vector at d; nothing is summed across lanes. ds = 0 hides a key whatever
// it holds: only outside the range of exponents can that be more than a number.
template <bool kExponents, int kRows>
inline void additive_gradient_rows(const AdditiveTile& t, std::int64_t r, std::int64_t d, const float* ds, float* dq,
                                   float* dk, float* dw) {
  V q[std::size_t{kRows}], sum_q[std::size_t{kRows}], sum_w = load(dw + d);
  for (int i = 0; i < kRows; ++i) {
    q[i] = load(t.q + (r + i) * t.stride + d);
    sum_q[i] = load(dq + (r + i) * t.stride + d);
  }
  for (std::int64_t j = 0; j < kKeyTile; ++j) {
    const V k = load(t.k + j * t.stride + d);
    V sum_k = load(dk + j * t.stride + d);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const V given = set1(ds[(r + i) * kKeyTile + j]);
      V part, inside;
      if constexpr (kExponents) {
        const V e = mul(q[i], k), u = reciprocal(add(e, set1(1.0F)));
        part = mul(given, u);
        inside = mul(part, mul(e, u));
      } else {
        const Tanh of = tanh_with_slope(add(q[i], k));
        const auto hidden = equal(given, set1(0.0F));
        part = mul(given, select(hidden, set1(0.0F), fnma(set1(0.5F), of.value, set1(0.5F))));
        inside = mul(given, select(hidden, set1(0.0F), mul(set1(0.25F), of.slope)));
      }
      sum_w = add(sum_w, part);
      sum_q[i] = add(sum_q[i], inside);
      sum_k = add(sum_k, inside);
    }
    store(dk + j * t.stride + d, sum_k);
  }
  for (int i = 0; i < kRows; ++i) store(dq + (r + i) * t.stride + d, sum_q[i]);
  store(dw + d, sum_w);
}

template <bool kExponents>
inline void additive_gradients_of(const AdditiveTile& t, const float* ds, float* dq, float* dk, float* dw) {
  constexpr int kRows = 4;
  for (std::int64_t d = 0; d < t.stride; d += kLanes) {
    std::int64_t r = 0;
    for (; r + kRows <= t.rows; r += kRows) additive_gradient_rows<kExponents, kRows>(t, r, d, ds, dq, dk, dw);
    for (; r < t.rows; ++r) additive_gradient_rows<kExponents, 1>(t, r, d, ds, dq, dk, dw);
  }
}

// With ds[rows][kKeyTile]: dq[rows][stride] and dk[kKeyTile][stride] += sums of ds u (1 - u), dw[stride] += sum of ds
// u.
void additive_gradients(const AdditiveTile& t, const float* ds, float* dq, float* dk, float* dw) {
  (t.exponents ? additive_gradients_of<true> : additive_gradients_of<false>)(t, ds, dq, dk, dw);
}
