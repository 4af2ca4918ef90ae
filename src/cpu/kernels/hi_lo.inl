// f32 and f16 on the units for bf16: x = hi + lo, both bf16, and three products hi.hi + hi.lo + lo.hi. f16 fits
// exactly; f32 keeps 16 of its 24 bits.

struct HiLo {
  using Format = PairFormat;
  using Element = std::uint32_t;
  using Session = Pairs::Session;
  static constexpr std::int64_t kPack = 2;
  static constexpr int kTerms = 2;
  static constexpr Term kProducts[] = {{0, 0}, {0, 1}, {1, 0}};

  static std::int64_t depth(std::int64_t n) { return (n + 1) / 2; }
  static std::int64_t row_elements(std::int64_t n) { return kTerms * depth(n); }

  static bool load_head_rows(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t count,
                             std::int64_t n, Element* dst) {
    bool finite = true;
    for (std::int64_t r = 0; r < count; ++r) {
      Element* row = dst + r * row_elements(n);
      const char* src = element(x, b, h, i + r);
      for (std::int64_t d = 0; d < n; d += kChunk) {
        float numbers[kChunk] = {};
        const std::int64_t some = n - d < kChunk ? n - d : kChunk;
        load_row(x.dtype, src + d * x.dim_stride * element_size(x.dtype), x.dim_stride, some, numbers);
        std::uint16_t halves[kTerms][kChunk];
        for (std::int64_t c = 0; c < kChunk; c += kLanes) {
          const V whole = load(numbers + c), high = to_high(whole);
          finite &= reduce_add(mul(whole, set1(0.0F))) == 0.0F;
          store_halves(halves[0] + c, high);
          store_halves(halves[1] + c, sub(whole, high));
        }
        for (int term = 0; term < kTerms; ++term)  // an odd last number is paired with a zero
          __builtin_memcpy(row + term * depth(n) + d / 2, halves[term], static_cast<std::size_t>((some + 1) / 2) * 4);
      }
    }
    return finite;
  }

  static void pack_along_dim(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, Element* rows,
                             Element* dst) {
    load_keys(x, tile, count, n, rows);
    for (std::int64_t c = 0; c < row_elements(n); ++c)
      for (std::int64_t r = 0; r < kKeyTile; ++r) dst[c * kKeyTile + r] = rows[r * row_elements(n) + c];
  }
  static bool pack_along_keys(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, Element* rows,
                              Element* dst) {
    const bool finite = load_keys(x, tile, count, n, rows);
    const std::int64_t padded = round_up(n, kLanes);
    const auto* numbers = reinterpret_cast<const std::uint16_t*>(rows);
    for (int term = 0; term < kTerms; ++term)
      for (std::int64_t r = 0; r < kKeyTile; r += 2)
        for (std::int64_t d = 0; d < padded; ++d) {
          const std::uint16_t* low = numbers + 2 * (r * row_elements(n) + term * depth(n)) + d;
          const std::uint32_t high = d < n ? low[2 * row_elements(n)] : 0;
          dst[(term * kKeyTile / 2 + r / 2) * padded + d] = d < n ? *low | high << 16 : 0;
        }
    return finite;
  }
  static const Element* in_place(const Operand&, const KeyTile&, std::int64_t, std::int64_t) { return nullptr; }
  static bool finite_in_place(const Element*, std::int64_t, std::int64_t) { return true; }
  static const Element* rows_in_place(const MatrixRef&, std::int64_t, std::int64_t, std::int64_t) { return nullptr; }
  static constexpr bool kReadsInPlace = false;
  static void widen_int8(const std::int8_t*, std::int64_t, Element*) {}

  static constexpr std::int64_t kWeightRow = kTerms * kKeyTile / kPack;
  using Exponent = Floats::Exponent;
  static V power_of_two(V t) { return exp2(t); }
  static Element* take_weights(float*, std::int64_t rows, Carver& carver) {
    return carver.take<Element>(rows * kWeightRow);
  }
  static void store_weights(Element* row, std::int64_t c, V w) {
    const V high = to_high(w);
    Pairs::store_weights(row, c, high);
    Pairs::store_weights(row + kKeyTile / kPack, c, sub(w, high));
  }
  static void weights_along_keys(const float* s, std::int64_t rows, std::int64_t c0, std::int64_t c1, Element* dst) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = c0; c < c1; c += kLanes) store_weights(dst + r * kWeightRow, c, load(s + r * kKeyTile + c));
  }

 private:
  static constexpr std::int64_t kChunk = 64;

  static bool load_keys(const Operand& x, const KeyTile& tile, std::int64_t count, std::int64_t n, Element* rows) {
    __builtin_memset(rows + count * row_elements(n), 0,
                     static_cast<std::size_t>((kKeyTile - count) * row_elements(n)) * sizeof(Element));
    return load_head_rows(x, tile.b, tile.hk, tile.j0, count, n, rows);
  }
  // The nearest bf16, as a float.
  static V to_high(V x) { return widen_halves(to_halves(x)); }
};
