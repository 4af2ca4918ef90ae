// A block of a strided matrix product: rows of a against tiles of kKeyTile columns of b.

constexpr std::int64_t kMatmulInner = 512;  // products summed before they are added to the total; part of the bits

template <class Math>
struct MatmulScratch {
  typename Math::Element *a, *b, *b_rows;
  float *part, *total;
};

template <class Math>
inline MatmulScratch<Math> carve_matmul(std::int64_t rows, Carver& carver) {
  using Element = typename Math::Element;
  constexpr std::int64_t kElements = kMatmulInner / Math::kPack;
  return {carver.take<Element>(round_up(rows, kLanes) * kElements), carver.take<Element>(kElements * kKeyTile),
          carver.take<Element>(kElements * kKeyTile), carver.take<float>(rows * kKeyTile),
          carver.take<float>(rows * kKeyTile)};
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
                   typename Math::Element* rows, typename Math::Element* dst) {
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
  auto* columns = reinterpret_cast<typename Math::Element*>(dst);
  for (std::int64_t k0 = 0; k0 < p.inner; k0 += kMatmulInner) {
    const std::int64_t inner = p.inner - k0 < kMatmulInner ? p.inner - k0 : kMatmulInner;
    pack_b<Math>(p.b, k0, inner, n0, cols, s.b_rows, columns + k0 / Math::kPack * kKeyTile);
  }
}

// Bytes of kKeyTile packed columns.
template <class Math>
std::int64_t matmul_packed_bytes_with(const MatmulProblem& p) {
  return round_up(Math::depth(round_up(p.inner, kKeyTile)) * kKeyTile * std::int64_t{sizeof(typename Math::Element)},
                  64);
}

// a's rows [row, row + rows) of k0 .. k0+inner: where they lie if a row can be read there, else copied. Rows that are
// columns in memory are copied as they lie: from k to k+1 it is far, often by a power of two, and few such lines fit in
// L1.
template <class Math>
inline void place_a(const MatrixRef& a, std::int64_t row, std::int64_t rows, std::int64_t k0, std::int64_t inner,
                    const MatmulScratch<Math>& s, ProductArgs<typename Math::Format>& args) {
  args.a.data = s.a;
  if (a.row_stride == 1 && a.col_stride != 1) {
    args.a.row = 1;
    args.a.step = round_up(rows, kLanes);
    for (std::int64_t k = 0; k < inner; k += kKeyTile)
      Math::pack_along_keys(shifted(columns_of(a), row), {0, 0, k0 + k}, inner - k < kKeyTile ? inner - k : kKeyTile,
                            rows, s.b_rows, s.a + k / Math::kPack * args.a.step);
  } else if (const typename Math::Element* in_place = Math::rows_in_place(a, row, k0, inner)) {
    args.a.data = in_place;
    args.a.row = a.row_stride / Math::kPack;
    args.a.step = Math::kPack == 1 ? a.col_stride : 1;
  } else {
    args.a.row = Math::row_elements(inner);
    args.a.step = 1;
    Math::load_head_rows(shifted(rows_of(a), k0), 0, 0, row, rows, inner, s.a);
  }
}

inline char* matrix_element(const MatrixRef& m, std::int64_t r, std::int64_t c) {
  return static_cast<char*>(m.data) + (r * m.row_stride + c * m.col_stride) * element_size(m.dtype);
}

// Rows [row, row + rows) of columns [n0, n1): sums of the tile at n go to total[n - n0], total_row floats apart.
template <class Math>
void sum_products(const MatmulProblem& p, std::int64_t row, std::int64_t rows, std::int64_t n0, std::int64_t n1,
                  const char* packed, float* total, std::int64_t total_row, const MatmulScratch<Math>& s) {
  using Element = typename Math::Element;
  for (std::int64_t k0 = 0; k0 < p.inner; k0 += kMatmulInner) {
    const std::int64_t inner = p.inner - k0 < kMatmulInner ? p.inner - k0 : kMatmulInner;
    const std::int64_t depth = Math::depth(inner);
    ProductArgs<typename Math::Format> panel{};
    place_a<Math>(p.a, row, rows, k0, inner, s, panel);
    for (std::int64_t n = n0; n < n1; n += kKeyTile) {
      const std::int64_t cols = n1 - n < kKeyTile ? n1 - n : kKeyTile, whole = round_up(cols, kLanes);
      const Element* b = s.b;
      if (packed)
        b = reinterpret_cast<const Element*>(packed + (n - n0) / kKeyTile * matmul_packed_bytes_with<Math>(p)) +
            k0 / Math::kPack * kKeyTile;
      else
        pack_b<Math>(p.b, k0, inner, n, cols, s.b_rows, s.b);
      ProductArgs<typename Math::Format> args = panel;
      args.b.data = b;
      args.b.row = kKeyTile;
      args.c.data = k0 == 0 ? total + (n - n0) : s.part;
      args.c.row = k0 == 0 ? total_row : kKeyTile;
      args.inner = depth;
      product<false>(args, rows, whole);
      for (std::int64_t r = 0; k0 > 0 && r < rows; ++r)
        for (std::int64_t c = 0; c < whole; c += kLanes) {
          float* sum = total + r * total_row + n - n0 + c;
          store(sum, add(load(sum), load(s.part + r * kKeyTile + c)));
        }
    }
  }
}

// Rows [row, row + rows) of columns [n0, n1). Sums are made in c itself where it can hold them: its lines are then
// fetched while products go on, and a is copied once for all of them.
template <class Math>
void matmul_with(const MatmulProblem& p, std::int64_t row, std::int64_t rows, std::int64_t n0, std::int64_t n1,
                 const char* packed, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  [[maybe_unused]] const typename Math::Session session{};
  const MatmulScratch<Math> s = carve_matmul<Math>(rows, carver);
  const bool direct =
      !p.add && !p.bias && p.c.dtype == DType::f32 && p.c.col_stride == 1 && p.inner > 0 && lies_at<float>(p.c.data);
  std::int64_t n = n0;
  if (direct) {
    n = n1 % kLanes == 0 ? n1 : n1 / kKeyTile * kKeyTile;
    float* c = reinterpret_cast<float*>(matrix_element(p.c, row, n0));
    if (n > n0) sum_products<Math>(p, row, rows, n0, n, packed, c, p.c.row_stride, s);
  }
  for (; n < n1; n += kKeyTile) {
    const std::int64_t cols = n1 - n < kKeyTile ? n1 - n : kKeyTile;
    const char* own = packed ? packed + (n - n0) / kKeyTile * matmul_packed_bytes_with<Math>(p) : nullptr;
    if (p.inner == 0) clear(s.total, rows * kKeyTile);
    sum_products<Math>(p, row, rows, n, n + cols, own, s.total, kKeyTile, s);
    float bias[kKeyTile] = {};
    if (p.bias) load_row(p.bias->dtype, matrix_element(*p.bias, 0, n), p.bias->col_stride, cols, bias);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* sum = s.total + r * kKeyTile;
      if (p.bias)
        for (std::int64_t c = 0; c < kKeyTile; c += kLanes) store(sum + c, add(load(sum + c), load(bias + c)));
      if (p.add) {
        float old[kKeyTile] = {};
        load_row(p.c.dtype, matrix_element(p.c, row + r, n), p.c.col_stride, cols, old);
        for (std::int64_t c = 0; c < kKeyTile; c += kLanes) store(sum + c, add(load(sum + c), load(old + c)));
      }
      store_row(p.c.dtype, matrix_element(p.c, row + r, n), p.c.col_stride, cols, sum, 1.0F);
    }
  }
}
