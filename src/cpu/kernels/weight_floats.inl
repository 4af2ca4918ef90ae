// Rows of x against a tile of weights that are plain numbers: floats, or halves that are widened.
//
// The bits of an element: from the bias on, one chain of fused multiply-adds over rising k.

constexpr std::int64_t kWidened = 64;  // numbers of a sum widened at a time: 16 KB, which stay in L1

template <WeightFormat Format>
[[gnu::always_inline]] inline V load_weights(const char* p) {
  if constexpr (Format == WeightFormat::f32)
    return load(reinterpret_cast<const float*>(p));
  else
    return Format == WeightFormat::f16 ? load_f16(p) : load_bf16(p);
}
template <WeightFormat Format>
constexpr std::int64_t kWeightBytes = Format == WeightFormat::f32 ? 4 : 2;

template <WeightFormat Format>
inline void float_rows(const WeightProduct& p, const TileWork& work) {
  const float* x = p.x + work.row * p.x_row_stride;
  auto* widened = reinterpret_cast<float*>(work.scratch);
  for (std::int64_t n = 0; n < work.rows * kKeyTile; n += kLanes) store(work.sums + n, load(work.bias + n % kKeyTile));
  for (std::int64_t k = 0; k < p.in; k += kWidened) {
    const std::int64_t inner = p.in - k < kWidened ? p.in - k : kWidened;
    const char* numbers = work.tile + k * kKeyTile * kWeightBytes<Format>;
    const float* b = widened;
    if constexpr (Format == WeightFormat::f32)
      b = reinterpret_cast<const float*>(numbers);
    else
      for (std::int64_t n = 0; n < inner * kKeyTile; n += kLanes)
        store(widened + n, load_weights<Format>(numbers + n * kWeightBytes<Format>));
    add_product({work.sums, kKeyTile}, LeftTile<FloatFormat>{x + k, p.x_row_stride},
                RightTile<FloatFormat>{b, kKeyTile},
                {work.rows, kKeyTile, inner});  // (rows, outputs) += (rows, inner) . (inner, outputs)
  }
  if (work.y == work.sums) return;
  for (std::int64_t r = 0; r < work.rows; ++r)
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes)
      store(work.y + r * work.y_row + n, load(work.sums + r * kKeyTile + n));
}

// One row alone, without a stop between memory and the sums.
template <WeightFormat Format>
inline void float_lone_row(const float* x, std::int64_t in, const TileWork& work) {
  for (std::int64_t n = 0; n < kKeyTile; n += kTileVectors * kLanes) {
    V acc[std::size_t{kTileVectors}];
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) acc[v] = load(work.bias + n + v * kLanes);
    const char* w = work.tile + n * kWeightBytes<Format>;
    for (std::int64_t k = 0; k < in; ++k, w += kKeyTile * kWeightBytes<Format>) {
      const V xv = set1(x[k]);
#pragma GCC unroll 8
      for (int v = 0; v < kTileVectors; ++v)
        acc[v] = fma(xv, load_weights<Format>(w + v * kLanes * kWeightBytes<Format>), acc[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) store(work.y + n + v * kLanes, acc[v]);
  }
}

template <WeightFormat Format>
inline void float_product(const WeightProduct& p, const TileWork& work) {
  if (work.rows == 1)
    float_lone_row<Format>(p.x + work.row * p.x_row_stride, p.in, work);
  else
    float_rows<Format>(p, work);
}
