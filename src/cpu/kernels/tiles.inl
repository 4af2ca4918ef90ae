// Tiles of keys and values as the products read them, packed for one call or kept in a cache. In a cache a smaller type
// than Math's own lies in the same order and is widened when the tile is read.

template <class Math>
struct PackedTile {
  typename Math::Element *k, *v;
  bool* v_finite;
};
template <class Math>
inline PackedTile<Math> take_tile(std::int64_t D, std::int64_t E, Carver& carver) {
  using Element = typename Math::Element;
  return {carver.take<Element>(Math::kTerms * Math::depth(D) * kKeyTile),
          carver.take<Element>(Math::kTerms * kKeyTile / Math::kPack * round_up(E, kLanes)), carver.take<bool>(1)};
}

// Numbers of a smaller type. int8 has a scale for each key.
struct StoredTile {
  char *k, *v;
  float *k_scales, *v_scales;
  bool* v_finite;
};
template <class Math>
inline StoredTile take_stored_tile(StoredAs stored, std::int64_t D, std::int64_t E, Carver& carver) {
  const std::int64_t size = stored == StoredAs::int8 ? 1 : 2, scales = stored == StoredAs::int8 ? kKeyTile : 0;
  return {carver.take<char>(Math::depth(D) * Math::kPack * kKeyTile * size),
          carver.take<char>(kKeyTile * round_up(E, kLanes) * size), carver.take<float>(scales),
          carver.take<float>(scales), carver.take<bool>(1)};
}

template <class Math>
StoredAs cache_stored_as_with(const CacheShape& shape) {
  if (shape.int8) return StoredAs::int8;
  if (shape.dtype == DType::f32 || Math::kPack == 2) return StoredAs::packed;
  return shape.dtype == DType::bf16 ? StoredAs::bf16 : StoredAs::f16;
}

template <class Math>
std::int64_t cache_tile_bytes_with(const CacheShape& shape) {
  Carver carver{nullptr};
  const StoredAs stored = cache_stored_as_with<Math>(shape);
  if (stored == StoredAs::packed)
    take_tile<Math>(shape.D, shape.E, carver);
  else
    take_stored_tile<Math>(stored, shape.D, shape.E, carver);
  return carver.used;
}

// A fresh tile: zeros, because the places of keys to come are multiplied by zero weights.
template <class Math>
void cache_clear_with(const CacheShape& shape, char* tile) {
  __builtin_memset(tile, 0, static_cast<std::size_t>(cache_tile_bytes_with<Math>(shape)));
  Carver carver{tile};
  const StoredAs stored = cache_stored_as_with<Math>(shape);
  *(stored == StoredAs::packed ? take_tile<Math>(shape.D, shape.E, carver).v_finite
                               : take_stored_tile<Math>(stored, shape.D, shape.E, carver).v_finite) = true;
}

inline bool all_finite(const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (!(x[i] - x[i] == 0.0F)) return false;
  return true;
}

// Number `at` of a tile. A number that does not fit its type exactly is rounded to nearest.
inline void store_number(StoredAs stored, bool pairs, char* numbers, std::int64_t at, float x, float per_scale) {
  if (stored == StoredAs::int8) {
    // No scale: a row of zeros, or one that is not finite, whose scale makes all of it NaN.
    numbers[at] = static_cast<char>(per_scale == 0.0F ? 0 : static_cast<std::int8_t>(__builtin_rintf(x * per_scale)));
  } else if (stored == StoredAs::packed && !pairs) {
    __builtin_memcpy(numbers + 4 * at, &x, 4);
  } else {
    store_one(stored == StoredAs::f16 ? DType::f16 : DType::bf16, numbers + 2 * at, x);
  }
}

// The scale of an int8 row, and what to multiply by before rounding. A row that is not finite comes back as NaN.
struct Int8Scale {
  float scale, inverse;
};
inline Int8Scale int8_scale(const float* x, std::int64_t n) {
  if (!all_finite(x, n)) return {__builtin_nanf(""), 0.0F};
  float top = 0.0F;
  for (std::int64_t i = 0; i < n; ++i) top = __builtin_fabsf(x[i]) > top ? __builtin_fabsf(x[i]) : top;
  const float scale = top / 127.0F;
  return scale > 1e-37F ? Int8Scale{scale, 1.0F / scale} : Int8Scale{0.0F, 0.0F};
}

// A tile of a cache, of whichever type.
template <class Math>
inline StoredTile cache_tile(const CacheShape& shape, StoredAs stored, char* tile) {
  Carver carver{tile};
  if (stored != StoredAs::packed) return take_stored_tile<Math>(stored, shape.D, shape.E, carver);
  const PackedTile<Math> own = take_tile<Math>(shape.D, shape.E, carver);
  return {reinterpret_cast<char*>(own.k), reinterpret_cast<char*>(own.v), nullptr, nullptr, own.v_finite};
}
// Where number d of key j lies among the keys, and number e of it among the values.
template <class Math>
inline std::int64_t key_place(std::int64_t j, std::int64_t d) {
  constexpr std::int64_t P = Math::kPack;
  return (d / P * kKeyTile + j) * P + d % P;
}
template <class Math>
inline std::int64_t value_place(std::int64_t j, std::int64_t e, std::int64_t Ep) {
  constexpr std::int64_t P = Math::kPack;
  return (j / P * Ep + e) * P + j % P;
}

template <class Math>
void cache_write_with(const CacheShape& shape, const Operand& k, const Operand& v, std::int64_t hk, std::int64_t i,
                      std::int64_t count, std::int64_t at, char* tile, float* row) {
  const std::int64_t Ep = round_up(shape.E, kLanes);
  const StoredAs stored = cache_stored_as_with<Math>(shape);
  const StoredTile t = cache_tile<Math>(shape, stored, tile);
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t j = at + n;
    const auto put = [&](const Operand& x, std::int64_t dim, char* numbers, float* scales, auto index) {
      load_row(x.dtype, element(x, 0, hk, i + n), x.dim_stride, dim, row);
      float per_scale = 0.0F;
      if (stored == StoredAs::int8) {
        const Int8Scale s = int8_scale(row, dim);
        scales[j] = s.scale;
        per_scale = s.inverse;
      }
      for (std::int64_t d = 0; d < dim; ++d)
        store_number(stored, Math::kPack == 2, numbers, index(d), row[d], per_scale);
    };
    put(k, shape.D, t.k, t.k_scales, [&](std::int64_t d) { return key_place<Math>(j, d); });
    put(v, shape.E, t.v, t.v_scales, [&](std::int64_t e) { return value_place<Math>(j, e, Ep); });
    *t.v_finite &= all_finite(row, shape.E);
  }
}

// Number `at` of a tile, as a float; what int8 has to be multiplied by stands beside it.
inline float load_number(StoredAs stored, bool pairs, const char* numbers, std::int64_t at) {
  if (stored == StoredAs::int8) return static_cast<float>(static_cast<std::int8_t>(numbers[at]));
  float x = 0.0F;
  const DType dtype = stored == StoredAs::packed && !pairs ? DType::f32
                      : stored == StoredAs::f16            ? DType::f16
                                                           : DType::bf16;
  load_row(dtype, numbers + at * element_size(dtype), 1, 1, &x);
  return x;
}
// Key `at` of a tile and its value, as the products see them: k [D], v [E].
template <class Math>
void cache_read_with(const CacheShape& shape, char* tile, std::int64_t at, float* k, float* v) {
  const StoredAs stored = cache_stored_as_with<Math>(shape);
  const StoredTile t = cache_tile<Math>(shape, stored, tile);
  const std::int64_t Ep = round_up(shape.E, kLanes);
  const float k_scale = stored == StoredAs::int8 ? t.k_scales[at] : 1.0F;
  const float v_scale = stored == StoredAs::int8 ? t.v_scales[at] : 1.0F;
  for (std::int64_t d = 0; d < shape.D; ++d)
    k[d] = k_scale * load_number(stored, Math::kPack == 2, t.k, key_place<Math>(at, d));
  for (std::int64_t e = 0; e < shape.E; ++e)
    v[e] = v_scale * load_number(stored, Math::kPack == 2, t.v, value_place<Math>(at, e, Ep));
}

// Prefetches the same place of the next tile as it goes: all of it at once would fill the queue of memory requests.
inline void widen(StoredAs stored, const char* src, std::int64_t n, float* dst, std::int64_t to_next) {
  constexpr std::int64_t kLine = 32;  // numbers in a cache line
  const auto convert = [&](auto load_half) {
    std::int64_t i = 0;
    for (; i + kLine <= n; i += kLine) {
      __builtin_prefetch(src + 2 * i + to_next, 0, 2);
      for (std::int64_t k = 0; k < kLine; k += kLanes) store(dst + i + k, load_half(src + 2 * (i + k)));
    }
    for (; i < n; i += kLanes) store(dst + i, load_half(src + 2 * i));
  };
  if (stored == StoredAs::bf16)
    convert([](const char* x) { return load_bf16(x); });
  else
    convert([](const char* x) { return load_f16(x); });
}

// A stored tile into packed operands; what is left to apply are the scales of int8. The next one lies `to_next` bytes
// on.
template <class Math>
inline StoredTile widen_tile(const AttentionProblem& p, char* data, std::int64_t to_next, const PackedTile<Math>& dst) {
  const StoredAs stored = p.packed->stored;
  Carver carver{data};
  StoredTile t = take_stored_tile<Math>(stored, p.D, p.E, carver);
  const std::int64_t Ep = round_up(p.E, kLanes);
  if (stored == StoredAs::int8) {
    Math::widen_int8(reinterpret_cast<const std::int8_t*>(t.k), Math::depth(p.D) * kKeyTile, dst.k);
    Math::widen_int8(reinterpret_cast<const std::int8_t*>(t.v), kKeyTile / Math::kPack * Ep, dst.v);
    return t;
  }
  if constexpr (Math::kPack == 1) {
    widen(stored, t.k, p.D * kKeyTile, dst.k, to_next);
    widen(stored, t.v, kKeyTile * Ep, dst.v, to_next);
  }
  t.k_scales = t.v_scales = nullptr;
  return t;
}

// Scores or weights times the scale of their key. A zero stays one, whatever the scale: it may be NaN.
inline void scale_columns(const Block& block, float* scores, const float* scales) {
  const V zero = set1(0.0F);
  for (std::int64_t r = 0; r < block.rows; ++r)
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      const V x = load(scores + r * kKeyTile + c);
      store(scores + r * kKeyTile + c, select(equal(x, zero), zero, mul(x, load(scales + c))));
    }
}
