// Scores of a block of rows against a tile of keys: what the options make of q.k, and what the mask hides.

// Scratch memory, handed out in whole cache lines. With no base it only counts.
struct Carver {
  char* base;
  std::int64_t used = 0;

  template <class T>
  T* take(std::int64_t count) {
    T* p = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return p;
  }
};

// Rows [row, row + rows) of (b, hk) against keys [j0, j0 + kKeyTile); columns [c0, c1) are those any row may see.
struct Block {
  std::int64_t b, hk;
  std::int64_t row, rows;
  std::int64_t j0, c0, c1;
  bool full;  // every row sees every key of [c0, c1)
};

// A division of 64 bits costs more than a row's bookkeeping should: most heads are their own group, and the rest are
// short.
inline std::int64_t token_of(const AttentionProblem& p, std::int64_t row) {
  if (p.G == 1) return row;
  if (row >> 32 != 0) return row / p.G;
  return static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(p.G);
}
inline std::int64_t head_of(const AttentionProblem& p, std::int64_t hk, std::int64_t row) {
  return hk * p.G + row - token_of(p, row) * p.G;
}
inline std::int64_t row_index(const AttentionProblem& p, std::int64_t b, std::int64_t hk, std::int64_t row) {
  return (b * p.H + head_of(p, hk, row)) * p.M + token_of(p, row);
}

// The keys each token of a range of rows may see, and where it stands.
struct RowKeys {
  std::int64_t first_token;
  std::int64_t *lo, *hi;    // per token
  std::int64_t* positions;  // per token; only with ALiBi
};

inline RowKeys take_row_keys(const AttentionProblem& p, std::int64_t rows, Carver& carver) {
  const std::int64_t tokens = rows / p.G + 2;
  RowKeys keys{};
  keys.lo = carver.take<std::int64_t>(tokens);
  keys.hi = carver.take<std::int64_t>(tokens);
  keys.positions = carver.take<std::int64_t>(tokens);
  return keys;
}

inline void fill_row_keys(const AttentionProblem& p, const RowRange& range, RowKeys& keys) {
  keys.first_token = token_of(p, range.begin);
  const std::int64_t tokens = token_of(p, range.end - 1) + 1 - keys.first_token;
  fill_intervals(*p.mask, range.b, keys.first_token, tokens, keys.lo, keys.hi);
  if (p.alibi) fill_positions(*p.mask, *p.alibi_position, range.b, keys.first_token, tokens, keys.positions);
}

// The smallest interval that holds what rows [begin, end) see; lo >= hi when they see nothing.
struct KeyRange {
  std::int64_t lo, hi;
};
inline KeyRange visible_range(const AttentionProblem& p, const RowKeys& keys, std::int64_t begin, std::int64_t end) {
  KeyRange range{p.N, 0};
  for (std::int64_t t = token_of(p, begin); t <= token_of(p, end - 1); ++t) {
    const std::int64_t lo = keys.lo[t - keys.first_token], hi = keys.hi[t - keys.first_token];
    if (lo >= hi) continue;
    range.lo = lo < range.lo ? lo : range.lo;
    range.hi = hi > range.hi ? hi : range.hi;
  }
  return range;
}

// False when no row of the block sees a key of the tile.
inline bool place_block(const AttentionProblem& p, const RowKeys& keys, Block& block) {
  const KeyRange range = visible_range(p, keys, block.row, block.row + block.rows);
  const std::int64_t end = block.j0 + kKeyTile < p.N ? block.j0 + kKeyTile : p.N;
  std::int64_t lo = range.lo > block.j0 ? range.lo : block.j0;
  std::int64_t hi = range.hi < end ? range.hi : end;
  if (lo >= hi) return false;
  const std::int64_t t0 = token_of(p, block.row), t1 = token_of(p, block.row + block.rows - 1);
  MaskTile tile{block.b, block.hk * p.G, (block.hk + 1) * p.G, t0, t1 + 1, lo, hi};
  if (p.mask->has_holes()) {
    const KeySpan seen = seen_keys(*p.mask, tile);
    if (seen.lo >= seen.hi) return false;
    lo = seen.lo;
    hi = seen.hi;
  }
  block.c0 = (lo - block.j0) / kColumnStep * kColumnStep;
  block.c1 = round_up(hi - block.j0, kColumnStep);
  block.full = block.j0 + block.c1 <= end;
  for (std::int64_t t = t0; t <= t1; ++t)
    block.full &=
        keys.lo[t - keys.first_token] <= block.j0 + block.c0 && keys.hi[t - keys.first_token] >= block.j0 + block.c1;
  if (p.mask->has_holes() && block.full) {
    tile.j0 = block.j0 + block.c0;
    tile.j1 = block.j0 + block.c1;
    block.full = sees_all(*p.mask, tile);
  }
  return true;
}

// The first key of [j, end) that a row of the range may see, or `end`: where a walk over the tiles goes on.
inline std::int64_t next_seen(const AttentionProblem& p, const RowRange& range, std::int64_t j, std::int64_t end) {
  if (!p.mask->has_holes() || j >= end) return j;
  const KeySpan seen = seen_keys(*p.mask, {range.b, range.hk * p.G, (range.hk + 1) * p.G, token_of(p, range.begin),
                                           token_of(p, range.end - 1) + 1, j, end});
  return seen.lo < seen.hi ? seen.lo : end;
}

// The block of at most kBlockRows rows from block.row on. Where the mask cuts through it, a smaller one: less is
// computed only to be hidden. False when none of its rows sees a key of the tile.
inline bool place_next_block(const AttentionProblem& p, const RowKeys& keys, std::int64_t end, Block& block) {
  block.rows = end - block.row < kBlockRows ? end - block.row : kBlockRows;
  const bool seen = place_block(p, keys, block);
  if (!seen || block.full || block.rows <= kCutRows) return seen;
  block.rows = kCutRows;
  return place_block(p, keys, block);
}

// On to the next block behind this one that sees a key of the tile. False: there is none.
inline bool next_block(const AttentionProblem& p, const RowKeys& keys, std::int64_t end, Block& block) {
  for (block.row += block.rows; block.row < end; block.row += block.rows)
    if (place_next_block(p, keys, end, block)) return true;
  return false;
}

// With nothing but a positive scale, scale and log2(e) are one factor inside the exponent.
inline bool plain_scores(const AttentionProblem& p) {
  constexpr float kLargestScale = 1e38F;  // the factor must be finite
  return p.softcap == 0.0F && !p.hook && !p.bias && !p.alibi && p.scale > 0.0F && p.scale <= kLargestScale;
}
inline float exponent_factor(const AttentionProblem& p) {
  return plain_scores(p) ? p.scale * kLog2e : kLog2e;
}

// A score as it is held here, in the unit that the LSE has.
inline double in_nats(const AttentionProblem& p, float score) {
  return static_cast<double>(score) * (plain_scores(p) ? static_cast<double>(p.scale) : 1.0);
}

// `slopes`, if given, gets those of the soft-cap.
inline void scale_and_cap(const AttentionProblem& p, const Block& block, float* scores, float* slopes) {
  const V scale = set1(p.scale), cap = set1(p.softcap);
  const V per_cap = set1(p.softcap != 0.0F ? p.scale / p.softcap : 0.0F);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* s = scores + r * kKeyTile;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      if (p.softcap == 0.0F) {
        store(s + c, mul(load(s + c), scale));
        continue;
      }
      const Tanh t = tanh_with_slope(mul(load(s + c), per_cap));
      store(s + c, mul(cap, t.value));
      if (slopes) store(slopes + r * kKeyTile + c, t.slope);
    }
  }
}

// The user's rule sees one head at a time: every G-th row.
template <class F>
inline void for_head_tiles(const AttentionProblem& p, const Block& block, F&& f) {
  for (std::int64_t g = 0; g < p.G; ++g) {
    const std::int64_t skip = (g - block.row % p.G + p.G) % p.G;  // rows before the first one of this head
    if (skip >= block.rows) continue;
    const std::int64_t rows = (block.rows - skip + p.G - 1) / p.G;
    f(skip * kKeyTile + block.c0, p.G * kKeyTile, rows, block.hk * p.G + g, token_of(p, block.row + skip));
  }
}

inline std::int64_t valid_columns(const AttentionProblem& p, const Block& block) {
  const std::int64_t end = p.N - block.j0 < block.c1 ? p.N - block.j0 : block.c1;
  return end - block.c0;
}

inline void add_bias(const AttentionProblem& p, const Block& block, float* scores) {
  float row[kKeyTile];
  const std::int64_t columns = valid_columns(p, block);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t h = head_of(p, block.hk, block.row + r), i = token_of(p, block.row + r);
    const char* src =
        element(*p.bias, block.b, h, i) + (block.j0 + block.c0) * p.bias->dim_stride * element_size(p.bias->dtype);
    clear(row, kKeyTile);
    load_row(p.bias->dtype, src, p.bias->dim_stride, columns, row);
    float* s = scores + r * kKeyTile + block.c0;
    for (std::int64_t c = 0; c < block.c1 - block.c0; c += kLanes) {
      const V bias = load(row + c), hidden = set1(-kInfinity);  // -inf hides the key, were its score a NaN
      store(s + c, select(equal(bias, hidden), hidden, add(load(s + c), bias)));
    }
  }
}

inline void add_alibi(const AttentionProblem& p, const Block& block, const RowKeys& keys, float* scores) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const V slope = set1(p.alibi[block.b * p.H + head_of(p, block.hk, block.row + r)]);
    const std::int64_t position = keys.positions[token_of(p, block.row + r) - keys.first_token];
    float* s = scores + r * kKeyTile;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      // The distance of the first key is exact in int64; within a tile it stays exact in f32 up to 2^24.
      const V distance = abs(sub(set1(static_cast<float>(position - block.j0 - c)), iota()));
      store(s + c, fnma(slope, distance, load(s + c)));
    }
  }
}

inline void hide_masked(const AttentionProblem& p, const Block& block, const RowKeys& keys, float* scores) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t i = token_of(p, block.row + r);
    const std::int64_t lo = keys.lo[i - keys.first_token] - block.j0, hi = keys.hi[i - keys.first_token] - block.j0;
    float* s = scores + r * kKeyTile;
    if (lo > block.c0 || hi < block.c1) {
      const V first = set1(static_cast<float>(lo < 0 ? 0 : lo > kKeyTile ? kKeyTile : lo));
      const V last = set1(static_cast<float>(hi < 0 ? 0 : hi > kKeyTile ? kKeyTile : hi));
      for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
        const V column = add(set1(static_cast<float>(c)), iota());
        V x = select(less(column, first), set1(-kInfinity), load(s + c));
        x = select(less(column, last), x, set1(-kInfinity));
        store(s + c, x);
      }
    }
    if (p.mask->has_holes())
      hide_holes(*p.mask, block.b, head_of(p, block.hk, block.row + r), i, block.j0 + block.c0, valid_columns(p, block),
                 s + block.c0);
  }
}

// What backward needs of scores on their way, if given: as the user's rule gets them, and the slopes of the soft-cap.
struct ScoresKept {
  float *before_rule = nullptr, *cap_slopes = nullptr;
};

// scores[rows][kKeyTile] hold q.k on entry; on return exponent_factor() times them is an exponent of 2, -inf where
// hidden.
inline void finish_scores(const AttentionProblem& p, const Block& block, const RowKeys& keys, float* scores,
                          ScoresKept kept = {}) {
  if (!plain_scores(p)) {
    scale_and_cap(p, block, scores, kept.cap_slopes);
    if (kept.before_rule)
      __builtin_memcpy(kept.before_rule, scores, static_cast<std::size_t>(block.rows * kKeyTile) * sizeof(float));
    if (p.hook)
      for_head_tiles(p, block, [&](auto at, auto stride, auto rows, auto h, auto i) {
        p.hook->forward(p.hook->context, scores + at, stride, rows, valid_columns(p, block), block.b, h, i,
                        block.j0 + block.c0);
      });
    if (p.bias) add_bias(p, block, scores);
    if (p.alibi) add_alibi(p, block, keys, scores);
  }
  if (!block.full) hide_masked(p, block, keys, scores);
}

// Multiplies the weights of kept keys by 1 / (1 - p) and drops the others.
inline void apply_dropout(const AttentionProblem& p, const Block& block, float* weights) {
  for (std::int64_t r = 0; r < block.rows; ++r)
    drop_row(p.dropout_seed, p.dropout_threshold, p.dropout_scale, block.b, head_of(p, block.hk, block.row + r),
             token_of(p, block.row + r), block.j0 + block.c0, block.c1 - block.c0, weights + r * kKeyTile + block.c0);
}
