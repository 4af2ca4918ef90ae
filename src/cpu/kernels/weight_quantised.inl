// Rows of x, rounded to int8, against a tile of quantised weights: integer products of a run, then floats.
//
// The bits of an element: from the bias on, over the runs of 32 in rising order, sum = fma(i * d, scale, sum) with i
// the exact integer product of a run (of each half of it where weights have a scale for 16), d the weights' scale and
// `scale` that of the run of x; and where weights have an offset m, sum = fma(m, scaled_sum, sum) after it.

constexpr std::int64_t kDotRuns = 8;  // runs worked on at a time, a record of the K formats: they stay in L1

template <int Bits>
constexpr std::int64_t kUnpackFrom = Bits == 4 || Bits == 8 ? 1 << 30 : 24;  // rows, from which on unpacking pays

// Group g of a run, as bytes: the four numbers of kLanes rows of the weight from row c on.
template <int Bits>
[[gnu::always_inline]] inline Packed unpack_group(const std::uint8_t* run, int g, std::int64_t c) {
  run += 4 * c;
  Packed low = load_packed(run + low_plane(Bits, g));
  if constexpr (Bits == 8) return low;
  low = low >> low_shift(Bits, g) & 0x0F0F0F0FU;
  if constexpr (Bits == 4) return low;
  const Packed high = load_packed(run + high_plane(Bits, g));
  const std::int64_t left = 4 - high_shift(Bits, g);
  return low | ((left > 0 ? high << left : high >> -left) & (Bits == 6 ? 0x30303030U : 0x10101010U));
}

// Scales and offsets of kLanes rows of the weight from row c on. An offset is what is added: the K formats' is negated.
struct DotScales {
  V d[2];  // the second one for the second half of a run
  V m;
};
template <WeightScales Scales>
[[gnu::always_inline]] inline DotScales unpack_scales(const char* head, const char* tail, std::int64_t c) {
  if constexpr (Scales == WeightScales::symmetric) {
    const V d = load_f16(tail + 2 * c);
    return {{d, d}, d};
  } else if constexpr (Scales == WeightScales::offset) {
    const V d = load_f16(tail + 2 * c);
    return {{d, d}, load_f16(tail + 2 * (kKeyTile + c))};
  } else if constexpr (Scales == WeightScales::k_offset) {
    const auto* own = reinterpret_cast<const std::uint8_t*>(tail) + c;
    const V d = mul(load_f16(head + 2 * c), load_uint8(own));
    return {{d, d}, sub(set1(0.0F), mul(load_f16(head + 2 * (kKeyTile + c)), load_uint8(own + kKeyTile)))};
  } else {
    const auto* own = reinterpret_cast<const std::int8_t*>(tail) + c;
    const V d = load_f16(head + 2 * c);
    return {{mul(d, load_int8(own)), mul(d, load_int8(own + kKeyTile))}, d};
  }
}

// Up to kDotRuns runs of a tile as they are stored...
template <WeightScales Scales, int Bits>
struct StoredRuns {
  static constexpr WeightScales kScales = Scales;
  const char *head, *run;

  [[gnu::always_inline]] Packed group(int g, std::int64_t c) const {
    return unpack_group<Bits>(reinterpret_cast<const std::uint8_t*>(run), g, c);
  }
  [[gnu::always_inline]] DotScales scales(std::int64_t c) const {
    return unpack_scales<Scales>(head, run + number_bytes(kLayout), c);
  }
  [[gnu::always_inline]] void next() { run += number_bytes(kLayout) + kLayout.tail; }

 private:
  static constexpr WeightLayout kLayout = {Scales, Bits, 0, 0,
                                           Scales == WeightScales::offset ? 4 * kKeyTile : 2 * kKeyTile};
};

// ... and unpacked: bytes, and scales as floats.
template <WeightScales Scales>
struct UnpackedRuns {
  static constexpr WeightScales kScales = Scales;
  std::uint8_t* numbers;  // [kDotRuns][8][kKeyTile][4]
  float* d;               // [kDotRuns][2][kKeyTile], the second half only where it is another
  float* m;               // [kDotRuns][kKeyTile]

  [[gnu::always_inline]] Packed group(int g, std::int64_t c) const {
    return load_packed(numbers + (g * kKeyTile + c) * 4);
  }
  [[gnu::always_inline]] DotScales scales(std::int64_t c) const {
    return {{load(d + c), load(d + kKeyTile + c)}, load(m + c)};
  }
  [[gnu::always_inline]] void next() {
    numbers += kRun * kKeyTile;
    d += 2 * kKeyTile;
    m += kKeyTile;
  }
};
template <WeightScales Scales>
inline UnpackedRuns<Scales> carve_dots(Carver& carver) {
  return {carver.take<std::uint8_t>(kDotRuns * kRun * kKeyTile), carver.take<float>(2 * kDotRuns * kKeyTile),
          carver.take<float>(kDotRuns * kKeyTile)};
}

template <class Stored, class Unpacked>
inline void unpack_runs(Stored from, Unpacked to, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n, from.next(), to.next()) {
    for (std::int64_t c = 0; c < kKeyTile; c += kLanes) {
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) store_packed(to.numbers + (g * kKeyTile + c) * 4, from.group(g, c));
      const DotScales scales = from.scales(c);
      store(to.d + c, scales.d[0]);
      if constexpr (Unpacked::kScales == WeightScales::k_halves) store(to.d + kKeyTile + c, scales.d[1]);
      if constexpr (Unpacked::kScales == WeightScales::offset) store(to.m + c, scales.m);
    }
  }
}

template <class Runs>
struct DotArgs {
  Runs weights;
  std::int64_t column;  // of the tile, from which on
  const RoundedRun* x;
  std::int64_t x_row;  // runs from row to row
  std::int64_t runs;
  // Sums so far, and where they go with these runs: rows so many floats apart.
  const float* from;
  std::int64_t from_row;
  float* to;
  std::int64_t to_row;
};

template <class Runs, int Bits, int Rows, int Vectors>
[[gnu::noinline]] void dot_tile(const DotArgs<Runs>& args) {
  constexpr WeightScales kScales = Runs::kScales;
  constexpr bool kCentred = kScales == WeightScales::symmetric || kScales == WeightScales::k_halves;
  constexpr int kParts = kScales == WeightScales::k_halves ? 2 : 1, kGroups = 8 / kParts;
  V acc[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) acc[r][n] = load(args.from + r * args.from_row + n * kLanes);
  Runs weights = args.weights;
  const RoundedRun* x = args.x;
  const std::int64_t x_row = args.x_row, column = args.column;
  for (std::int64_t run = 0; run < args.runs; ++run, ++x, weights.next()) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const auto start = [&](int r) { return kParts == 2 ? x[r * x_row].minus_sum_of[part] : x[r * x_row].minus_sum; };
      DotSum<Bits> sum[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int n = 0; n < Vectors; ++n) sum[r][n] = dot_begin<Bits, kCentred>(start(r));
#pragma GCC unroll 8
      for (int g = part * kGroups; g < (part + 1) * kGroups; ++g) {
        DotWeights<Bits> w[std::size_t{Vectors}];
#pragma GCC unroll 8
        for (int n = 0; n < Vectors; ++n) w[n] = dot_weights<Bits>(weights.group(g, column + n * kLanes));
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const DotInput xv = dot_input(x[r * x_row].numbers + 4 * g);
#pragma GCC unroll 8
          for (int n = 0; n < Vectors; ++n) dot_add<Bits>(sum[r][n], w[n], xv);
        }
      }
#pragma GCC unroll 8
      for (int n = 0; n < Vectors; ++n) {
        const DotScales scales = weights.scales(column + n * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const V scaled = mul(dot_end<Bits, kCentred>(sum[r][n], start(r)), scales.d[part]);
          acc[r][n] = fma(scaled, set1(x[r * x_row].scale), acc[r][n]);
          if constexpr (!kCentred) acc[r][n] = fma(scales.m, set1(x[r * x_row].scaled_sum), acc[r][n]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < Vectors; ++n) store(args.to + r * args.to_row + n * kLanes, acc[r][n]);
}

template <class Runs>
using DotTile = void (*)(const DotArgs<Runs>&);

template <class Runs, int Bits, int... Rows>
constexpr DotTile<Runs> dot_tile_for(int rows, std::integer_sequence<int, Rows...>) {
  constexpr DotTile<Runs> tiles[] = {dot_tile<Runs, Bits, Rows + 1, kDotVectors<Bits>>...};
  return tiles[rows - 1];
}

// `rows` rows against all columns of a tile, up to kDotRuns runs.
template <int Bits, class Runs>
inline void dot_rows(DotArgs<Runs> args, std::int64_t rows) {
  using AllRows = std::make_integer_sequence<int, kDotRows>;
  const DotArgs<Runs> all = args;
  constexpr std::int64_t kColumns = kDotVectors<Bits> * kLanes;
  for (args.column = 0; args.column < kKeyTile; args.column += kColumns)
    for (std::int64_t r = 0; r < rows; r += kDotRows) {
      args.x = all.x + r * args.x_row;
      args.from = all.from + r * args.from_row + args.column;
      args.to = all.to + r * args.to_row + args.column;
      dot_tile_for<Runs, Bits>(static_cast<int>(rows - r < kDotRows ? rows - r : kDotRows), AllRows{})(args);
    }
}
template <int Bits, class Runs>
inline void dot_lone_row(DotArgs<Runs> args) {
  const DotArgs<Runs> all = args;
  for (args.column = 0; args.column < kKeyTile; args.column += kLoneRowVectors * kLanes) {
    args.from = all.from + args.column;
    args.to = all.to + args.column;
    dot_tile<Runs, Bits, 1, kLoneRowVectors>(args);
  }
}

template <WeightScales Scales, int Bits>
inline void dot_product(const WeightProduct& p, const TileWork& work) {
  // Unpacked, the K formats' offset is no other than that of the small blocks.
  using Unpacked = UnpackedRuns<Scales == WeightScales::k_offset ? WeightScales::offset : Scales>;
  using Stored = StoredRuns<Scales, Bits>;
  Carver carver{work.scratch};
  const Unpacked unpacked = carve_dots<Unpacked::kScales>(carver);
  const WeightLayout l = layout_of(p.format);
  const std::int64_t runs = p.in / kRun;
  const float* from = work.bias;
  std::int64_t from_row = 0;
  for (std::int64_t first = 0; first < runs; first += kDotRuns, from = work.sums, from_row = kKeyTile) {
    const bool last = runs - first <= kDotRuns;
    const std::int64_t count = last ? runs - first : kDotRuns, to_row = last ? work.y_row : kKeyTile;
    float* to = last ? work.y : work.sums;
    const char* record = work.tile + first / l.runs * record_bytes(l);
    const Stored stored{record, record + l.head};
    const RoundedRun* x = p.rounded + work.row * runs + first;
    const DotArgs<Stored> args{stored, 0, x, runs, count, from, from_row, to, to_row};
    if (work.rows == 1) {
      dot_lone_row<Bits>(args);
    } else if (work.rows < kUnpackFrom<Bits>) {
      dot_rows<Bits>(args, work.rows);
    } else {
      unpack_runs(stored, unpacked, count);
      dot_rows<Bits>(DotArgs<Unpacked>{unpacked, 0, x, runs, count, from, from_row, to, to_row}, work.rows);
    }
  }
}
