// Backward: weights are made again from the LSE; a tile of keys gathers dk and dv while dq passes from tile to tile.

constexpr std::int64_t kBackwardRows = 24;  // rows whose scores and gradients are in cache at once

struct BackwardScratch {
  float *k, *k_t, *v, *v_t;          // the tile of keys, both ways round
  float *dk, *dv;                    // its gradients, f32
  float *q, *dout;                   // a block of rows
  float *scores, *dscores, *before;  // [kBackwardRows][kKeyTile]
  float* seen;                       // the same: 0 where hidden, for the user's rule
  bool* k_finite;                    // no inf or NaN in the tile's keys
  RowKeys keys;
};

inline BackwardScratch carve_backward(const AttentionProblem& p, std::int64_t rows, Carver& carver) {
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  BackwardScratch s{};
  s.k = carver.take<float>(kKeyTile * Dp);
  s.k_t = carver.take<float>(kKeyTile * Dp);
  s.v = carver.take<float>(kKeyTile * Ep);
  s.v_t = carver.take<float>(kKeyTile * Ep);
  s.dk = carver.take<float>(kKeyTile * Dp);
  s.dv = carver.take<float>(kKeyTile * Ep);
  s.q = carver.take<float>(kBackwardRows * Dp);
  s.dout = carver.take<float>(kBackwardRows * Ep);
  s.scores = carver.take<float>(kBackwardRows * kKeyTile);
  s.dscores = carver.take<float>(kBackwardRows * kKeyTile);
  s.before = carver.take<float>(kBackwardRows * kKeyTile);
  s.seen = carver.take<float>(kBackwardRows * kKeyTile);
  s.k_finite = carver.take<bool>(1);
  s.keys = take_row_keys(p, rows, carver);
  return s;
}

std::int64_t backward_scratch_bytes(const AttentionProblem& p, std::int64_t rows) {
  Carver carver{nullptr};
  carve_backward(p, rows, carver);
  return carver.used;
}

// delta = sum over e of dout * out, for rows of the range.
void delta_rows(const AttentionProblem& p, const RowRange& range, float* delta, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const BackwardScratch s = carve_backward(p, 0, carver);
  const std::int64_t Ep = round_up(p.E, kLanes);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    load_rows(p, *p.dout, range.b, range.hk, row, 1, p.E, s.dout, Ep);
    load_rows(p, p.out, range.b, range.hk, row, 1, p.E, s.v, Ep);
    V sum = set1(0.0F);
    for (std::int64_t e = 0; e < Ep; e += kLanes) sum = fma(load(s.dout + e), load(s.v + e), sum);
    delta[row_index(p, range.b, range.hk, row)] = reduce_add(sum);
  }
}

inline void load_keys(const AttentionProblem& p, const KeyTile& tile, BackwardScratch& s) {
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  const std::int64_t count = p.N - tile.j0 < kKeyTile ? p.N - tile.j0 : kKeyTile;
  *s.k_finite = load_tile(p.k, tile.b, tile.hk, tile.j0, count, p.D, s.k, Dp, kKeyTile);
  transpose_tile(s.k, Dp, p.D, s.k_t);
  load_tile(p.v, tile.b, tile.hk, tile.j0, count, p.E, s.v, Ep, kKeyTile);
  transpose_tile(s.v, Ep, p.E, s.v_t);
}

void backward_begin(const AttentionProblem& p, const KeyTile& tile, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  BackwardScratch s = carve_backward(p, 0, carver);
  load_keys(p, tile, s);
  clear(s.dk, kKeyTile * round_up(p.D, kLanes));
  clear(s.dv, kKeyTile * round_up(p.E, kLanes));
}

struct RowsFinite {
  bool q, dout;
};

inline RowsFinite load_row_block(const AttentionProblem& p, const Block& block, BackwardScratch& s) {
  return {load_rows(p, p.q, block.b, block.hk, block.row, block.rows, p.D, s.q, round_up(p.D, kLanes)),
          load_rows(p, *p.dout, block.b, block.hk, block.row, block.rows, p.E, s.dout, round_up(p.E, kLanes))};
}

// scores <- weights (after dropout), dscores <- w * (dw - delta): the gradient of the score as the softmax got it.
inline void weight_gradients(const AttentionProblem& p, const Block& block, BackwardScratch& s) {
  const std::int64_t columns = block.c1 - block.c0;
  product<false>({s.q, round_up(p.D, kLanes), 1, s.k_t + block.c0, kKeyTile, s.scores + block.c0, kKeyTile, p.D},
                 block.rows, columns);
  finish_scores(p, block, s.keys, s.scores, s.before);
  product<false>({s.dout, round_up(p.E, kLanes), 1, s.v_t + block.c0, kKeyTile, s.dscores + block.c0, kKeyTile, p.E},
                 block.rows, columns);
  const V factor = set1(exponent_factor(p)), zero = set1(0.0F);
  float keep[kKeyTile];
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t at = row_index(p, block.b, block.hk, block.row + r);
    const V minus_lse = set1(-p.lse_in[at] * kLog2e), delta = set1(p.delta[at]);
    if (p.dropout_threshold) {
      for (float& one : keep) one = 1.0F;
      drop_row(p.dropout_seed, p.dropout_threshold, p.dropout_scale, block.b, head_of(p, block.hk, block.row + r),
               token_of(p, block.row + r), block.j0 + block.c0, columns, keep + block.c0);
    }
    float* score = s.scores + r * kKeyTile;
    float* dscore = s.dscores + r * kKeyTile;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      const V x = load(score + c);
      const Mask hidden = equal(x, set1(-kInfinity));  // decided by the score: an LSE may be NaN
      V w = exp2(fma(x, factor, minus_lse));
      V dw = load(dscore + c);
      const V kept = p.dropout_threshold ? load(keep + c) : set1(1.0F);
      dw = mul(dw, kept);
      store(dscore + c, select(hidden, zero, mul(w, sub(dw, delta))));
      w = mul(w, kept);
      store(score + c, select(hidden, zero, w));
      if (p.hook) store(s.seen + r * kKeyTile + c, select(hidden, zero, set1(1.0F)));
    }
  }
}

// Back through the user's rule and the soft-cap, to the gradient of scale * q.k.
inline void score_gradients(const AttentionProblem& p, const Block& block, BackwardScratch& s) {
  const V zero = set1(0.0F);
  if (p.hook) {
    for_head_tiles(p, block, [&](auto at, auto stride, auto rows, auto h, auto i) {
      p.hook->backward(p.hook->context, s.before + at, s.dscores + at, stride, rows, valid_columns(p, block), block.b,
                       h, i, block.j0 + block.c0);
    });
    // The rule was given hidden scores too, which may be NaN: whatever it made of them is nothing.
    for (std::int64_t r = 0; r < block.rows; ++r)
      for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
        float* d = s.dscores + r * kKeyTile + c;
        store(d, select(equal(load(s.seen + r * kKeyTile + c), zero), zero, load(d)));
      }
  }
  if (p.softcap == 0.0F) return;
  const V per_cap = set1(1.0F / p.softcap);
  for (std::int64_t r = 0; r < block.rows; ++r)
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      const V t = mul(load(s.before + r * kKeyTile + c), per_cap);
      float* d = s.dscores + r * kKeyTile + c;
      const V x = load(d);
      // A hidden score has gradient zero even where its tanh is NaN.
      store(d, select(equal(x, zero), x, mul(x, fnma(t, t, set1(1.0F)))));
    }
}

// The rows of `range` against the tile that backward_begin loaded: adds to the tile's dk and dv, and to dq, f32
// [rows of (b, hk)][Dp], unscaled.
void backward_rows(const AttentionProblem& p, const KeyTile& tile, const RowRange& range, float* dq, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  BackwardScratch s = carve_backward(p, range.end - range.begin, carver);
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  fill_row_keys(p, range, s.keys);
  for (std::int64_t row = range.begin; row < range.end; row += kBackwardRows) {
    Block block{range.b, range.hk, row, range.end - row < kBackwardRows ? range.end - row : kBackwardRows,
                tile.j0, 0,        0,   false};
    if (!place_block(p, s.keys, block)) continue;
    const RowsFinite finite = load_row_block(p, block, s);
    weight_gradients(p, block, s);
    const std::int64_t columns = block.c1 - block.c0;
    accumulate({s.scores + block.c0, 1, kKeyTile, s.dout, Ep, s.dv + block.c0 * Ep, Ep, block.rows}, columns, Ep,
               finite.dout);
    score_gradients(p, block, s);
    accumulate({s.dscores + block.c0, 1, kKeyTile, s.q, Dp, s.dk + block.c0 * Dp, Dp, block.rows}, columns, Dp,
               finite.q);
    accumulate({s.dscores + block.c0, kKeyTile, 1, s.k + block.c0 * Dp, Dp, dq + row * Dp, Dp, columns}, block.rows, Dp,
               *s.k_finite);
  }
}

void backward_end(const AttentionProblem& p, const KeyTile& tile, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const BackwardScratch s = carve_backward(p, 0, carver);
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  const std::int64_t count = p.N - tile.j0 < kKeyTile ? p.N - tile.j0 : kKeyTile;
  for (std::int64_t j = 0; j < count; ++j) {
    store_row(p.dk.dtype, element_mut(p.dk, tile.b, tile.hk, tile.j0 + j), p.dk.dim_stride, p.D, s.dk + j * Dp,
              p.scale);
    store_row(p.dv.dtype, element_mut(p.dv, tile.b, tile.hk, tile.j0 + j), p.dv.dim_stride, p.E, s.dv + j * Ep, 1.0F);
  }
}

// Rows of dq from their f32 sums.
void store_dq(const AttentionProblem& p, const Operand& dq, const RowRange& range, const float* sums) {
  const std::int64_t Dp = round_up(p.D, kLanes);
  for (std::int64_t row = range.begin; row < range.end; ++row)
    store_row(dq.dtype, element_mut(dq, range.b, head_of(p, range.hk, row), token_of(p, row)), dq.dim_stride, p.D,
              sums + row * Dp, p.scale);
}

// Adds the bias gradient of a block of rows and a tile of keys to sums; `place` says where an element goes.
void bias_gradient(const AttentionProblem& p, const KeyTile& tile, const RowRange& range, const BiasPlace& place,
                   double* sums, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  BackwardScratch s = carve_backward(p, range.end - range.begin, carver);
  fill_row_keys(p, range, s.keys);
  bool loaded = false;
  for (std::int64_t row = range.begin; row < range.end; row += kBackwardRows) {
    Block block{range.b, range.hk, row, range.end - row < kBackwardRows ? range.end - row : kBackwardRows,
                tile.j0, 0,        0,   false};
    if (!place_block(p, s.keys, block)) continue;
    if (!loaded) load_keys(p, tile, s);
    loaded = true;
    load_row_block(p, block, s);
    weight_gradients(p, block, s);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const std::int64_t token = token_of(p, row + r) - token_of(p, range.begin);
      double* sum = sums + token * place.token_step + (row + r) % p.G * place.head_step;
      for (std::int64_t c = block.c0; c < block.c0 + valid_columns(p, block); ++c)
        sum[c * place.key_step] += static_cast<double>(s.dscores[r * kKeyTile + c]);
    }
  }
}
