// The one matrix product under everything: c = (c +) a . b on register tiles.

// The packed format of a and b: floats, or pairs of bf16 where an instruction set has a product for them.
struct FloatFormat {
  using Element = float;
  using Vector = V;
  using Stored = float;  // what b is kept as
  static constexpr bool kPrefetchesNext = false;
  static constexpr int kRows = 1;  // rows of b to a row of elements
  static V from_bits(V x) { return x; }
};

// b comes from memory and is read once: the same place `to_next` bytes on is prefetched between the products. For the
// decode path: with many rows it is cheaper to widen b once before.
template <class Format, class StoredType>
struct Streamed : Format {
  using Stored = StoredType;
  static constexpr bool kPrefetchesNext = true;
};
template <class Format>
inline auto load_b(const typename Format::Stored* b, [[maybe_unused]] std::int64_t b_row) {
  if constexpr (Format::kRows == 2)
    return load_row_pair(b, b + b_row);
  else
    return load_elements(b);
}
template <class Format>
inline void prefetch_next(const typename Format::Stored* b, std::int64_t b_row, std::int64_t to_next) {
  for (int row = 0; row < Format::kRows; ++row)
    __builtin_prefetch(reinterpret_cast<const char*>(b + row * b_row) + to_next, 0, 2);
}

inline V set1_element(float x) {
  return set1(x);
}
inline V multiply_add(V a, V b, V c) {
  return fma(a, b, c);
}

// The tiles of a product c (M,N) = a (M,K) . b (K,N); K counts elements, and N is a multiple of kLanes.
template <class Format>
struct LeftTile {  // a(m, k) = data[m * row + k * step] is broadcast
  const typename Format::Element* data;
  std::int64_t row, step = 1;
};
template <class Format>
struct RightTile {  // b(k, n) = data[k * row + n], vectors along n
  const typename Format::Stored* data;
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
template <class Format>
struct ProductArgs {
  LeftTile<Format> a;
  RightTile<Format> b;
  FloatTile c;
  std::int64_t inner;  // K
};

template <class Format, int Rows, int Vectors, bool Accumulate>
[[gnu::noinline]] void product_tile(const ProductArgs<Format>& args) {
  V acc[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n)
      acc[r][n] = Accumulate ? load(args.c.data + r * args.c.row + n * kLanes) : set1(0.0F);
  const typename Format::Element* a = args.a.data;
  const typename Format::Stored* b = args.b.data;
  const std::int64_t a_row = args.a.row, a_inner = args.a.step, b_row = args.b.row;
  for (std::int64_t k = 0; k < args.inner; ++k, a += a_inner, b += Format::kRows * b_row) {
    typename Format::Vector bv[std::size_t{Vectors}];
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) bv[n] = load_b<Format>(b + n * kLanes, b_row);
    if constexpr (Format::kPrefetchesNext) {
      constexpr int kLineVectors = 64 / (kLanes * int{sizeof(typename Format::Stored)});
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; n += kLineVectors) prefetch_next<Format>(b + n * kLanes, b_row, args.b.to_next);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const typename Format::Vector av = set1_element(a[r * a_row]);
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; ++n) acc[r][n] = multiply_add(av, bv[n], acc[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) store(args.c.data + r * args.c.row + n * kLanes, acc[r][n]);
}

template <class Format>
using ProductTile = void (*)(const ProductArgs<Format>&);

template <class Format, bool Accumulate, int Vectors, int... Rows>
constexpr ProductTile<Format> product_tile_for(int rows, std::integer_sequence<int, Rows...>) {
  constexpr ProductTile<Format> tiles[] = {product_tile<Format, Rows + 1, Vectors, Accumulate>...};
  return tiles[rows - 1];
}
template <class Format, bool Accumulate>
inline ProductTile<Format> product_tile_for(int rows, std::int64_t vectors) {
  using AllRows = std::make_integer_sequence<int, kTileRows>;
  if constexpr (kTileVectors >= 4) {
    if (vectors >= 4) return product_tile_for<Format, Accumulate, 4>(rows, AllRows{});
    if (vectors == 3) return product_tile_for<Format, Accumulate, 3>(rows, AllRows{});
  }
  if (vectors >= 2) return product_tile_for<Format, Accumulate, 2>(rows, AllRows{});
  return product_tile_for<Format, Accumulate, 1>(rows, AllRows{});
}

// c[rows][cols] = (c +) a . b; cols is a multiple of kLanes and b and c have room for it.
template <bool Accumulate, class Format>
inline void product(ProductArgs<Format> args, std::int64_t rows, std::int64_t cols) {
  const typename Format::Element* a = args.a.data;
  float* c = args.c.data;
  for (std::int64_t n = 0; n < cols;) {
    const std::int64_t left = (cols - n) / kLanes;
    const std::int64_t vectors = left < kTileVectors ? left : kTileVectors;
    const ProductTile<Format> whole = product_tile_for<Format, Accumulate>(kTileRows, vectors);
    std::int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      args.a.data = a + r * args.a.row;
      args.c.data = c + r * args.c.row + n;
      whole(args);
    }
    if (r < rows) {
      args.a.data = a + r * args.a.row;
      args.c.data = c + r * args.c.row + n;
      product_tile_for<Format, Accumulate>(static_cast<int>(rows - r), vectors)(args);
    }
    args.b.data += vectors * kLanes;
    n += vectors * kLanes;
  }
}

// The same sum, but a zero in a passes over its row of b: used when b holds an inf or NaN that a masked (zero) weight
// must not touch.
inline void product_skip_zeros(const ProductArgs<FloatFormat>& args, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < args.inner; ++k) {
      const float a = args.a.data[r * args.a.row + k * args.a.step];
      if (a == 0.0F) continue;
      float* c = args.c.data + r * args.c.row;
      const float* b = args.b.data + k * args.b.row;
      for (std::int64_t n = 0; n < cols; n += kLanes) store(c + n, fma(set1(a), load(b + n), load(c + n)));
    }
}

template <class Format>
inline void accumulate(const ProductArgs<Format>& args, std::int64_t rows, std::int64_t cols, bool b_finite) {
  if (b_finite)
    product<true>(args, rows, cols);
  else
    product_skip_zeros(args, rows, cols);
}

// What kernels say: shapes stand in the right margin where they are used.
template <class Format>
inline void set_product(const FloatTile& c, const LeftTile<Format>& a, const RightTile<Format>& b,
                        const ProductShape& shape) {  // (M,N) = (M,K) . (K,N)
  product<false>(ProductArgs<Format>{a, b, c, shape.K}, shape.M, shape.N);
}
template <class Format>
inline void add_product(const FloatTile& c, const LeftTile<Format>& a, const RightTile<Format>& b,
                        const ProductShape& shape) {  // (M,N) += (M,K) . (K,N)
  product<true>(ProductArgs<Format>{a, b, c, shape.K}, shape.M, shape.N);
}
// The same where b may hold an inf or NaN.
template <class Format>
inline void add_product(const FloatTile& c, const LeftTile<Format>& a, const RightTile<Format>& b,
                        const ProductShape& shape, bool b_finite) {
  accumulate(ProductArgs<Format>{a, b, c, shape.K}, shape.M, shape.N, b_finite);
}
