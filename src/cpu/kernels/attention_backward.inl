// Backward: weights are recomputed from the softmax of their row; a tile of keys accumulates its dk and dv, and dq
// accumulates over the tiles in order.

// A tile's memory: BackwardTile says what it holds.
template <class Math>
inline BackwardTile take_backward_tile(const AttentionProblem& p, const KeyTile& keys, Carver& carver) {
  using Element = typename Math::Element;
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  BackwardTile tile{};
  tile.keys = keys;
  tile.k_t = carver.take<Element>(Math::depth(p.D) * kKeyTile);
  tile.v_t = carver.take<Element>(Math::depth(p.E) * kKeyTile);
  tile.k = carver.take<Element>(kKeyTile / Math::kPack * Dp);
  tile.dk = carver.take<float>(kKeyTile * Dp);
  tile.dv = carver.take<float>(kKeyTile * Ep);
  if (Math::kPack == 1 && p.M * p.G > kChainRows) {
    tile.dk_of_chain = carver.take<float>(kKeyTile * Dp);
    tile.dv_of_chain = carver.take<float>(kKeyTile * Ep);
  }
  return tile;
}
template <class Math>
std::int64_t backward_tile_bytes_with(const AttentionProblem& p) {
  Carver carver{nullptr};
  take_backward_tile<Math>(p, {}, carver);
  return carver.used;
}

// A block of rows against a tile.
template <class Math>
struct BackwardScratch {
  using Element = typename Math::Element;
  Element* tile_rows;           // of keys before they are packed
  Element *q, *dout;            // a block of rows
  Element *q_rows, *dout_rows;  // the same, to sum over the rows
  float *scores, *dscores;      // [kBlockRows][kKeyTile], as the next three
  float *before, *seen;         // for the user's rule: scores before it; 0 where hidden
  float* cap_slopes;
  float* distance_dscores;  // dscores with wide_delta, [kBlockRows][kKeyTile]
  Element *weights, *dscores_keys, *dscores_rows;
  RowKeys keys;
};

template <class Math>
inline BackwardScratch<Math> carve_backward(const AttentionProblem& p, std::int64_t rows, Carver& carver) {
  using Element = typename Math::Element;
  BackwardScratch<Math> s{};
  s.tile_rows = take_tile_rows<Math>(p, carver);
  s.q = carver.take<Element>(kBlockRows * Math::row_elements(p.D));
  s.dout = carver.take<Element>(kBlockRows * Math::row_elements(p.E));
  s.q_rows = Math::take_along_rows(s.q, kBlockRows, p.D, carver);
  s.dout_rows = Math::take_along_rows(s.dout, kBlockRows, p.E, carver);
  s.scores = carver.take<float>(kBlockRows * kKeyTile);
  s.dscores = carver.take<float>(kBlockRows * kKeyTile);
  s.before = carver.take<float>(kBlockRows * kKeyTile);
  s.seen = carver.take<float>(kBlockRows * kKeyTile);
  s.cap_slopes = carver.take<float>(kBlockRows * kKeyTile);
  s.distance_dscores = carver.take<float>(kBlockRows * kKeyTile);
  s.weights = Math::take_weights(s.scores, kBlockRows, carver);
  s.dscores_keys = Math::take_weights(s.dscores, kBlockRows, carver);
  s.dscores_rows = Math::take_weights(s.dscores, kBlockRows, carver);
  s.keys = take_row_keys(p, rows, carver);
  return s;
}

template <class Math>
std::int64_t backward_scratch_bytes_with(const AttentionProblem& p, std::int64_t rows) {
  Carver carver{nullptr};
  carve_backward<Math>(p, rows, carver);
  return carver.used;
}

// What the products of a block and a tile multiply: M rows of the block, N columns [c0, c1) of the tile.
template <class Math>
struct BackwardTiles {
  using Format = typename Math::Format;
  using Element = typename Math::Element;

  BackwardTiles(const AttentionProblem& p, const Block& block, const BackwardTile& tile, const BackwardScratch<Math>& s)
      : Dp(round_up(p.D, kLanes)),
        Ep(round_up(p.E, kLanes)),
        first(block.c0),
        q{s.q, Math::row_elements(p.D)},
        dout{s.dout, Math::row_elements(p.E)},
        k_t{static_cast<const Element*>(tile.k_t) + first, kKeyTile},
        v_t{static_cast<const Element*>(tile.v_t) + first, kKeyTile},
        scores{s.scores + first, kKeyTile},
        dscores{s.dscores + first, kKeyTile},
        weights_by_key{s.weights + first, 1, kKeyTile},
        dscores_by_key{s.dscores_rows + first, 1, kKeyTile},
        dscores_by_row{s.dscores_keys + first / Math::kPack, Math::kWeightRow},
        q_rows{s.q_rows, Dp},
        dout_rows{s.dout_rows, Ep},
        k{static_cast<const Element*>(tile.k) + first / Math::kPack * Dp, Dp},
        dk{tile.dk + first * Dp, Dp},
        dv{tile.dv + first * Ep, Ep} {}

  std::int64_t Dp, Ep, first;
  LeftTile<Format> q, dout;                         // (M,D), (M,E)
  RightTile<Format> k_t, v_t;                       // (D,N), (E,N)
  FloatTile scores, dscores;                        // (M,N)
  LeftTile<Format> weights_by_key, dscores_by_key;  // (N,M)
  LeftTile<Format> dscores_by_row;                  // (M,N)
  RightTile<Format> q_rows, dout_rows;              // (M,D), (M,E)
  RightTile<Format> k;                              // (N,D)
  FloatTile dk, dv;                                 // (N,D), (N,E)
};

// delta = sum over e of dout * out, for rows of the range.
void delta_rows(const AttentionProblem& p, const RowRange& range, float* delta, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const std::int64_t Ep = round_up(p.E, kLanes);
  float* dout = carver.take<float>(Ep);
  float* out = carver.take<float>(Ep);
  const auto dot = [&](const auto* x, const auto* y) {
    V sum = set1(0.0F);
    for (std::int64_t e = 0; e < Ep; e += kLanes) sum = fma(load_elements(x + e), load_elements(y + e), sum);
    return reduce_add(sum);
  };
  const bool halves = p.dout->dtype == DType::bf16 && p.out.dtype == DType::bf16 && p.dout->dim_stride == 1 &&
                      p.out.dim_stride == 1 && p.E == Ep;
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    float& to = delta[row_index(p, range.b, range.hk, row)];
    if (halves) {
      const std::int64_t h = head_of(p, range.hk, row), i = token_of(p, row);
      to = dot(reinterpret_cast<const BF16*>(element(*p.dout, range.b, h, i)),
               reinterpret_cast<const BF16*>(element(p.out, range.b, h, i)));
      continue;
    }
    load_rows<Floats>(p, *p.dout, range.b, range.hk, row, 1, p.E, dout);
    load_rows<Floats>(p, p.out, range.b, range.hk, row, 1, p.E, out);
    to = dot(dout, out);
  }
}

template <class Math>
inline BackwardTile load_backward_tile(const AttentionProblem& p, const KeyTile& keys, Carver& memory,
                                       typename Math::Element* tile_rows) {
  using Element = typename Math::Element;
  BackwardTile tile = take_backward_tile<Math>(p, keys, memory);
  const std::int64_t count = keys_in_tile(p, keys);
  Math::pack_along_dim(p.k, keys, count, p.D, tile_rows, static_cast<Element*>(tile.k_t));
  Math::pack_along_dim(p.v, keys, count, p.E, tile_rows, static_cast<Element*>(tile.v_t));
  tile.k_finite = Math::pack_along_keys(p.k, keys, count, p.D, tile_rows, static_cast<Element*>(tile.k));
  return tile;
}

template <class Math>
BackwardTile backward_begin_with(const AttentionProblem& p, const KeyTile& keys, void* memory, void* scratch) {
  Carver carver{static_cast<char*>(memory)}, scratch_carver{static_cast<char*>(scratch)};
  const BackwardTile tile = load_backward_tile<Math>(p, keys, carver, take_tile_rows<Math>(p, scratch_carver));
  clear(tile.dk, kKeyTile * round_up(p.D, kLanes));
  clear(tile.dv, kKeyTile * round_up(p.E, kLanes));
  if (tile.dk_of_chain) {
    clear(tile.dk_of_chain, kKeyTile * round_up(p.D, kLanes));
    clear(tile.dv_of_chain, kKeyTile * round_up(p.E, kLanes));
  }
  return tile;
}

struct RowsFinite {
  bool q, dout;
};

template <class Math>
inline RowsFinite load_row_block(const AttentionProblem& p, const Block& block, BackwardScratch<Math>& s) {
  return {Math::load_both_ways(p, p.q, block, p.D, s.q, s.q_rows),
          Math::load_both_ways(p, *p.dout, block, p.E, s.dout, s.dout_rows)};
}

// q.k, as the options and the mask leave it, and dout.v, the gradient of the weights.
template <class Math>
inline void block_products(const AttentionProblem& p, const Block& block, const BackwardTiles<Math>& t,
                           BackwardScratch<Math>& s) {
  const std::int64_t columns = block.c1 - block.c0;
  set_product(t.scores, t.q, t.k_t, {block.rows, columns, Math::depth(p.D)});  // (M,N) = (M,D) . (D,N)
  finish_scores(p, block, s.keys, s.scores,
                {.before_rule = p.hook ? s.before : nullptr, .cap_slopes = p.softcap != 0.0F ? s.cap_slopes : nullptr});
  set_product(t.dscores, t.dout, t.v_t, {block.rows, columns, Math::depth(p.E)});  // (M,N) = (M,E) . (E,N)
}

// A row's weights and the gradients of its scores: w = 2^((score - base) * factor + shift), w * (dw - delta).
struct GradientRow {
  const float *score, *dscore;
  V base, shift, delta;

  GradientRow(const AttentionProblem& p, const Block& block, std::int64_t r, const float* scores, const float* dscores)
      : score(scores + r * kKeyTile), dscore(dscores + r * kKeyTile) {
    const std::int64_t at = row_index(p, block.b, block.hk, block.row + r);
    base = set1(p.softmax_rows[at].base), shift = set1(p.softmax_rows[at].shift), delta = set1(p.delta[at]);
  }
  struct Pair {
    V w, dscore;
  };
  template <class Math>
  Pair at(std::int64_t c, V factor) const {
    const V x = load(score + c), zero = set1(0.0F);
    const Mask hidden = equal(x, set1(-kInfinity));  // decided by the score: an LSE may be NaN
    const V w = Math::power_of_two(fma(sub(x, base), factor, shift));
    return {select(hidden, zero, w), select(hidden, zero, mul(w, sub(load(dscore + c), delta)))};
  }
  // The gradient of the score from another delta; w is its weight.
  V dscore_from(std::int64_t c, V w, V other_delta) const {
    const V zero = set1(0.0F);
    return select(equal(load(score + c), set1(-kInfinity)), zero, mul(w, sub(load(dscore + c), other_delta)));
  }
};

// With dropout: fills keep, [kKeyTile], with the factors of row r of the block, and multiplies its gradients of
// weights.
inline void drop_gradients(const AttentionProblem& p, const Block& block, std::int64_t r, float* dscore, float* keep) {
  for (std::int64_t c = 0; c < kKeyTile; ++c) keep[c] = 1.0F;
  drop_row(p.dropout_seed, p.dropout_threshold, p.dropout_scale, block.b, head_of(p, block.hk, block.row + r),
           token_of(p, block.row + r), block.j0 + block.c0, block.c1 - block.c0, keep + block.c0);
  for (std::int64_t c = block.c0; c < block.c1; c += kLanes) store(dscore + c, mul(load(dscore + c), load(keep + c)));
}

// scores <- weights (after dropout), dscores <- w * (dw - delta): the gradient of the score as the softmax got it.
// distance_dscores, if given, gets w * (dw - wide_delta).
template <class Math>
inline void weight_gradients(const AttentionProblem& p, const Block& block, BackwardScratch<Math>& s,
                             float* distance_dscores = nullptr) {
  const V factor = set1(exponent_factor(p)), zero = set1(0.0F);
  float keep[kKeyTile];
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const GradientRow row(p, block, r, s.scores, s.dscores);
    float* score = s.scores + r * kKeyTile;
    float* dscore = s.dscores + r * kKeyTile;
    if (p.hook)
      for (std::int64_t c = block.c0; c < block.c1; c += kLanes)
        store(s.seen + r * kKeyTile + c, select(equal(load(score + c), set1(-kInfinity)), zero, set1(1.0F)));
    if (p.dropout_threshold) drop_gradients(p, block, r, dscore, keep);
    const V wide_delta = distance_dscores ? set1(p.wide_delta[row_index(p, block.b, block.hk, block.row + r)]) : zero;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      const GradientRow::Pair made = row.at<Math>(c, factor);
      if (distance_dscores) store(distance_dscores + r * kKeyTile + c, row.dscore_from(c, made.w, wide_delta));
      store(dscore + c, made.dscore);
      store(score + c, p.dropout_threshold ? mul(made.w, load(keep + c)) : made.w);
    }
  }
}

// The same as the products want it, two rows at a time, where nothing else looks at it.
template <class Math>
inline void packed_gradients(const AttentionProblem& p, const Block& block, BackwardScratch<Math>& s) {
  const V factor = set1(exponent_factor(p));
  const auto two_rows = [&](std::int64_t r, const auto& next) {
    const GradientRow row(p, block, r, s.scores, s.dscores);
    const std::int64_t pairs = r / 2 * kKeyTile;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      const GradientRow::Pair low = row.at<Math>(c, factor), high = next(c);
      Math::store_weights_of_two(s.weights + pairs + c, low.w, high.w);
      Math::store_weights_of_two(s.dscores_rows + pairs + c, low.dscore, high.dscore);
      Math::store_weights(s.dscores_keys + r * Math::kWeightRow, c, low.dscore);
      if (r + 1 < block.rows) Math::store_weights(s.dscores_keys + (r + 1) * Math::kWeightRow, c, high.dscore);
    }
  };
  std::int64_t r = 0;
  for (; r + 2 <= block.rows; r += 2) {
    const GradientRow next(p, block, r + 1, s.scores, s.dscores);
    two_rows(r, [&](std::int64_t c) { return next.at<Math>(c, factor); });
  }
  if (r < block.rows) two_rows(r, [](std::int64_t) { return GradientRow::Pair{set1(0.0F), set1(0.0F)}; });
}

// Back through the user's rule and the soft-cap, to the gradient of scale * q.k.
template <class Math>
inline void score_gradients(const AttentionProblem& p, const Block& block, BackwardScratch<Math>& s) {
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
  for (std::int64_t r = 0; r < block.rows; ++r)
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      float* d = s.dscores + r * kKeyTile + c;
      const V x = load(d);
      // A hidden score has gradient zero even where its slope is NaN.
      store(d, select(equal(x, zero), x, mul(x, load(s.cap_slopes + r * kKeyTile + c))));
    }
}

// Adds d[r][c], c in [0, columns), to sums[c - r]: kLanes rows are added up in f32 along their diagonals, with one load
// an element group, and go into the doubles as one. What a row has left or right of its columns is read as zeros.
inline void add_diagonals(const float* d, std::int64_t stride, std::int64_t rows, std::int64_t columns, double* sums) {
  float left[kLanes][2 * kLanes], right[kLanes][2 * kLanes], along[kLanes];
  for (std::int64_t r0 = 0; r0 < rows; r0 += kLanes, d += kLanes * stride, sums -= kLanes) {
    const std::int64_t count = rows - r0 < kLanes ? rows - r0 : kLanes;
    for (std::int64_t r = 0; r < count; ++r) {
      store(left[r], set1(0.0F));
      store(left[r] + kLanes, load(d + r * stride));
      store(right[r], load(d + r * stride + columns - kLanes));
      store(right[r] + kLanes, set1(0.0F));
    }
    for (std::int64_t x = -kLanes; x < columns; x += kLanes) {
      V sum = set1(0.0F);
      for (std::int64_t r = 0; r < count; ++r) {
        const float* at = x < 0 ? left[r] + r : x + kLanes == columns ? right[r] + r : d + r * stride + x + r;
        sum = add(sum, load(at));
      }
      store(along, sum);
      for (std::int64_t lane = x < 0 ? kLanes - count + 1 : 0; lane < kLanes; ++lane)
        sums[x + lane] += static_cast<double>(along[lane]);
    }
  }
}

// Weights and gradients of scores as the products want them, and where the bias is by distance the sums of its
// gradient.
template <class Math>
inline void block_gradients(const AttentionProblem& p, const Block& block, const DistanceSums& distances,
                            BackwardScratch<Math>& s) {
  if constexpr (Math::kPack == 2)
    if (!p.dropout_threshold && !p.hook && p.softcap == 0.0F && !distances.sums) return packed_gradients(p, block, s);
  const std::int64_t rows = block.rows, c0 = block.c0, c1 = block.c1;
  float* distance_dscores = distances.sums && p.wide_delta ? s.distance_dscores : nullptr;
  weight_gradients(p, block, s, distance_dscores);
  if (distances.sums)
    for_head_tiles(p, block, [&](auto at, auto stride, auto tile_rows, auto h, auto i) {
      add_diagonals((distance_dscores ? distance_dscores : s.dscores) + at, stride, tile_rows, c1 - c0,
                    distances.sums + (h - block.hk * p.G) * distances.head_step + p.M - 1 - i + c0);
    });
  score_gradients(p, block, s);
  Math::weights_along_rows(s.scores, rows, c0, c1, s.weights);
  Math::weights_along_rows(s.dscores, rows, c0, c1, s.dscores_rows);
  Math::weights_along_keys(s.dscores, rows, c0, c1, s.dscores_keys);
}

inline void move_sums(float* from, float* to, std::int64_t count) {
  for (std::int64_t n = 0; n < count; n += kLanes) {
    store(to + n, add(load(to + n), load(from + n)));
    store(from + n, set1(0.0F));
  }
}

// Before rows of another chain: the sums of the one before go into the total.
inline void end_chain(const AttentionProblem& p, BackwardTile& tile) {
  if (!tile.dk_of_chain) return;
  move_sums(tile.dk_of_chain, tile.dk, kKeyTile * round_up(p.D, kLanes));
  move_sums(tile.dv_of_chain, tile.dv, kKeyTile * round_up(p.E, kLanes));
}

// The rows of `range` against the tile: adds to the tile's dk and dv, to dq, f32 [rows of (b, hk)][Dp], unscaled, and
// where the bias is by distance to the sums of its gradient.
template <class Math>
void backward_rows_with(const AttentionProblem& p, BackwardTile& tile, const RowRange& range, float* dq,
                        const DistanceSums& distances, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  [[maybe_unused]] const typename Math::Session session{};
  BackwardScratch<Math> s = carve_backward<Math>(p, range.end - range.begin, carver);
  fill_row_keys(p, range, s.keys);
  Block block{range.b, range.hk, range.begin, 0, tile.keys.j0, 0, 0, false};
  if (tile.chain != range.begin / kChainRows) end_chain(p, tile);
  tile.chain = range.begin / kChainRows;
  BackwardTile sums = tile;
  if (tile.dk_of_chain) sums.dk = tile.dk_of_chain, sums.dv = tile.dv_of_chain;
  for (; block.row < range.end; block.row += block.rows) {
    if (!place_next_block(p, s.keys, range.end, block)) continue;
    const RowsFinite finite = load_row_block(p, block, s);
    const BackwardTiles<Math> t(p, block, sums, s);
    block_products(p, block, t, s);
    block_gradients(p, block, distances, s);
    const std::int64_t columns = block.c1 - block.c0, row_elements = (block.rows + Math::kPack - 1) / Math::kPack;
    add_product(t.dv, t.weights_by_key, t.dout_rows, {columns, t.Ep, row_elements},
                finite.dout);                                                                // (N,E) += (N,M) . (M,E)
    add_product(t.dk, t.dscores_by_key, t.q_rows, {columns, t.Dp, row_elements}, finite.q);  // (N,D) += (N,M) . (M,D)
    add_product({dq + block.row * t.Dp, t.Dp}, t.dscores_by_row, t.k, {block.rows, t.Dp, columns / Math::kPack},
                tile.k_finite);  // (M,D) += (M,N) . (N,D)
  }
}

void backward_end(const AttentionProblem& p, BackwardTile& tile) {
  end_chain(p, tile);
  const auto& [b, hk, j0] = tile.keys;
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  for (std::int64_t j = 0; j < keys_in_tile(p, tile.keys); ++j) {
    store_row(p.dk.dtype, element_mut(p.dk, b, hk, j0 + j), p.dk.dim_stride, p.D, tile.dk + j * Dp, p.scale);
    store_row(p.dv.dtype, element_mut(p.dv, b, hk, j0 + j), p.dv.dim_stride, p.E, tile.dv + j * Ep, 1.0F);
  }
}

// Rows of dq from their f32 sums.
void store_dq(const AttentionProblem& p, const Operand& dq, const RowRange& range, const float* sums) {
  const std::int64_t Dp = round_up(p.D, kLanes);
  for (std::int64_t row = range.begin; row < range.end; ++row)
    store_row(dq.dtype, element_mut(dq, range.b, head_of(p, range.hk, row), token_of(p, row)), dq.dim_stride, p.D,
              sums + row * Dp, p.scale);
}

// Calls visit(block, scratch) for each block of the range that sees the tile. Scores and gradients of weights are in
// floats, whatever the inputs are.
template <class Visit>
inline void visit_float_blocks(const AttentionProblem& p, const KeyTile& keys, const RowRange& range, void* memory,
                               void* scratch, const Visit& visit) {
  Carver carver{static_cast<char*>(scratch)};
  BackwardScratch<Floats> s = carve_backward<Floats>(p, range.end - range.begin, carver);
  fill_row_keys(p, range, s.keys);
  BackwardTile tile{};
  bool loaded = false;
  for (std::int64_t row = range.begin; row < range.end; row += kBlockRows) {
    Block block{range.b, range.hk, row, range.end - row < kBlockRows ? range.end - row : kBlockRows,
                keys.j0, 0,        0,   false};
    if (!place_block(p, s.keys, block)) continue;
    if (!loaded) {
      Carver tile_carver{static_cast<char*>(memory)};
      tile = load_backward_tile<Floats>(p, keys, tile_carver, s.tile_rows);
    }
    loaded = true;
    load_row_block(p, block, s);
    block_products(p, block, BackwardTiles<Floats>(p, block, tile, s), s);
    visit(block, s);
  }
}

// Adds the bias gradient of a block of rows and a tile of keys to sums; `place` says where an element goes.
void bias_gradient(const AttentionProblem& p, const KeyTile& keys, const RowRange& range, const BiasPlace& place,
                   double* sums, void* memory, void* scratch) {
  visit_float_blocks(p, keys, range, memory, scratch, [&](const Block& block, BackwardScratch<Floats>& s) {
    weight_gradients(p, block, s);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const std::int64_t token = token_of(p, block.row + r) - token_of(p, range.begin);
      double* sum = sums + token * place.token_step + (block.row + r) % p.G * place.head_step;
      for (std::int64_t c = block.c0; c < block.c0 + valid_columns(p, block); ++c)
        sum[c * place.key_step] += static_cast<double>(s.dscores[r * kKeyTile + c]);
    }
  });
}

// Adds the tile's part of delta = sum over keys of weight * dw to the rows of the range, and of the sum of weights.
void delta_sums(const AttentionProblem& p, const KeyTile& keys, const RowRange& range, DeltaSums* sums, void* memory,
                void* scratch) {
  const V factor = set1(exponent_factor(p));
  visit_float_blocks(p, keys, range, memory, scratch, [&](const Block& block, BackwardScratch<Floats>& s) {
    float keep[kKeyTile];
    for (std::int64_t r = 0; r < block.rows; ++r) {
      if (p.dropout_threshold) drop_gradients(p, block, r, s.dscores + r * kKeyTile, keep);
      GradientRow row(p, block, r, s.scores, s.dscores);
      row.delta = set1(0.0F);
      V delta = set1(0.0F), weights = set1(0.0F);
      for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
        const GradientRow::Pair made = row.at<Floats>(c, factor);
        delta = add(delta, made.dscore);
        weights = add(weights, made.w);
      }
      DeltaSums& to = sums[block.row + r - range.begin];
      to.delta += static_cast<double>(reduce_add(delta));
      to.weights += static_cast<double>(reduce_add(weights));
    }
  });
}
