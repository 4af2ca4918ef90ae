// The packed operand formats of the products: floats here, pairs of bf16 in pairs.inl, hi + lo in hi_lo.inl.
//
// An element holds kPack numbers that follow each other along the sum. For q.k the sum runs along the head dimension,
// for p.v along the keys, and in backward along the rows too: what is summed over must be packed.

// Packed rows as the products broadcast them: [rows][row_elements(n)].
template <class Math>
inline bool load_rows(const AttentionProblem& p, const Operand& x, std::int64_t b, std::int64_t hk, std::int64_t row,
                      std::int64_t rows, std::int64_t n, typename Math::Element* dst) {
  bool finite = true;
  for (std::int64_t r = 0; r < rows; ++r)
    finite &= Math::load_head_rows(x, b, head_of(p, hk, row + r), token_of(p, row + r), 1, n,
                                   dst + r * Math::row_elements(n));
  return finite;
}

// A number may be held as a sum of terms; kProducts says which terms of a and b are multiplied.
struct Term {
  int a, b;
};

struct Floats {
  using Format = FloatFormat;
  using Element = float;
  struct Session {};  // alive while products run
  static constexpr std::int64_t kPack = 1;
  static constexpr int kTerms = 1;
  static constexpr Term kProducts[] = {{0, 0}};

  static std::int64_t depth(std::int64_t n) { return n; }  // elements of a sum over n numbers, one term
  static std::int64_t row_elements(std::int64_t n) { return round_up(n, kLanes); }

  // `count` rows of one head, from i on. True when all are finite.
  static bool load_head_rows(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t count,
                             std::int64_t n, float* dst) {
    return load_tile(x, b, h, i, count, n, dst, row_elements(n), count);
  }

  // A tile of keys (or values) to sum over its dimension: dst[depth(n)][kKeyTile]. `rows` has room for
  // kKeyTile * row_elements(n) elements.
  static void pack_along_dim(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, float* rows,
                             float* dst) {
    if (whole_vectors(x, count, n))
      return transpose_tile(reinterpret_cast<const float*>(element(x, tile.b, tile.hk, tile.j0)), x.row_stride, n, dst,
                            kKeyTile * x.row_stride);
    load_tile(x, tile.b, tile.hk, tile.j0, count, n, rows, row_elements(n), kKeyTile);
    transpose_tile(rows, row_elements(n), n, dst);
  }
  // The same to sum over its keys: dst[kKeyTile / kPack][round_up(n, kLanes)]. True when all are finite.
  static bool pack_along_keys(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, float*,
                              float* dst) {
    return load_tile(x, tile.b, tile.hk, tile.j0, count, n, dst, row_elements(n), kKeyTile);
  }
  // Where a tile lies ready to be summed over its keys; null: it must be packed.
  static const float* in_place(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n) {
    return whole_vectors(x, count, n) ? reinterpret_cast<const float*>(element(x, tile.b, tile.hk, tile.j0)) : nullptr;
  }
  static bool finite_in_place(const float* data, std::int64_t row_stride, std::int64_t n) {
    V bad = set1(0.0F);
    for (std::int64_t r = 0; r < kKeyTile; ++r)
      for (std::int64_t d = 0; d < n; d += kLanes) {
        const float* x = data + r * row_stride + d;
        bad = fma(load(x), set1(0.0F), bad);
        __builtin_prefetch(x + kKeyTile * row_stride, 0, 2);
      }
    return reduce_add(bad) == 0.0F;
  }
  // On the decode path (decode.inl), calls f with the Format that reads keys, values or the tiles of a cache as they
  // lie.
  static constexpr bool kReadsInPlace = true;
  template <class F>
  static void with_keys(DType dtype, F&& f) {
    if (dtype == DType::f32) return f(Streamed<FloatFormat, float>{});
    if (dtype == DType::bf16) return f(Streamed<FloatFormat, BF16>{});
    f(Streamed<FloatFormat, F16>{});
  }
  template <class F>
  static void with_values(DType dtype, F&& f) {
    with_keys(dtype, f);
  }
  template <class F>
  static void with_stored(StoredAs stored, F&& f) {
    if (stored == StoredAs::int8) return f(Streamed<FloatFormat, Int8>{});
    with_keys(stored == StoredAs::packed ? DType::f32 : stored == StoredAs::bf16 ? DType::bf16 : DType::f16, f);
  }
  static bool readable_rows(const Operand& x, std::int64_t n) {
    const bool aligned = x.dtype == DType::f32 ? lies_at<float>(x.data) : lies_at<std::uint16_t>(x.data);
    return x.dim_stride == 1 && n % kLanes == 0 && aligned;
  }
  // int8 numbers to elements, exactly: their scales are applied to scores and weights.
  static void widen_int8(const std::int8_t* src, std::int64_t elements, float* dst) {
    for (std::int64_t n = 0; n < elements; n += kLanes) store(dst + n, load_int8(src + n));
  }
  // Rows of a matrix where the products can broadcast them from; null: they must be loaded.
  static const float* rows_in_place(const MatrixRef& m, std::int64_t row, std::int64_t column, std::int64_t) {
    if (m.dtype != DType::f32 || !lies_at<float>(m.data)) return nullptr;
    return static_cast<const float*>(m.data) + row * m.row_stride + column * m.col_stride;
  }
  // The rows of a block as load_rows loads them, and to sum over them: [rows / kPack][round_up(n, kLanes)]. Floats lie
  // so already.
  static float* take_along_rows(float* rows, std::int64_t, std::int64_t, Carver&) { return rows; }
  static bool load_both_ways(const AttentionProblem& p, const Operand& x, const Block& block, std::int64_t n,
                             float* dst, float*) {
    return load_rows<Floats>(p, x, block.b, block.hk, block.row, block.rows, n, dst);
  }

  // Weights, or gradients of scores, of columns [c0, c1) of [rows][kKeyTile] floats: to sum over keys,
  // [rows][kWeightRow], and over rows, [rows / kPack][kKeyTile]. Floats are both already.
  static constexpr std::int64_t kWeightRow = kKeyTile;
  static float* take_weights(float* scores, std::int64_t, Carver&) { return scores; }
  static void store_weights(float* row, std::int64_t c, V w) { store(row + c, w); }

  static V power_of_two(V t) { return exp2(t); }
  // Weights of a row whose largest score so far is row_max. Subtracting before multiplying makes that weight exactly 1:
  // a row that sees one key returns its value.
  struct Exponent {
    V base, factor;
    Exponent(float row_max, float scale) : base(set1(row_max)), factor(set1(scale)) {}
    // Calls f with the function that makes the power of two of a score, whose power_of_two is its weight.
    template <class F>
    void use(F&& f) const {
      f([&](V score) { return mul(sub(score, base), factor); });
    }
  };
  static void weights_along_keys(const float*, std::int64_t, std::int64_t, std::int64_t, float*) {}
  static void weights_along_rows(const float*, std::int64_t, std::int64_t, std::int64_t, float*) {}

 private:
  static bool whole_vectors(const Operand& x, std::int64_t count, std::int64_t n) {
    return x.dtype == DType::f32 && x.dim_stride == 1 && count == kKeyTile && n % kLanes == 0 && lies_at<float>(x.data);
  }
};
