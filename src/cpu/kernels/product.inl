// The one matrix product under everything: c = (c +) a . b on register tiles.

// What a and b are made of: floats, or pairs of bf16 where an instruction set has a product for them.
struct FloatCells {
  using Cell = float;
  using Vector = V;
  using Stored = float;  // what b is kept as
  static constexpr bool kCallsNext = false;
  static constexpr int kRows = 1;  // rows of b to a row of cells
  static V from_bits(V x) { return x; }
};

// What b may be kept as instead; it is widened as it is read.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};
struct Int8 {
  std::int8_t value;
};
inline V load_cells(const float* p) {
  return load(p);
}
inline V load_cells(const F16* p) {
  return load_f16(reinterpret_cast<const char*>(p));
}
inline V load_cells(const BF16* p) {
  return load_bf16(reinterpret_cast<const char*>(p));
}
inline V load_cells(const Int8* p) {
  return load_int8(reinterpret_cast<const std::int8_t*>(p));
}
// b comes from memory and is read once: the same place `to_next` bytes on is called while the products go on. For few
// rows: with many it is cheaper to widen b once before.
template <class Cells, class StoredType>
struct Streamed : Cells {
  using Stored = StoredType;
  static constexpr bool kCallsNext = true;
};
template <class Cells>
inline auto load_b(const typename Cells::Stored* b, [[maybe_unused]] std::int64_t b_row) {
  if constexpr (Cells::kRows == 2)
    return load_row_pair(b, b + b_row);
  else
    return load_cells(b);
}
template <class Cells>
inline void call_next(const typename Cells::Stored* b, std::int64_t b_row, std::int64_t to_next) {
  for (int row = 0; row < Cells::kRows; ++row)
    __builtin_prefetch(reinterpret_cast<const char*>(b + row * b_row) + to_next, 0, 2);
}

inline V set1_cell(float x) {
  return set1(x);
}
inline V multiply_add(V a, V b, V c) {
  return fma(a, b, c);
}

// The tiles of a product c (M,N) = a (M,K) . b (K,N); K counts cells, and N is a multiple of kLanes.
template <class Cells>
struct LeftTile {  // a(m, k) = data[m * row + k * step] is broadcast
  const typename Cells::Cell* data;
  std::int64_t row, step = 1;
};
template <class Cells>
struct RightTile {  // b(k, n) = data[k * row + n], vectors along n
  const typename Cells::Stored* data;
  std::int64_t row;
  std::int64_t to_next = 0;  // bytes to what is prefetched meanwhile; Streamed alone
};
struct FloatTile {  // c(m, n) = data[m * row + n], vectors along n
  float* data;
  std::int64_t row;
};
struct ProductShape {
  std::int64_t M, N, K;
};

// Every element is one chain of fused multiply-adds over rising k, whatever tile it lies in: its bits do not depend on
// how many rows there are.
template <class Cells>
struct ProductArgs {
  LeftTile<Cells> a;
  RightTile<Cells> b;
  FloatTile c;
  std::int64_t inner;  // K
};

template <class Cells, int Rows, int Vectors, bool Accumulate>
[[gnu::noinline]] void product_tile(const ProductArgs<Cells>& args) {
  V acc[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n)
      acc[r][n] = Accumulate ? load(args.c.data + r * args.c.row + n * kLanes) : set1(0.0F);
  const typename Cells::Cell* a = args.a.data;
  const typename Cells::Stored* b = args.b.data;
  const std::int64_t a_row = args.a.row, a_inner = args.a.step, b_row = args.b.row;
  for (std::int64_t k = 0; k < args.inner; ++k, a += a_inner, b += Cells::kRows * b_row) {
    typename Cells::Vector bv[std::size_t{Vectors}];
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) bv[n] = load_b<Cells>(b + n * kLanes, b_row);
    if constexpr (Cells::kCallsNext) {
      constexpr int kLineVectors = 64 / (kLanes * int{sizeof(typename Cells::Stored)});
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; n += kLineVectors) call_next<Cells>(b + n * kLanes, b_row, args.b.to_next);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const typename Cells::Vector av = set1_cell(a[r * a_row]);
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; ++n) acc[r][n] = multiply_add(av, bv[n], acc[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) store(args.c.data + r * args.c.row + n * kLanes, acc[r][n]);
}

template <class Cells>
using ProductTile = void (*)(const ProductArgs<Cells>&);

template <class Cells, bool Accumulate, int Vectors, int... Rows>
constexpr ProductTile<Cells> product_tile_for(int rows, std::integer_sequence<int, Rows...>) {
  constexpr ProductTile<Cells> tiles[] = {product_tile<Cells, Rows + 1, Vectors, Accumulate>...};
  return tiles[rows - 1];
}
template <class Cells, bool Accumulate>
inline ProductTile<Cells> product_tile_for(int rows, std::int64_t vectors) {
  using AllRows = std::make_integer_sequence<int, kTileRows>;
  if constexpr (kTileVectors >= 4) {
    if (vectors >= 4) return product_tile_for<Cells, Accumulate, 4>(rows, AllRows{});
    if (vectors == 3) return product_tile_for<Cells, Accumulate, 3>(rows, AllRows{});
  }
  if (vectors >= 2) return product_tile_for<Cells, Accumulate, 2>(rows, AllRows{});
  return product_tile_for<Cells, Accumulate, 1>(rows, AllRows{});
}

// c[rows][cols] = (c +) a . b; cols is a multiple of kLanes and b and c have room for it.
template <bool Accumulate, class Cells>
inline void product(ProductArgs<Cells> args, std::int64_t rows, std::int64_t cols) {
  const typename Cells::Cell* a = args.a.data;
  float* c = args.c.data;
  for (std::int64_t n = 0; n < cols;) {
    const std::int64_t left = (cols - n) / kLanes;
    const std::int64_t vectors = left < kTileVectors ? left : kTileVectors;
    const ProductTile<Cells> whole = product_tile_for<Cells, Accumulate>(kTileRows, vectors);
    std::int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      args.a.data = a + r * args.a.row;
      args.c.data = c + r * args.c.row + n;
      whole(args);
    }
    if (r < rows) {
      args.a.data = a + r * args.a.row;
      args.c.data = c + r * args.c.row + n;
      product_tile_for<Cells, Accumulate>(static_cast<int>(rows - r), vectors)(args);
    }
    args.b.data += vectors * kLanes;
    n += vectors * kLanes;
  }
}

// The same sum, but a zero in a passes over its row of b: used when b holds an inf or NaN that a masked (zero) weight
// must not touch.
inline void product_skip_zeros(const ProductArgs<FloatCells>& args, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < args.inner; ++k) {
      const float a = args.a.data[r * args.a.row + k * args.a.step];
      if (a == 0.0F) continue;
      float* c = args.c.data + r * args.c.row;
      const float* b = args.b.data + k * args.b.row;
      for (std::int64_t n = 0; n < cols; n += kLanes) store(c + n, fma(set1(a), load(b + n), load(c + n)));
    }
}

template <class Cells>
inline void accumulate(const ProductArgs<Cells>& args, std::int64_t rows, std::int64_t cols, bool b_finite) {
  if (b_finite)
    product<true>(args, rows, cols);
  else
    product_skip_zeros(args, rows, cols);
}

// What kernels say: shapes stand in the right margin where they are used.
template <class Cells>
inline void set_product(const FloatTile& c, const LeftTile<Cells>& a, const RightTile<Cells>& b,
                        const ProductShape& shape) {  // (M,N) = (M,K) . (K,N)
  product<false>(ProductArgs<Cells>{a, b, c, shape.K}, shape.M, shape.N);
}
template <class Cells>
inline void add_product(const FloatTile& c, const LeftTile<Cells>& a, const RightTile<Cells>& b,
                        const ProductShape& shape) {  // (M,N) += (M,K) . (K,N)
  product<true>(ProductArgs<Cells>{a, b, c, shape.K}, shape.M, shape.N);
}
// The same where b may hold an inf or NaN.
template <class Cells>
inline void add_product(const FloatTile& c, const LeftTile<Cells>& a, const RightTile<Cells>& b,
                        const ProductShape& shape, bool b_finite) {
  accumulate(ProductArgs<Cells>{a, b, c, shape.K}, shape.M, shape.N, b_finite);
}
