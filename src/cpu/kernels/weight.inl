// Projections: rows of x against a tile of weights.

// Rows [row, row + rows) of y and the kKeyTile columns of one tile.
struct TileWork {
  std::int64_t row, rows;
  const char* tile;
  const float* bias;  // [kKeyTile]
  float* y;           // [rows][kKeyTile], y_row apart; may be `sums`
  std::int64_t y_row;
  float* sums;  // [rows][kKeyTile]
  char* scratch;
};

#include "cpu/kernels/weight_floats.inl"
#include "cpu/kernels/weight_quantised.inl"

std::int64_t weight_scratch_bytes(std::int64_t rows) {
  Carver sums{nullptr}, floats{nullptr}, dots{nullptr};
  sums.take<float>(rows * kKeyTile);
  floats.take<float>(kWidened * kKeyTile);
  carve_dots<WeightScales::k_halves>(dots);
  return sums.used + (floats.used > dots.used ? floats.used : dots.used);
}

inline void tile_product(const WeightProduct& p, const TileWork& work) {
  switch (p.format) {
    case WeightFormat::f32:
      return float_product<WeightFormat::f32>(p, work);
    case WeightFormat::f16:
      return float_product<WeightFormat::f16>(p, work);
    case WeightFormat::bf16:
      return float_product<WeightFormat::bf16>(p, work);
    case WeightFormat::q4_0:
      return dot_product<WeightScales::symmetric, 4>(p, work);
    case WeightFormat::q4_1:
      return dot_product<WeightScales::offset, 4>(p, work);
    case WeightFormat::q5_0:
      return dot_product<WeightScales::symmetric, 5>(p, work);
    case WeightFormat::q5_1:
      return dot_product<WeightScales::offset, 5>(p, work);
    case WeightFormat::q8_0:
      return dot_product<WeightScales::symmetric, 8>(p, work);
    case WeightFormat::q4_k:
      return dot_product<WeightScales::k_offset, 4>(p, work);
    case WeightFormat::q5_k:
      return dot_product<WeightScales::k_offset, 5>(p, work);
    case WeightFormat::q6_k:
      return dot_product<WeightScales::k_halves, 6>(p, work);
  }
}

// Rows [row, row + rows) and the columns of tile n.
void weight_product(const WeightProduct& p, std::int64_t row, std::int64_t rows, std::int64_t n, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  auto* sums = carver.take<float>(rows * kKeyTile);
  const std::int64_t n0 = n * kKeyTile, cols = p.out - n0 < kKeyTile ? p.out - n0 : kKeyTile;
  float bias[kKeyTile] = {};
  if (p.bias) load_row(DType::f32, p.bias + n0 * p.bias_stride * 4, p.bias_stride, cols, bias);
  char* to = p.y + (row * p.y_row_stride + n0) * 4;
  const bool in_place = p.in > 0 && cols == kKeyTile && lies_at<float>(to);
  TileWork work{
      row, rows, p.tiles + n * p.tile_bytes, bias, sums, kKeyTile, sums, static_cast<char*>(scratch) + carver.used};
  if (in_place) {
    work.y = reinterpret_cast<float*>(to);
    work.y_row = p.y_row_stride;
  }
  if (p.in > 0) tile_product(p, work);
  if (in_place) return;
  for (std::int64_t r = 0; r < rows; ++r)
    store_row(DType::f32, to + r * p.y_row_stride * 4, 1, cols, p.in > 0 ? sums + r * kKeyTile : bias, 1.0F);
}
