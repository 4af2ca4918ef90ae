// A block of a strided matrix product: rows of a against kKeyTile columns of b.

constexpr std::int64_t kMatmulInner = 512;  // products summed before they are added to the total; part of the bits
constexpr std::int64_t kMatmulStep = 128;   // of which so many at once: b's part of them stays in L1

template <class Math>
struct MatmulScratch {
  typename Math::Cell *a, *b, *b_rows;
  float *part, *total;
};

template <class Math>
inline MatmulScratch<Math> carve_matmul(std::int64_t rows, Carver& carver) {
  using Cell = typename Math::Cell;
  constexpr std::int64_t kCells = kMatmulInner / Math::kPack;
  return {carver.take<Cell>(rows * kCells), carver.take<Cell>(kCells * kKeyTile), carver.take<Cell>(kCells * kKeyTile),
          carver.take<float>(rows * kKeyTile), carver.take<float>(rows * kKeyTile)};
}

std::int64_t matmul_scratch_bytes(std::int64_t rows) {
  Carver floats{nullptr}, pairs{nullptr};
  carve_matmul<Floats>(rows, floats);
  carve_matmul<Pairs>(rows, pairs);
  return floats.used > pairs.used ? floats.used : pairs.used;
}

// A matrix as one head of an operand, so that its rows are loaded as those of q and k are.
inline Operand rows_of(const MatrixRef& m) {
  return {m.dtype, m.data, 0, 0, m.row_stride, m.col_stride};
}
inline Operand columns_of(const MatrixRef& m) {
  return {m.dtype, m.data, 0, 0, m.col_stride, m.row_stride};
}
inline Operand shifted(Operand x, std::int64_t columns) {
  x.data = static_cast<char*>(x.data) + columns * x.dim_stride * element_size(x.dtype);
  return x;
}

// b[k0 .. k0+inner][n0 .. n0+cols] into dst[depth(inner)][kKeyTile], read along whichever way is contiguous.
template <class Math>
inline void pack_b(const MatrixRef& b, std::int64_t k0, std::int64_t inner, std::int64_t n0, std::int64_t cols,
                   typename Math::Cell* rows, typename Math::Cell* dst) {
  if (b.col_stride == 1 && cols == kKeyTile) {  // rows of b are contiguous: sum over them
    for (std::int64_t k = 0; k < inner; k += kKeyTile) {
      const std::int64_t count = inner - k < kKeyTile ? inner - k : kKeyTile;
      Math::pack_along_keys(shifted(rows_of(b), n0), {0, 0, k0 + k}, count, cols, rows,
                            dst + k / Math::kPack * kKeyTile);
    }
    return;
  }
  Math::pack_along_dim(shifted(columns_of(b), k0), {0, 0, n0}, cols, inner, rows, dst);
}

template <class Math>
void matmul_pack_with(const MatmulProblem& p, std::int64_t n0, char* dst, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const MatmulScratch<Math> s = carve_matmul<Math>(0, carver);
  const std::int64_t cols = p.cols - n0 < kKeyTile ? p.cols - n0 : kKeyTile;
  auto* cells = reinterpret_cast<typename Math::Cell*>(dst);
  for (std::int64_t k0 = 0; k0 < p.inner; k0 += kMatmulInner) {
    const std::int64_t inner = p.inner - k0 < kMatmulInner ? p.inner - k0 : kMatmulInner;
    pack_b<Math>(p.b, k0, inner, n0, cols, s.b_rows, cells + k0 / Math::kPack * kKeyTile);
  }
}

// Bytes of kKeyTile packed columns.
template <class Math>
std::int64_t matmul_packed_bytes_with(const MatmulProblem& p) {
  return round_up(Math::depth(round_up(p.inner, kKeyTile)) * kKeyTile * std::int64_t{sizeof(typename Math::Cell)}, 64);
}

template <class Math>
void matmul_with(const MatmulProblem& p, std::int64_t row, std::int64_t rows, std::int64_t n0, const char* packed,
                 void* scratch) {
  using Cell = typename Math::Cell;
  using Args = ProductArgs<typename Math::Cells>;
  Carver carver{static_cast<char*>(scratch)};
  [[maybe_unused]] const typename Math::Session session{};
  const MatmulScratch<Math> s = carve_matmul<Math>(rows, carver);
  const std::int64_t cols = p.cols - n0 < kKeyTile ? p.cols - n0 : kKeyTile;
  clear(s.total, rows * kKeyTile);
  for (std::int64_t k0 = 0; k0 < p.inner; k0 += kMatmulInner) {
    const std::int64_t inner = p.inner - k0 < kMatmulInner ? p.inner - k0 : kMatmulInner;
    const Cell* b = s.b;
    if (packed)
      b = reinterpret_cast<const Cell*>(packed) + k0 / Math::kPack * kKeyTile;
    else
      pack_b<Math>(p.b, k0, inner, n0, cols, s.b_rows, s.b);
    Args args{s.a, Math::row_cells(inner), 1, b, kKeyTile, k0 == 0 ? s.total : s.part, kKeyTile, 0};
    if (const Cell* a = Math::rows_in_place(p.a, row, k0, inner)) {
      args.a = a;
      args.a_row = p.a.row_stride / Math::kPack;
      args.a_inner = Math::kPack == 1 ? p.a.col_stride : 1;
    } else {
      Math::load_head_rows(shifted(rows_of(p.a), k0), 0, 0, row, rows, inner, s.a);
    }
    const std::int64_t depth = Math::depth(inner);
    for (std::int64_t k = 0; k < depth;
         k += kMatmulStep, args.a += kMatmulStep * args.a_inner, args.b += kMatmulStep * kKeyTile) {
      args.inner = depth - k < kMatmulStep ? depth - k : kMatmulStep;
      if (k == 0)
        product<false>(args, rows, round_up(cols, kLanes));
      else
        product<true>(args, rows, round_up(cols, kLanes));
    }
    if (k0 > 0)
      for (std::int64_t n = 0; n < rows * kKeyTile; n += kLanes)
        store(s.total + n, add(load(s.total + n), load(s.part + n)));
  }
  float bias[kKeyTile] = {};
  const auto at = [](const MatrixRef& m, std::int64_t r, std::int64_t c) {
    return static_cast<char*>(m.data) + (r * m.row_stride + c * m.col_stride) * element_size(m.dtype);
  };
  if (p.bias) load_row(p.bias->dtype, at(*p.bias, 0, n0), p.bias->col_stride, cols, bias);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* sum = s.total + r * kKeyTile;
    if (p.bias)
      for (std::int64_t n = 0; n < kKeyTile; n += kLanes) store(sum + n, add(load(sum + n), load(bias + n)));
    if (p.add) {
      float old[kKeyTile] = {};
      load_row(p.c.dtype, at(p.c, row + r, n0), p.c.col_stride, cols, old);
      for (std::int64_t n = 0; n < kKeyTile; n += kLanes) store(sum + n, add(load(sum + n), load(old + n)));
    }
    store_row(p.c.dtype, at(p.c, row + r, n0), p.c.col_stride, cols, sum, 1.0F);
  }
}
