// The decode path, up to six rows over many keys: every number of a tile is used once, so nothing is packed before.
// Keys are transposed and values widened in registers, and the next tile is prefetched between the products. The sums
// are those of the prefill path, to the bit.

// Columns of numbers that lie in kLanes rows: four at a time, or kLanes where they are widened as they are read.
template <class Stored>
constexpr int kColumnsAtOnce = sizeof(Stored) == sizeof(float) ? 4 : kLanes;
template <class Stored>
inline void load_columns(const Stored* rows, std::int64_t row, V (&columns)[std::size_t{kColumnsAtOnce<Stored>}]) {
  if constexpr (sizeof(Stored) == sizeof(float)) {
    load_four_columns(reinterpret_cast<const float*>(rows), row, columns);  // moves bits, whatever they mean
  } else {
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) columns[l] = load_elements(rows + l * row);
    transpose(columns);
  }
}

// c[Rows][columns] = a . b^T, where row n of b holds the numbers of column n.
template <class Format, int Rows>
[[gnu::noinline]] void transposed_product(const ProductArgs<Format>& args, std::int64_t columns) {
  using Stored = typename Format::Stored;
  constexpr int kStep = kColumnsAtOnce<Stored>, kSteps = 64 / (kStep * int{sizeof(Stored)});  // to a cache line
  for (std::int64_t n = 0; n < columns; n += kLanes) {
    const Stored* b = args.b.data + n * args.b.row;
    V acc[std::size_t{Rows}];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) acc[r] = set1(0.0F);
    for (std::int64_t k = 0; k < args.inner; k += kStep) {
      V block[std::size_t{kStep}];
      load_columns(b + k, args.b.row, block);
      const auto step = static_cast<int>(k / kStep % kSteps);  // each step prefetches its share of the lines
      for (int l = step * kLanes / kSteps; l < (step + 1) * kLanes / kSteps; ++l)
        prefetch_next<Format>(b + l * args.b.row + k, 0, args.b.to_next);
      const typename Format::Element* a = args.a.data + k;
#pragma GCC unroll 16
      for (int l = 0; l < kStep; ++l)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
          acc[r] = multiply_add(set1_element(a[r * args.a.row + l]), Format::from_bits(block[l]), acc[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) store(args.c.data + r * args.c.row + n, acc[r]);
  }
}
template <class Format, int... Rows>
inline void transposed_product(const ProductArgs<Format>& args, std::int64_t rows, std::int64_t columns,
                               std::integer_sequence<int, Rows...>) {
  constexpr void (*kProducts[])(const ProductArgs<Format>&, std::int64_t) = {transposed_product<Format, Rows + 1>...};
  kProducts[rows - 1](args, columns);
}

inline bool finite_rows(const float* x, std::int64_t rows, std::int64_t row, std::int64_t cols) {
  V bad = set1(0.0F);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t n = 0; n < cols; n += kLanes) bad = fma(load(x + r * row + n), set1(0.0F), bad);
  return reduce_add(bad) == 0.0F;
}

// A whole tile of keys and values that lie as rows in the caller's memory.
template <class Math>
inline void decode_rows(const AttentionProblem& p, const Block& block, ForwardScratch<Math>& s) {
  const KeyTile at{block.b, block.hk, block.j0};
  const std::int64_t Ep = round_up(p.E, kLanes), Ap = acc_row(p);
  const auto in_place = [&](auto format, const Operand& x) {
    using Stored = typename decltype(format)::Stored;
    const std::int64_t row_bytes = x.row_stride * element_size(x.dtype);
    return RightTile<decltype(format)>{reinterpret_cast<const Stored*>(element(x, at.b, at.hk, at.j0)),
                                       row_bytes / std::int64_t{sizeof(Stored)}, kKeyTile * row_bytes};
  };
  Math::with_keys(p.k.dtype, [&](auto format) {
    using Args = ProductArgs<decltype(format)>;
    transposed_product(Args{{s.queries, s.query_row},  // (M,D)
                            in_place(format, p.k),     // (N,D)
                            {s.scores, kKeyTile},      // (M,N)
                            Math::depth(p.D)},
                       block.rows, kKeyTile, std::make_integer_sequence<int, kTileRows>{});
  });
  weigh_block<Math>(p, block, nullptr, nullptr, s, 0);
  // An inf or NaN among the values shows in the sums; then they are made again with care.
  constexpr std::int64_t kTileElements = kKeyTile / Math::kPack;
  const std::size_t acc_bytes = static_cast<std::size_t>(block.rows * Ap) * sizeof(float);
  __builtin_memcpy(s.acc_before, s.part.acc, acc_bytes);
  Math::with_values(p.v.dtype, [&](auto format) {
    const LeftTile<decltype(format)> weights{s.weights, Math::kWeightRow};
    add_product({s.part.acc, Ap}, weights, in_place(format, p.v),
                {block.rows, Ep, kTileElements});  // (M,E) += (M,N) . (N,E)
  });
  if (finite_rows(s.part.acc, block.rows, Ap, Ep)) return;
  __builtin_memcpy(s.part.acc, s.acc_before, acc_bytes);
  const bool finite = Math::pack_along_keys(p.v, at, kKeyTile, p.E, s.tile_rows, s.tile.v);
  add_product({s.part.acc, Ap}, LeftTile<typename Math::Format>{s.weights, Math::kWeightRow},
              RightTile<typename Math::Format>{s.tile.v, Ep}, {block.rows, Ep, kTileElements}, finite);
}

// A tile of a cache. False when its values hold an inf or NaN.
template <class Math>
inline bool decode_cached(const AttentionProblem& p, const Block& block, ForwardScratch<Math>& s) {
  const PackedTiles& packed = *p.packed;
  const std::int64_t tile = block.j0 / kKeyTile, columns = block.c1 - block.c0;
  const std::int64_t Ep = round_up(p.E, kLanes), Ap = acc_row(p);
  char* data = packed.tile(block.b, block.hk, p.Hk, tile);
  const bool more = block.j0 + kKeyTile < p.N;
  const std::int64_t to_next = more ? packed.tile(block.b, block.hk, p.Hk, tile + 1) - data : 0;
  Carver carver{data};
  StoredTile t{};
  if (packed.stored == StoredAs::packed) {
    const PackedTile<Math> own = take_tile<Math>(p.D, p.E, carver);
    t = {reinterpret_cast<char*>(own.k), reinterpret_cast<char*>(own.v), nullptr, nullptr, own.v_finite};
  } else {
    t = take_stored_tile<Math>(packed.stored, p.D, p.E, carver);
    if (packed.stored != StoredAs::int8) t.k_scales = t.v_scales = nullptr;
  }
  if (!*t.v_finite) return false;
  Math::with_stored(packed.stored, [&](auto format) {
    using Stored = typename decltype(format)::Stored;
    const auto *k = reinterpret_cast<const Stored*>(t.k), *v = reinterpret_cast<const Stored*>(t.v);
    const LeftTile<decltype(format)> q{s.queries, s.query_row},
        weights{s.weights + block.c0 / Math::kPack, Math::kWeightRow};
    const RightTile<decltype(format)> keys{k + block.c0, kKeyTile, to_next},
        values{v + block.c0 / Math::kPack * Ep, Ep, to_next};
    set_product({s.scores + block.c0, kKeyTile}, q, keys,
                {block.rows, columns, Math::depth(p.D)});  // (M,N) = (M,D) . (D,N)
    weigh_block<Math>(p, block, t.k_scales, t.v_scales, s, 0);
    add_product({s.part.acc, Ap}, weights, values, {block.rows, Ep, columns / Math::kPack});  // (M,E) += (M,N) . (N,E)
  });
  return true;
}

// One tile of keys for all rows of the range, where they are few and the tile can be read as it lies; else false.
template <class Math>
inline bool decode_tile(const AttentionProblem& p, const RowRange& range, std::int64_t j0, ForwardScratch<Math>& s) {
  if constexpr (Math::kReadsInPlace) {
    if (range.end - range.begin > kTileRows || p.no_values) return false;
    const bool cached = p.packed && p.packed->pages;
    if (!cached && (p.packed || keys_in_tile(p, {range.b, range.hk, j0}) != kKeyTile ||
                    !Math::readable_rows(p.k, p.D) || !Math::readable_rows(p.v, p.E)))
      return false;
    Block block{range.b, range.hk, range.begin, 0, j0, 0, 0, false};
    if (!place_next_block(p, s.keys, range.end, block)) return true;
    if (cached) return decode_cached(p, block, s);
    // An inf or NaN at a key that no row sees would not show in the sums, but counts for many rows.
    if (block.c1 - block.c0 != kKeyTile) return false;
    decode_rows(p, block, s);
    return true;
  } else {
    return false;
  }
}
