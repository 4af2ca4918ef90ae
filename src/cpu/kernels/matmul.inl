// A block of a strided matrix product: rows of a against kKeyTile columns of b.

constexpr std::int64_t kMatmulInner = 512;  // products summed before they are added to the total; part of the bits

struct MatmulScratch {
  float *a, *b, *b_rows, *part, *total;
};

inline MatmulScratch carve_matmul(std::int64_t rows, Carver& carver) {
  return {carver.take<float>(rows * kMatmulInner), carver.take<float>(kMatmulInner * kKeyTile),
          carver.take<float>(kMatmulInner * kKeyTile), carver.take<float>(rows * kKeyTile),
          carver.take<float>(rows * kKeyTile)};
}

std::int64_t matmul_scratch_bytes(std::int64_t rows) {
  Carver carver{nullptr};
  carve_matmul(rows, carver);
  return carver.used;
}

inline const char* at(const MatrixRef& m, std::int64_t row, std::int64_t col) {
  return static_cast<const char*>(m.data) + (row * m.row_stride + col * m.col_stride) * element_size(m.dtype);
}

// b[k0 .. k0+inner][n0 .. n0+cols] into dst[inner][kKeyTile], read along whichever way is contiguous.
inline void pack_b(const MatrixRef& b, std::int64_t k0, std::int64_t inner, std::int64_t n0, std::int64_t cols,
                   float* rows, float* dst) {
  if (b.row_stride == 1 && b.col_stride != 1) {
    for (std::int64_t n = 0; n < cols; ++n) load_row(b.dtype, at(b, k0, n0 + n), 1, inner, rows + n * kMatmulInner);
    clear(rows + cols * kMatmulInner, (kKeyTile - cols) * kMatmulInner);
    transpose_tile(rows, kMatmulInner, inner, dst);
    return;
  }
  for (std::int64_t k = 0; k < inner; ++k) {
    float* row = dst + k * kKeyTile;
    for (std::int64_t n = cols; n < kKeyTile; ++n) row[n] = 0.0F;
    load_row(b.dtype, at(b, k0 + k, n0), b.col_stride, cols, row);
  }
}

void matmul(const MatmulProblem& p, std::int64_t row, std::int64_t rows, std::int64_t n0, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const MatmulScratch s = carve_matmul(rows, carver);
  const std::int64_t cols = p.cols - n0 < kKeyTile ? p.cols - n0 : kKeyTile;
  const bool a_direct = p.a.dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(p.a.data) % sizeof(float) == 0;
  clear(s.total, rows * kKeyTile);
  for (std::int64_t k0 = 0; k0 < p.inner; k0 += kMatmulInner) {
    const std::int64_t inner = p.inner - k0 < kMatmulInner ? p.inner - k0 : kMatmulInner;
    pack_b(p.b, k0, inner, n0, cols, s.b_rows, s.b);
    ProductArgs args{s.a, kMatmulInner, 1, s.b, kKeyTile, k0 == 0 ? s.total : s.part, kKeyTile, inner};
    if (a_direct) {
      args.a = reinterpret_cast<const float*>(at(p.a, row, k0));
      args.a_row = p.a.row_stride;
      args.a_inner = p.a.col_stride;
    } else {
      for (std::int64_t r = 0; r < rows; ++r)
        load_row(p.a.dtype, at(p.a, row + r, k0), p.a.col_stride, inner, s.a + r * kMatmulInner);
    }
    product<false>(args, rows, round_up(cols, kLanes));
    if (k0 > 0)
      for (std::int64_t n = 0; n < rows * kKeyTile; n += kLanes)
        store(s.total + n, add(load(s.total + n), load(s.part + n)));
  }
  float bias[kKeyTile] = {};
  if (p.bias) load_row(p.bias->dtype, at(*p.bias, 0, n0), p.bias->col_stride, cols, bias);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* sum = s.total + r * kKeyTile;
    if (p.bias)
      for (std::int64_t n = 0; n < kKeyTile; n += kLanes) store(sum + n, add(load(sum + n), load(bias + n)));
    char* dst =
        static_cast<char*>(p.c.data) + ((row + r) * p.c.row_stride + n0 * p.c.col_stride) * element_size(p.c.dtype);
    store_row(p.c.dtype, dst, p.c.col_stride, cols, sum, 1.0F);
  }
}
