// Rows of any dtype and stride into f32 scratch and back.

inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

inline std::int64_t element_size(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

// Whether an address may be read as a T: callers' memory may lie anywhere.
template <class T>
inline bool lies_at(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % alignof(T) == 0;
}

inline const char* element(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  return static_cast<const char*>(x.data) +
         (b * x.batch_stride + h * x.head_stride + i * x.row_stride) * element_size(x.dtype);
}
inline char* element_mut(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  return static_cast<char*>(x.data) +
         (b * x.batch_stride + h * x.head_stride + i * x.row_stride) * element_size(x.dtype);
}

inline float load_one(DType dtype, const char* p) {
  if (dtype != DType::f32) {
    std::uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    return dtype == DType::bf16 ? bf16_to_float(half) : f16_to_float(half);
  }
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_one(DType dtype, char* p, float x) {
  if (dtype != DType::f32) {
    const std::uint16_t half = dtype == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
    __builtin_memcpy(p, &half, sizeof half);
    return;
  }
  __builtin_memcpy(p, &x, sizeof x);
}

// n elements to f32.
inline void load_row(DType dtype, const char* src, std::int64_t stride, std::int64_t n, float* dst) {
  std::int64_t d = 0;
  if (stride == 1) {
    if (dtype == DType::f32) {
      for (; d + kLanes <= n; d += kLanes) {
        V x;
        __builtin_memcpy(&x, src + 4 * d, sizeof x);
        store(dst + d, x);
      }
    } else if (dtype == DType::bf16) {
      for (; d + kLanes <= n; d += kLanes) store(dst + d, load_bf16(src + 2 * d));
    } else {
      for (; d + kLanes <= n; d += kLanes) store(dst + d, load_f16(src + 2 * d));
    }
  }
  for (; d < n; ++d) dst[d] = load_one(dtype, src + d * stride * element_size(dtype));
}

// n elements times `factor` from f32. src has room for whole vectors.
inline void store_row(DType dtype, char* dst, std::int64_t stride, std::int64_t n, const float* src, float factor) {
  std::int64_t d = 0;
  const V f = set1(factor);
  if (stride == 1) {
    if (dtype == DType::f32) {
      for (; d + kLanes <= n; d += kLanes) {
        const V x = mul(load(src + d), f);
        __builtin_memcpy(dst + 4 * d, &x, sizeof x);
      }
    } else if (dtype == DType::bf16) {
      for (; d + kLanes <= n; d += kLanes) store_bf16(dst + 2 * d, mul(load(src + d), f));
    } else {
      for (; d + kLanes <= n; d += kLanes) store_f16(dst + 2 * d, mul(load(src + d), f));
    }
  }
  for (; d < n; ++d) store_one(dtype, dst + d * stride * element_size(dtype), src[d] * factor);
}

// Elements that are widened as they are read.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};
struct Int8 {
  std::int8_t value;
};
inline V load_elements(const float* p) {
  return load(p);
}
inline V load_elements(const F16* p) {
  return load_f16(reinterpret_cast<const char*>(p));
}
inline V load_elements(const BF16* p) {
  return load_bf16(reinterpret_cast<const char*>(p));
}
inline V load_elements(const Int8* p) {
  return load_int8(reinterpret_cast<const std::int8_t*>(p));
}
inline void store_elements(float* p, V x) {
  store(p, x);
}
inline void store_elements(BF16* p, V x) {
  store_bf16(p, x);
}

// Calls f with a vector of each input, which makes one for each output: out[o][i] = f(in[0][i], in[1][i], ...). An
// output may be an input. Elements are floats or BF16.
template <int kIn, int kOut, class T, class F>
inline void map_vectors(const T* const (&in)[std::size_t{kIn}], T* const (&out)[std::size_t{kOut}], std::int64_t n,
                        const F& f) {
  V x[std::size_t{kIn}], y[std::size_t{kOut}];
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < kIn; ++k) x[k] = load_elements(in[k] + i);
    f(x, y);
#pragma GCC unroll 4
    for (int k = 0; k < kOut; ++k) store_elements(out[k] + i, y[k]);
  }
  if (i == n) return;
  const std::size_t left = static_cast<std::size_t>(n - i) * sizeof(T);
  T lanes[kLanes] = {};
  for (int k = 0; k < kIn; ++k) {
    __builtin_memcpy(lanes, in[k] + i, left);
    x[k] = load_elements(lanes);
  }
  f(x, y);
  for (int k = 0; k < kOut; ++k) {
    store_elements(lanes, y[k]);
    __builtin_memcpy(out[k] + i, lanes, left);
  }
}

// y[j] = f(j), by way of memory that nothing else lies in: where y is what f reads, the compiler still uses vectors.
template <class F>
inline void fill_row(std::int64_t n, float* y, const F& f) {
  constexpr std::int64_t kBlock = 64;
  float block[kBlock];
  std::int64_t j = 0;
  for (; j + kBlock <= n; j += kBlock) {
    for (std::int64_t k = 0; k < kBlock; ++k) block[k] = f(j + k);
    __builtin_memcpy(y + j, block, sizeof block);
  }
  for (std::int64_t k = 0; k < n - j; ++k) block[k] = f(j + k);
  __builtin_memcpy(y + j, block, static_cast<std::size_t>(n - j) * sizeof(float));
}

// Eight doubles, in whatever vectors the instruction set has: everything that takes or gives them is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"
using Eight = double __attribute__((vector_size(64)));
using EightFloats = float __attribute__((vector_size(32)));

// Calls f(j, count) for every eight numbers of a row, count a constant, and once for what is left.
template <class F>
inline void for_eights(std::int64_t n, const F& f) {
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) f(j, std::integral_constant<std::int64_t, 8>{});
  if (j < n) f(j, n - j);
}
// The first `count` of them; the others are zeros, or not written.
template <class Count>
inline Eight load_eight(const float* p, Count count) {
  EightFloats x{};
  __builtin_memcpy(&x, p, static_cast<std::size_t>(count) * sizeof(float));
#ifdef __AVX512F__  // __builtin_convertvector takes two steps of four
  return _mm512_cvtps_pd(x);
#else
  return __builtin_convertvector(x, Eight);
#endif
}
inline EightFloats rounded(Eight x) {
#ifdef __AVX512F__
  return _mm512_cvtpd_ps(x);
#else
  return __builtin_convertvector(x, EightFloats);
#endif
}
template <class Count>
inline void store_eight(float* p, Eight x, Count count) {
  const EightFloats floats = rounded(x);
  __builtin_memcpy(p, &floats, static_cast<std::size_t>(count) * sizeof(float));
}
// y + x, summed as floats.
template <class Count>
inline void store_sum(float* p, const float* y, Eight x, Count count) {
  EightFloats floats{};
  __builtin_memcpy(&floats, y, static_cast<std::size_t>(count) * sizeof(float));
  floats += rounded(x);
  __builtin_memcpy(p, &floats, static_cast<std::size_t>(count) * sizeof(float));
}
template <class Count>
inline void add_eight(double* p, Eight x, Count count) {
  Eight sum{};
  __builtin_memcpy(&sum, p, static_cast<std::size_t>(count) * sizeof(double));
  sum += x;
  __builtin_memcpy(p, &sum, static_cast<std::size_t>(count) * sizeof(double));
}
// In the order of sum_terms.
inline double sum_of(Eight x) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

inline void clear(float* p, std::int64_t n) {
  __builtin_memset(p, 0, static_cast<std::size_t>(n) * sizeof(float));
}

// Rows i .. i+rows of one head into dst[rows_padded][padded], the rest zero. True when every element is finite.
inline bool load_tile(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t rows,
                      std::int64_t n, float* dst, std::int64_t padded, std::int64_t rows_padded) {
  V bad = set1(0.0F);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = dst + r * padded;
    for (std::int64_t d = n; d < padded; ++d) row[d] = 0.0F;
    load_row(x.dtype, element(x, b, h, i + r), x.dim_stride, n, row);
    // 0 * x is 0 for finite x and NaN otherwise; the sum keeps the NaN.
    for (std::int64_t d = 0; d < padded; d += kLanes) bad = fma(load(row + d), set1(0.0F), bad);
  }
  clear(dst + rows * padded, (rows_padded - rows) * padded);
  return reduce_add(bad) == 0.0F;
}

// dst[d][row] = src[row][d]: columns of kKeyTile rows, so that a vector holds one dimension of many keys. The same rows
// `ahead` elements further on, which come next, are prefetched.
inline void transpose_tile(const float* src, std::int64_t padded, std::int64_t n, float* dst, std::int64_t ahead = 0) {
  for (std::int64_t r = 0; r < kKeyTile; r += kLanes)
    for (std::int64_t d = 0; d < n; d += kLanes) {
      V block[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const float* row = src + (r + l) * padded + d;
        block[l] = load(row);
        if (ahead != 0) __builtin_prefetch(row + ahead, 0, 2);
      }
      transpose(block);
      const std::int64_t count = n - d < kLanes ? n - d : kLanes;
      for (std::int64_t l = 0; l < count; ++l) store(dst + (d + l) * kKeyTile + r, block[l]);
    }
}
