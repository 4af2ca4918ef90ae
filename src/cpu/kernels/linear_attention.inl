// Rows and small matrices of linear attention. Sums run in an order that depends on the sizes alone.

inline void prefetch_rows(const RowsAhead& ahead, std::int64_t first, std::int64_t rows) {
  if (!ahead.data) return;
  const char* row = static_cast<const char*>(ahead.data) + first * ahead.row_bytes;
  for (std::int64_t r = 0; r < rows; ++r, row += ahead.row_bytes)
    for (std::int64_t at = 0; at < ahead.bytes; at += 64) __builtin_prefetch(row + at);
}

bool linear_attention_product(const LinearAttentionProduct& p, void* scratch) {
  constexpr std::int64_t kStep = 128;  // of the sum at once: b's part of it stays in L1
  const bool along = p.b_col == 1 && p.cols % kLanes == 0;
  const bool across = p.b_row == 1 && p.cols % kKeyTile == 0 && p.inner % kLanes == 0;  // b is transposed first
  if (p.inner == 0 || p.inner > kMatmulInner || !(along || across)) return false;
  auto* columns = static_cast<float*>(scratch);
  const std::int64_t width = along ? p.cols : kKeyTile;
  for (std::int64_t n = 0; n < p.cols; n += width) {
    if (!along) transpose_tile(p.b + n * p.b_col, p.b_col, p.inner, columns);
    ProductArgs<FloatFormat> args{
        {p.a, p.a_row, p.a_inner}, {along ? p.b : columns, along ? p.b_row : kKeyTile}, {p.c + n, p.c_row}, 0};
    for (std::int64_t k = 0; k < p.inner; k += kStep) {
      args.inner = p.inner - k < kStep ? p.inner - k : kStep;
      ProductArgs<FloatFormat> part = args;
      for (std::int64_t r = 0; r < p.rows; r += kTileRows) {
        const std::int64_t rows = p.rows - r < kTileRows ? p.rows - r : kTileRows;
        for (const RowsAhead& ahead : p.ahead)
          if (n == 0 && k == 0) prefetch_rows(ahead, r, rows);
        if (k == 0 && !p.add)
          product<false>(part, rows, width);
        else
          product<true>(part, rows, width);
        part.a.data += rows * part.a.row;
        part.c.data += rows * part.c.row;
      }
      args.a.data += kStep * args.a.step;
      args.b.data += kStep * args.b.row;
    }
  }
  return true;
}

void linear_attention_load_rows(DType dtype, const void* from, std::int64_t row_stride, std::int64_t stride,
                                std::int64_t rows, std::int64_t n, float* to) {
  const char* p = static_cast<const char*>(from);
  const std::int64_t row_bytes = row_stride * element_size(dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    load_row(dtype, p + r * row_bytes, n > 1 ? stride : 1, n, to + r * n);
  }
}

void linear_attention_store_rows(DType dtype, void* to, std::int64_t row_stride, std::int64_t stride, std::int64_t rows,
                                 std::int64_t n, const float* from, const float* factors, float factor) {
  char* p = static_cast<char*>(to);
  for (std::int64_t r = 0; r < rows; ++r)
    store_row(dtype, p + r * row_stride * element_size(dtype), n > 1 ? stride : 1, n, from + r * n,
              factors ? factors[r] : factor);
}

// e^x for x <= 0, with log2(e) in two parts: the rounding of x * log2(e) alone would cost |x| / 2 ULP.
inline V exp_negative(V x) {
  constexpr float kLow = 1.925963033500e-8F;  // log2(e) - kLog2e
  x = max(set1(-200.0F), x);                  // -inf would leave inf - inf; NaN stays NaN
  const V t = mul(x, set1(kLog2e));
  const V rest = fma(x, set1(kLow), fma(x, set1(kLog2e), sub(set1(0.0F), t)));
  const V p = exp2(t);
  return fma(p, mul(rest, set1(kLn2)), p);
}

// Calls f(vector of x, vector of y) -> vector for each vector of y, the last one padded.
template <class F>
inline void map_vectors(const float* x, float* y, std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i), load(y + i)));
  if (i == n) return;
  float a[kLanes] = {}, b[kLanes] = {};
  for (std::int64_t l = 0; i + l < n; ++l) a[l] = x[i + l], b[l] = y[i + l];
  store(b, f(load(a), load(b)));
  for (std::int64_t l = 0; i + l < n; ++l) y[i + l] = b[l];
}

void linear_attention_features(FeatureKernel kind, float* x, std::int64_t n) {
  const V zero = set1(0.0F), one = set1(1.0F);
  if (kind == FeatureKernel::relu) return map_vectors(x, x, n, [&](V a, V) { return max(zero, a); });  // NaN stays
  map_vectors(x, x, n, [&](V a, V) { return select(less(zero, a), add(a, one), exp_negative(min(zero, a))); });
}

// Both gradients are functions of the value: min(phi, 1) for elu + 1, [phi > 0] for ReLU.
void linear_attention_feature_gradient(FeatureKernel kind, const float* y, float* dy, std::int64_t n) {
  const V zero = set1(0.0F), one = set1(1.0F);
  if (kind == FeatureKernel::relu)
    return map_vectors(y, dy, n, [&](V a, V d) { return select(less(zero, a), d, zero); });
  map_vectors(y, dy, n, [&](V a, V d) { return mul(d, min(one, a)); });
}

void linear_attention_chain(float* run, float* slot, float a, std::int64_t n) {
  std::int64_t i = 0;
  const V factor = set1(a);
  for (; i + kLanes <= n; i += kLanes) {
    const V x = load(run + i), u = load(slot + i);
    store(slot + i, x);
    store(run + i, fma(factor, x, u));
  }
  for (; i < n; ++i) {
    const float x = run[i], u = slot[i];
    slot[i] = x;
    run[i] = a * x + u;
  }
}

void linear_attention_scale(float* x, float a, std::int64_t n) {
  const V factor = set1(a);
  map_vectors(x, x, n, [&](V v, V) { return mul(factor, v); });
}

void linear_attention_scale_rows(const float* x, std::int64_t x_row, const float* factors, std::int64_t rows,
                                 std::int64_t n, float* y, bool add) {
  for (std::int64_t r = 0; r < rows; ++r, x += x_row, y += n) {
    const V f = set1(factors[r]);
    if (add)
      map_vectors(x, y, n, [&](V a, V b) { return fma(f, a, b); });
    else
      map_vectors(x, y, n, [&](V a, V) { return mul(f, a); });
  }
}

void linear_attention_shift_rows(float* x, const float* factors, const float* terms, std::int64_t rows,
                                 std::int64_t n) {
  for (std::int64_t r = 0; r < rows; ++r, x += n) {
    const V f = set1(factors[r]), t = set1(terms[r]);
    map_vectors(x, x, n, [&](V a, V) { return fma(f, a, t); });
  }
}

void linear_attention_sum_rows(const float* x, const float* factors, std::int64_t rows, std::int64_t n, float* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const V f = set1(factors ? factors[r] : 1.0F);
    map_vectors(x + r * n, y, n, [&](V a, V b) { return fma(f, a, b); });
  }
}

void linear_attention_dot_rows(const float* x, const float* y, std::int64_t y_row, std::int64_t rows, std::int64_t n,
                               float* sums) {
  for (std::int64_t r = 0; r < rows; ++r, x += n, y += y_row) {
    V sum = set1(0.0F);
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) sum = fma(load(x + i), load(y + i), sum);
    float total = reduce_add(sum);
    for (; i < n; ++i) total += x[i] * y[i];
    sums[r] = total;
  }
}

void linear_attention_cut_rows(float* s, const float* m, std::int64_t n, std::int64_t ahead, float* sums) {
  for (std::int64_t r = 0; r < n; ++r, s += n) {
    const std::int64_t visible = r + ahead < n ? r + ahead : n;
    if (m) map_vectors(m + r * n, s, visible, [](V a, V b) { return mul(a, b); });
    clear(s + visible, n - visible);
    if (!sums) continue;
    V sum = set1(0.0F);
    std::int64_t i = 0;
    for (; i + kLanes <= visible; i += kLanes) sum = add(sum, load(s + i));
    float total = reduce_add(sum);
    for (; i < visible; ++i) total += s[i];
    sums[r] = total;
  }
}

// Columns [c, c + Vectors * kLanes) of the solution: each row takes off the rows solved before it.
template <int Vectors>
inline void solve_strip(const float* t, std::int64_t i_step, std::int64_t j_step, bool down, std::int64_t rows,
                        float* x, std::int64_t x_row) {
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t i = down ? n : rows - 1 - n;
    V acc[std::size_t{Vectors}];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[v] = load(x + i * x_row + v * kLanes);
    for (std::int64_t m = 0; m < n; ++m) {
      const std::int64_t j = down ? m : rows - 1 - m;
      const V a = set1(t[i * i_step + j * j_step]);
      const float* from = x + j * x_row;
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) acc[v] = fnma(a, load(from + v * kLanes), acc[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(x + i * x_row + v * kLanes, acc[v]);
  }
}

void linear_attention_solve(const float* t, bool transposed, std::int64_t rows, float* x, std::int64_t cols) {
  const std::int64_t i_step = transposed ? 1 : rows, j_step = transposed ? rows : 1;
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) solve_strip<4>(t, i_step, j_step, !transposed, rows, x + c, cols);
  for (; c + kLanes <= cols; c += kLanes) solve_strip<1>(t, i_step, j_step, !transposed, rows, x + c, cols);
  for (; c < cols; ++c)
    for (std::int64_t n = 0; n < rows; ++n) {
      const std::int64_t i = transposed ? rows - 1 - n : n;
      float sum = x[i * cols + c];
      for (std::int64_t m = 0; m < n; ++m) {
        const std::int64_t j = transposed ? rows - 1 - m : m;
        sum -= t[i * i_step + j * j_step] * x[j * cols + c];
      }
      x[i * cols + c] = sum;
    }
}

template <bool Update, int Vectors>
inline void step_strip(float* s, std::int64_t s_row, std::int64_t rows, float a, float rest, const float* k,
                       const float* u, const float* q, float* y) {
  V sum[std::size_t{Vectors}], value[std::size_t{Vectors}];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) {
    sum[v] = set1(0.0F);
    value[v] = Update ? load(u + v * kLanes) : sum[v];
  }
  for (std::int64_t r = 0; r < rows; ++r, s += s_row) {
    const V weight = set1(q[r]);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      V x = load(s + v * kLanes);
      if constexpr (Update) {
        x = fma(set1(a), x, fma(set1(rest), x, mul(set1(k[r]), value[v])));
        store(s + v * kLanes, x);
      }
      sum[v] = fma(weight, x, sum[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) store(y + v * kLanes, sum[v]);
}

template <bool Update>
inline void step_columns(float* s, std::int64_t s_row, std::int64_t rows, std::int64_t cols, float a, float rest,
                         const float* k, const float* u, const float* q, float* y) {
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes)
    step_strip<Update, 4>(s + c, s_row, rows, a, rest, k, Update ? u + c : u, q, y + c);
  for (; c + kLanes <= cols; c += kLanes)
    step_strip<Update, 1>(s + c, s_row, rows, a, rest, k, Update ? u + c : u, q, y + c);
  for (; c < cols; ++c) {
    float sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      float& x = s[r * s_row + c];
      if constexpr (Update) x = a * x + (rest * x + k[r] * u[c]);
      sum += q[r] * x;
    }
    y[c] = sum;
  }
}

void linear_attention_read_state(const float* s, std::int64_t s_row, std::int64_t rows, std::int64_t cols,
                                 const float* q, float* y) {
  step_columns<false>(const_cast<float*>(s), s_row, rows, cols, 1.0F, 0.0F, nullptr, nullptr, q, y);
}
void linear_attention_step_state(float* s, std::int64_t s_row, std::int64_t rows, std::int64_t cols, float a,
                                 float rest, const float* k, const float* u, const float* q, float* y) {
  step_columns<true>(s, s_row, rows, cols, a, rest, k, u, q, y);
}

constexpr LinearAttentionKernels linear_attention_kernels() {
  return {linear_attention_product,  linear_attention_load_rows,        linear_attention_store_rows,
          linear_attention_features, linear_attention_feature_gradient, linear_attention_chain,
          linear_attention_scale,    linear_attention_scale_rows,       linear_attention_shift_rows,
          linear_attention_sum_rows, linear_attention_dot_rows,         linear_attention_cut_rows,
          linear_attention_solve,    linear_attention_read_state,       linear_attention_step_state};
}
