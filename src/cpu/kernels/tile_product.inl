// The product of pairs on tiles: 32 x 32 results at a time, of 16 pairs each.

constexpr std::int64_t kTileSide = 16;  // rows, and elements in a row

// Up to 16 rows of a as the tiles read them: where they are, or staged as [inner / 16][16 rows][16 elements] with zeros
// where there is nothing.
class TileRows {
 public:
  TileRows(const ProductArgs<PairFormat>& args, std::int64_t row, std::int64_t rows, std::uint32_t* staged)
      : in_place_(rows == kTileSide && args.a.step == 1 && args.inner % kTileSide == 0),
        data_(in_place_ ? args.a.data + row * args.a.row : staged),
        row_(in_place_ ? args.a.row : kTileSide) {
    if (in_place_) return;
    for (std::int64_t k0 = 0; k0 < args.inner; k0 += kTileSide) {
      const std::int64_t count = args.inner - k0 < kTileSide ? args.inner - k0 : kTileSide;
      std::uint32_t* dst = staged + k0 * kTileSide;
      if (args.a.row == 1 && rows == kTileSide && count == kTileSide) {
        V block[kLanes];
        for (int k = 0; k < kLanes; ++k)
          block[k] = load(reinterpret_cast<const float*>(args.a.data + row + (k0 + k) * args.a.step));
        transpose(block);
        for (int r = 0; r < kLanes; ++r) store(reinterpret_cast<float*>(dst + r * kTileSide), block[r]);
        continue;
      }
      __builtin_memset(dst, 0, sizeof(std::uint32_t) * kTileSide * kTileSide);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t k = 0; k < count; ++k)
          dst[r * kTileSide + k] = args.a.data[(row + r) * args.a.row + (k0 + k) * args.a.step];
    }
  }

  const std::uint32_t* at(std::int64_t k0) const { return in_place_ ? data_ + k0 : data_ + k0 * kTileSide; }
  std::int64_t row_bytes() const { return row_ * std::int64_t{sizeof(std::uint32_t)}; }

 private:
  bool in_place_;
  const std::uint32_t* data_;
  std::int64_t row_;
};

constexpr std::int64_t kTileInner = 256;  // pairs of the sum whose rows are staged at once

// The last, incomplete 16 pairs of b for two tiles of columns, filled up with zeros.
struct TileRemainder {
  alignas(64) std::uint32_t padded[kTileSide][2 * kTileSide];

  void fill(const std::uint32_t* b, std::int64_t b_row, std::int64_t pairs, std::int64_t cols) {
    __builtin_memset(padded, 0, sizeof padded);
    for (std::int64_t k = 0; k < pairs; ++k)
      __builtin_memcpy(padded[k], b + k * b_row, static_cast<std::size_t>(cols) * sizeof(std::uint32_t));
  }
};

// One or two tiles of rows by one or two of columns: c = (c +) a . b.
template <bool Accumulate>
inline void tile_block(const TileRows& top, const TileRows* bottom, const ProductArgs<PairFormat>& args, float* c_top,
                       float* c_bottom, std::int64_t c_row, bool two_columns) {
  const std::int64_t c_bytes = c_row * std::int64_t{sizeof(float)};
  ATTEND_TILE_ZERO(0);
  ATTEND_TILE_ZERO(1);
  ATTEND_TILE_ZERO(2);
  ATTEND_TILE_ZERO(3);
  if constexpr (Accumulate) {
    ATTEND_TILE_LOAD(0, c_top, c_bytes);
    if (two_columns) ATTEND_TILE_LOAD(1, c_top + kTileSide, c_bytes);
    if (bottom) ATTEND_TILE_LOAD(2, c_bottom, c_bytes);
    if (bottom && two_columns) ATTEND_TILE_LOAD(3, c_bottom + kTileSide, c_bytes);
  }
  TileRemainder remainder;
  for (std::int64_t k = 0; k < args.inner; k += kTileSide) {
    const std::uint32_t* b = args.b.data + k * args.b.row;
    std::int64_t b_row = args.b.row;
    if (args.inner - k < kTileSide) {
      remainder.fill(b, b_row, args.inner - k, two_columns ? 2 * kTileSide : kTileSide);
      b = remainder.padded[0];
      b_row = 2 * kTileSide;
    }
    const std::int64_t b_bytes = b_row * std::int64_t{sizeof(std::uint32_t)};
    ATTEND_TILE_LOAD(4, top.at(k), top.row_bytes());
    ATTEND_TILE_LOAD(6, b, b_bytes);
    ATTEND_TILE_DOT(0, 4, 6);
    if (two_columns) {
      ATTEND_TILE_LOAD(7, b + kTileSide, b_bytes);
      ATTEND_TILE_DOT(1, 4, 7);
    }
    if (bottom) {
      ATTEND_TILE_LOAD(5, bottom->at(k), bottom->row_bytes());
      ATTEND_TILE_DOT(2, 5, 6);
      if (two_columns) ATTEND_TILE_DOT(3, 5, 7);
    }
  }
  ATTEND_TILE_STORE(0, c_top, c_bytes);
  if (two_columns) ATTEND_TILE_STORE(1, c_top + kTileSide, c_bytes);
  if (bottom) ATTEND_TILE_STORE(2, c_bottom, c_bytes);
  if (bottom && two_columns) ATTEND_TILE_STORE(3, c_bottom + kTileSide, c_bytes);
}

// Rows of c that fill no tile of their own pass through this.
struct TileOverhang {
  alignas(64) float rows[kTileSide][2 * kTileSide];

  void copy(float* c, std::int64_t c_row, std::int64_t count, std::int64_t cols, bool in) {
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t n = 0; n < cols; n += kLanes)
        in ? store(rows[r] + n, load(c + r * c_row + n)) : store(c + r * c_row + n, load(rows[r] + n));
  }
};

// c = (c +) a . b for up to 32 rows, in steps of 32 columns: other work may go on between two steps, while the tile
// unit is still busy with the one before. The sum is over at most kTileInner pairs.
template <bool Accumulate>
class TileProduct {
 public:
  TileProduct(const ProductArgs<PairFormat>& args, std::int64_t rows, std::int64_t cols)
      : args_(args),
        cols_(cols),
        top_rows_(rows < kTileSide ? rows : kTileSide),
        bottom_rows_(rows - top_rows_),
        top_(args, 0, top_rows_, staged_[0]),
        bottom_(args, top_rows_, bottom_rows_, staged_[1]) {}
  TileProduct(const TileProduct&) = delete;
  TileProduct& operator=(const TileProduct&) = delete;

  std::int64_t steps() const { return (cols_ + 2 * kTileSide - 1) / (2 * kTileSide); }
  void step(std::int64_t which) const {
    const std::int64_t n = which * 2 * kTileSide;
    const bool two_columns = cols_ - n > kTileSide;
    ProductArgs<PairFormat> block = args_;
    block.b.data += n;
    float* c = args_.c.data + n;
    float* c_bottom = c + kTileSide * args_.c.row;
    if (bottom_rows_ == kTileSide) {
      tile_block<Accumulate>(top_, &bottom_, block, c, c_bottom, args_.c.row, two_columns);
      return;
    }
    const bool whole_top = top_rows_ == kTileSide;
    if (whole_top) tile_block<Accumulate>(top_, nullptr, block, c, nullptr, args_.c.row, two_columns);
    const std::int64_t count = whole_top ? bottom_rows_ : top_rows_;
    if (count == 0) return;
    float* c_last = whole_top ? c_bottom : c;
    const std::int64_t width = two_columns ? 2 * kTileSide : kTileSide;
    TileOverhang overhang;
    if constexpr (Accumulate) overhang.copy(c_last, args_.c.row, count, width, true);
    tile_block<Accumulate>(whole_top ? bottom_ : top_, nullptr, block, overhang.rows[0], nullptr, 2 * kTileSide,
                           two_columns);
    overhang.copy(c_last, args_.c.row, count, width, false);
  }

 private:
  ProductArgs<PairFormat> args_;
  std::int64_t cols_, top_rows_, bottom_rows_;
  alignas(64) std::uint32_t staged_[2][kTileSide * kTileInner];
  TileRows top_, bottom_;
};

template <bool Accumulate>
inline void tile_rows_product(const ProductArgs<PairFormat>& args, std::int64_t rows, std::int64_t cols) {
  const TileProduct<Accumulate> product(args, rows, cols);
  for (std::int64_t n = 0; n < product.steps(); ++n) product.step(n);
}

// Chosen over the product of vectors for pairs.
template <bool Accumulate>
inline void product(ProductArgs<PairFormat> args, std::int64_t rows, std::int64_t cols) {
  const std::int64_t inner = args.inner;
  for (std::int64_t k = 0; k < inner; k += kTileInner) {
    args.inner = inner - k < kTileInner ? inner - k : kTileInner;
    for (std::int64_t row = 0; row < rows; row += 2 * kTileSide) {
      const std::int64_t count = rows - row < 2 * kTileSide ? rows - row : 2 * kTileSide;
      ProductArgs<PairFormat> some = args;
      some.a.data += row * args.a.row;
      some.c.data += row * args.c.row;
      if (Accumulate || k > 0)
        tile_rows_product<true>(some, count, cols);
      else
        tile_rows_product<false>(some, count, cols);
    }
    args.a.data += kTileInner * args.a.step;
    args.b.data += kTileInner * args.b.row;
  }
}
