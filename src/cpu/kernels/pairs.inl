// Operands as pairs of bf16, for instruction sets that multiply them: twice the numbers for every load and product.

// The numbers of b that are finite are added as ever, so that an inf or NaN under a weight of zero changes no bit; then
// the others, where a weight is not zero.
inline void product_skip_zeros(const ProductArgs<PairFormat>& args, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kColumns = 2 * kLanes, kInner = kKeyTile / 2;
  const V zero = set1(0.0F);
  const auto bad = [&](V x) { return select(equal(mul(x, zero), zero), zero, x); };
  std::uint32_t finite[kInner * kColumns];
  for (std::int64_t n = 0; n < cols; n += kColumns) {
    const std::int64_t width = cols - n < kColumns ? cols - n : kColumns;
    for (std::int64_t k = 0; k < args.inner; ++k)
      for (std::int64_t c = 0; c < width; ++c) {
        const std::uint32_t pair = args.b.data[k * args.b.row + n + c];
        const std::uint32_t low = (pair & 0x7F80U) == 0x7F80U ? 0 : 0xFFFFU;
        const std::uint32_t high = (pair & 0x7F800000U) == 0x7F800000U ? 0 : 0xFFFF0000U;
        finite[k * kColumns + c] = pair & (low | high);
      }
    add_product({args.c.data + n, args.c.row}, args.a, RightTile<PairFormat>{finite, kColumns},
                {rows, width, args.inner});
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t k = 0; k < args.inner; ++k) {
        const std::uint32_t pair = args.a.data[r * args.a.row + k * args.a.step];
        const float low = bf16_to_float(static_cast<std::uint16_t>(pair));
        const float high = bf16_to_float(static_cast<std::uint16_t>(pair >> 16));
        for (std::int64_t c = 0; c < width; c += kLanes) {
          float* sums = args.c.data + r * args.c.row + n + c;
          const std::uint32_t* b = args.b.data + k * args.b.row + n + c;
          if (low != 0.0F) store(sums, fma(set1(low), bad(low_halves(b)), load(sums)));
          if (high != 0.0F) store(sums, fma(set1(high), bad(high_halves(b)), load(sums)));
        }
      }
  }
}

// Two rows of b make a row of elements.
struct RowPairs : Streamed<PairFormat, BF16> {
  static constexpr int kRows = 2;
};
inline PairFormat::Vector load_row_pair(const BF16* low, const BF16* high) {
  return as_pairs(
      interleave(reinterpret_cast<const std::uint16_t*>(low), reinterpret_cast<const std::uint16_t*>(high)));
}
struct Int8Pair {
  std::int8_t low, high;
};
inline PairFormat::Vector load_elements(const Int8Pair* p) {
  return as_pairs(load_int8_pairs(p));
}

struct Pairs {
  using Format = PairFormat;
  using Element = std::uint32_t;
#ifdef ATTEND_TILE_DOT
  using Session = TileSession;
#else
  using Session = Floats::Session;
#endif
  static constexpr std::int64_t kPack = 2;
  static constexpr int kTerms = 1;
  static constexpr Term kProducts[] = {{0, 0}};

  static std::int64_t depth(std::int64_t n) { return (n + 1) / 2; }
  static std::int64_t row_elements(std::int64_t n) { return round_up(n, 2 * kLanes) / 2; }

  static bool load_head_rows(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t count,
                             std::int64_t n, Element* dst) {
    const std::int64_t width = row_elements(n);
    Exponents exponents;
    for (std::int64_t r = 0; r < count; ++r) {
      const char* src = element(x, b, h, i + r);
      Element* row = dst + r * width;
      if (n < 2 * width) __builtin_memset(row + n / 2, 0, static_cast<std::size_t>(width - n / 2) * sizeof(Element));
      if (x.dim_stride == 1) {
        __builtin_memcpy(row, src, static_cast<std::size_t>(2 * n));
      } else {
        for (std::int64_t d = 0; d < n; ++d)
          __builtin_memcpy(reinterpret_cast<char*>(row) + 2 * d, src + 2 * d * x.dim_stride, 2);
      }
      for (std::int64_t d = 0; d < width; d += kLanes) exponents.see(row + d);
    }
    return exponents.finite();
  }

  static void pack_along_dim(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, Element* rows,
                             Element* dst) {
    if (whole_vectors(x, count, n) && x.row_stride % 2 == 0 && lies_at<float>(element(x, tile.b, tile.hk, tile.j0)))
      return transpose_tile(reinterpret_cast<const float*>(element(x, tile.b, tile.hk, tile.j0)), x.row_stride / 2,
                            n / 2, as_floats(dst), kKeyTile * x.row_stride / 2);
    load_head_rows(x, tile.b, tile.hk, tile.j0, count, n, rows);
    const std::int64_t width = row_elements(n);
    clear(as_floats(rows) + count * width, (kKeyTile - count) * width);
    transpose_tile(as_floats(rows), width, depth(n), as_floats(dst));  // moves bits, whatever they mean
  }
  static bool pack_along_keys(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, Element* rows,
                              Element* dst) {
    if (whole_vectors(x, count, n))
      return pair_rows(reinterpret_cast<const std::uint16_t*>(element(x, tile.b, tile.hk, tile.j0)), x.row_stride,
                       kKeyTile, n, dst, kKeyTile * x.row_stride);
    const bool finite = load_head_rows(x, tile.b, tile.hk, tile.j0, count, n, rows);
    const std::int64_t width = row_elements(n);
    clear(as_floats(rows) + count * width, (kKeyTile - count) * width);
    along_rows(rows, kKeyTile, n, dst);
    return finite;
  }
  static const Element* in_place(const Operand&, const KeyTile&, std::int64_t, std::int64_t) { return nullptr; }
  static bool finite_in_place(const Element*, std::int64_t, std::int64_t) { return true; }
#ifdef ATTEND_TILE_DOT
  static constexpr bool kReadsInPlace = false;  // AMX tiles sum in an order of their own, in decoding as in prefill
#else
  static constexpr bool kReadsInPlace = true;
#endif
  template <class F>
  static void with_keys(DType, F&& f) {
    f(Streamed<PairFormat, Element>{});
  }
  template <class F>
  static void with_values(DType, F&& f) {
    f(RowPairs{});
  }
  template <class F>
  static void with_stored(StoredAs stored, F&& f) {
    if (stored == StoredAs::int8) return f(Streamed<PairFormat, Int8Pair>{});
    f(Streamed<PairFormat, Element>{});
  }
  static bool readable_rows(const Operand& x, std::int64_t n) {
    const bool even = x.row_stride % 2 == 0 && x.head_stride % 2 == 0 && x.batch_stride % 2 == 0;
    return x.dim_stride == 1 && n % (2 * kLanes) == 0 && even && lies_at<Element>(x.data);
  }
  static void widen_int8(const std::int8_t* src, std::int64_t elements, Element* dst) {
    for (std::int64_t n = 0; n < elements; n += kLanes) store_int8_pairs(dst + n, src + 2 * n);
  }
  static const Element* rows_in_place(const MatrixRef& m, std::int64_t row, std::int64_t column, std::int64_t count) {
    const bool whole = m.col_stride == 1 && m.row_stride % 2 == 0 && count % 2 == 0;
    if (!whole || !lies_at<Element>(m.data)) return nullptr;
    return static_cast<const Element*>(m.data) + (row * m.row_stride + column) / 2;
  }
  static Element* take_along_rows(Element*, std::int64_t rows, std::int64_t n, Carver& carver) {
    return carver.take<Element>((rows + 1) / 2 * round_up(n, kLanes));
  }
  static void along_rows(const Element* src, std::int64_t rows, std::int64_t n, Element* dst) {
    pair_rows(reinterpret_cast<const std::uint16_t*>(src), 2 * row_elements(n), rows, n, dst, 0);
  }
  static bool load_both_ways(const AttentionProblem& p, const Operand& x, const Block& block, std::int64_t n,
                             Element* dst, Element* along) {
    const std::int64_t width = row_elements(n), padded = round_up(n, kLanes);
    const bool whole = x.dim_stride == 1 && n % (2 * kLanes) == 0;
    const std::int64_t paired = whole ? block.rows / 2 * 2 : 0;
    const auto source = [&](std::int64_t r) {
      return element(x, block.b, head_of(p, block.hk, block.row + r), token_of(p, block.row + r));
    };
    Exponents exponents;
    for (std::int64_t r = 0; r < paired; r += 2) {
      const char *low = source(r), *high = source(r + 1);
      for (std::int64_t d = 0; d < width; d += kLanes)
        split_rows(low + 4 * d, high + 4 * d, dst + r * width + d, dst + (r + 1) * width + d,
                   along + r / 2 * padded + 2 * d, exponents);
    }
    bool finite = exponents.finite();
    if (paired == block.rows) return finite;
    finite &=
        load_rows<Pairs>(p, x, block.b, block.hk, block.row + paired, block.rows - paired, n, dst + paired * width);
    along_rows(dst + paired * width, block.rows - paired, n, along + paired / 2 * padded);
    return finite;
  }

  static constexpr std::int64_t kWeightRow = kKeyTile / 2;
  static Element* take_weights(float*, std::int64_t rows, Carver& carver) {
    return carver.take<Element>((rows + 1) / 2 * kKeyTile);
  }
  static void store_weights(Element* row, std::int64_t c, V w) {
    store_halves(reinterpret_cast<std::uint16_t*>(row) + c, w);
  }
  static void store_weights_of_two(Element* to, V of_row, V of_next) { store_pairs(to, of_row, of_next); }

  // Weights are rounded to bf16, so an exponential of 3.1 ULP will do, and the largest weight need not be exactly 1:
  // the rounding of row_max * scale is one factor of the whole row, its sum included.
  static V power_of_two(V t) { return exp2_bf16(t); }
  struct Exponent {
    float row_max, scale;
    Exponent(float largest, float factor) : row_max(largest), scale(factor) {}
    template <class F>
    void use(F&& f) const {
      const V factor = set1(scale);
      const float power = row_max * scale;
      if (power <= kLargestLse && power >= -kLargestLse)
        return f([&, base = set1(-power)](V score) { return fma(score, factor, base); });
      // One rounding of so large a product would decide the weights.
      f([&, base = set1(row_max)](V score) { return mul(sub(score, base), factor); });
    }
  };

  static void weights_along_keys(const float* s, std::int64_t rows, std::int64_t c0, std::int64_t c1, Element* dst) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = c0; c < c1; c += kLanes) store_weights(dst + r * kWeightRow, c, load(s + r * kKeyTile + c));
  }
  static void weights_along_rows(const float* s, std::int64_t rows, std::int64_t c0, std::int64_t c1, Element* dst) {
    for (std::int64_t r = 0; r < rows; r += 2)
      for (std::int64_t c = c0; c < c1; c += kLanes)
        store_pairs(dst + r / 2 * kKeyTile + c, load(s + r * kKeyTile + c),
                    r + 1 < rows ? load(s + (r + 1) * kKeyTile + c) : set1(0.0F));
  }

 private:
  static bool whole_vectors(const Operand& x, std::int64_t count, std::int64_t n) {
    return x.dim_stride == 1 && count == kKeyTile && n % (2 * kLanes) == 0 && lies_at<std::uint16_t>(x.data);
  }

  // Rows r and r + 1 into one row of elements. True when all are finite. What lies `ahead` is prefetched.
  static bool pair_rows(const std::uint16_t* src, std::int64_t stride, std::int64_t rows, std::int64_t n, Element* dst,
                        std::int64_t ahead) {
    static constexpr std::uint16_t kNothing[kLanes] = {};
    const std::int64_t padded = round_up(n, kLanes);
    Exponents exponents;
    for (std::int64_t r = 0; r < rows; r += 2)
      for (std::int64_t d = 0; d < padded; d += kLanes) {
        const std::uint16_t* low = src + r * stride + d;
        const std::uint16_t* high = r + 1 < rows ? low + stride : kNothing;
        Element* to = dst + r / 2 * padded + d;
        store_pairs(to, low, high);
        exponents.see(to);
        if (ahead != 0) {
          __builtin_prefetch(low + ahead, 0, 2);
          __builtin_prefetch(high + ahead, 0, 2);
        }
      }
    return exponents.finite();
  }
  static float* as_floats(Element* pairs) { return reinterpret_cast<float*>(pairs); }
};
