// The rotation of the pairs of rows, or back: two products and a sum each, none of them fused, so that every
// instruction set gives the same bits.

struct RotatedPair {
  V first, second;
};
template <bool kBackward>
inline RotatedPair rotated(V u, V v, V cosine, V sine) {
  const V uc = mul(u, cosine), vs = mul(v, sine), vc = mul(v, cosine), us = mul(u, sine);
  if constexpr (kBackward) return {add(uc, vs), sub(vc, us)};
  return {sub(uc, vs), add(vc, us)};
}

// Pair i of the row is (x[i * step], x[i * step + partner]); those that fill no vector.
template <bool kBackward>
inline void rope_tail(const float* x, const float* cosines, const float* sines, std::int64_t begin, std::int64_t pairs,
                      std::int64_t step, std::int64_t partner, float* y) {
  for (std::int64_t i = begin; i < pairs; ++i) {
    const float u = x[i * step], v = x[i * step + partner], c = cosines[i], s = kBackward ? -sines[i] : sines[i];
    y[i * step] = u * c - v * s;
    y[i * step + partner] = v * c + u * s;
  }
}

template <bool kBackward>
inline void rope_halves(const float* x, const float* cosines, const float* sines, std::int64_t pairs, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const RotatedPair p = rotated<kBackward>(load(x + i), load(x + pairs + i), load(cosines + i), load(sines + i));
    store(y + i, p.first);
    store(y + pairs + i, p.second);
  }
  rope_tail<kBackward>(x, cosines, sines, i, pairs, 1, pairs, y);
}

template <bool kBackward>
inline void rope_neighbours(const float* x, const float* cosines, const float* sines, std::int64_t pairs, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    V u, v, a, b;
    split_pairs(load(x + 2 * i), load(x + 2 * i + kLanes), u, v);
    const RotatedPair p = rotated<kBackward>(u, v, load(cosines + i), load(sines + i));
    join_pairs(p.first, p.second, a, b);
    store(y + 2 * i, a);
    store(y + 2 * i + kLanes, b);
  }
  rope_tail<kBackward>(x, cosines, sines, i, pairs, 2, 1, y);
}

void rope_rows(const RopeRows& rows, const float* cosines, const float* sines, std::int64_t pairs, bool interleaved,
               bool backward) {
  const float* x = rows.x;
  float* y = rows.y;
  for (std::int64_t r = 0; r < rows.count; ++r, x += rows.size, y += rows.size) {
    if (interleaved)
      (backward ? rope_neighbours<true> : rope_neighbours<false>)(x, cosines, sines, pairs, y);
    else
      (backward ? rope_halves<true> : rope_halves<false>)(x, cosines, sines, pairs, y);
    for (std::int64_t d = 2 * pairs; d < rows.size; ++d) y[d] = x[d];
  }
}
