// Forward: one sweep over the keys with an online softmax, a block of rows at a time.

constexpr std::int64_t kForwardRows = 24;  // rows whose scores are in L1 at once

// The running softmax of some rows: sum = sum of exp(s - max), acc = the same weights times v. The
// empty state (max -inf, sum 0) is the identity of merge.
struct SoftmaxState {
  float* max;   // [rows]
  float* sums;  // [rows][kLanes]: one sum a lane, added up when the state is merged
  float* acc;   // [rows][Ep]
};

struct ForwardScratch {
  float *q, *k, *k_t, *v, *scores;
  SoftmaxState part;
  float *total_max, *total_sum, *total_acc;
  RowKeys keys;
};

inline ForwardScratch carve_forward(const AttentionProblem& p, std::int64_t rows, Carver& carver) {
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  ForwardScratch s{};
  s.q = carver.take<float>(rows * Dp);
  s.k = carver.take<float>(kKeyTile * Dp);
  s.k_t = carver.take<float>(Dp * kKeyTile);
  s.v = carver.take<float>(kKeyTile * Ep);
  s.scores = carver.take<float>(kForwardRows * kKeyTile);
  s.part = {carver.take<float>(rows), carver.take<float>(rows * kLanes), carver.take<float>(rows * Ep)};
  s.total_max = carver.take<float>(rows);
  s.total_sum = carver.take<float>(rows);
  s.total_acc = carver.take<float>(rows * Ep);
  s.keys = take_row_keys(p, rows, carver);
  return s;
}

std::int64_t forward_scratch_bytes(const AttentionProblem& p, std::int64_t rows) {
  Carver carver{nullptr};
  carve_forward(p, rows, carver);
  return carver.used;
}

// Scores to weights, the state brought up to date. One row's arithmetic never depends on another's.
inline void softmax_block(const Block& block, float factor, float* scores, const SoftmaxState& state, std::int64_t at,
                          std::int64_t Ep) {
  float top[kForwardRows];
  for (std::int64_t r = 0; r < block.rows; ++r) {
    V m = set1(-kInfinity);
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) m = max(m, load(scores + r * kKeyTile + c));
    top[r] = reduce_max(m);
  }
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* s = scores + r * kKeyTile;
    float& row_max = state.max[at + r];
    float* sums = state.sums + (at + r) * kLanes;
    if (top[r] > row_max) {
      const V shrink = set1(exp2_one((row_max - top[r]) * factor));  // 0 the first time
      row_max = top[r];
      store(sums, mul(load(sums), shrink));
      float* acc = state.acc + (at + r) * Ep;
      for (std::int64_t e = 0; e < Ep; e += kLanes) store(acc + e, mul(load(acc + e), shrink));
    }
    const V base = set1(row_max == -kInfinity ? 0.0F : row_max);  // nothing seen yet: weights must come out 0
    V sum = load(sums);
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      // Subtracting first makes the weight of the largest score exactly 1: a row that sees one key returns its value.
      const V w = exp2(mul(sub(load(s + c), base), set1(factor)));
      sum = add(sum, w);
      store(s + c, w);
    }
    store(sums, sum);
  }
}

// total <- merge(total, part) for one row. Merging in rising order of keys is part of the definition of the bits.
inline void merge_row(float factor, float& total_max, float& total_sum, float* total_acc, float part_max,
                      float part_sum, const float* part_acc, std::int64_t Ep) {
  if (part_max == -kInfinity && part_sum == 0.0F) return;
  if (total_max == -kInfinity && total_sum == 0.0F) {
    total_max = part_max;
    total_sum = part_sum;
    __builtin_memcpy(total_acc, part_acc, static_cast<std::size_t>(Ep) * sizeof(float));
    return;
  }
  const float top = total_max > part_max ? total_max : part_max;
  const float a = exp2_one((total_max - top) * factor), b = exp2_one((part_max - top) * factor);
  total_max = top;
  total_sum = total_sum * a + part_sum * b;
  for (std::int64_t e = 0; e < Ep; e += kLanes)
    store(total_acc + e, fma(load(total_acc + e), set1(a), mul(load(part_acc + e), set1(b))));
}

// Writes output and LSE of one row. A row that saw nothing gives zeros and -inf.
inline void finish_row(const AttentionProblem& p, const RowRange& range, std::int64_t row, float row_max, float sum,
                       const float* acc) {
  const std::int64_t h = head_of(p, range.hk, row), i = token_of(p, row);
  const bool empty = row_max == -kInfinity && sum == 0.0F;
  // The largest score in its own unit; in double, because the LSE and with it all of backward hang on it.
  double top = static_cast<double>(row_max) * (plain_scores(p) ? static_cast<double>(p.scale) : 1.0);
  float shrink = 1.0F;
  if (p.sinks) {
    const auto sink = static_cast<double>(p.sinks[h]);
    const double higher = top > sink ? top : sink;
    shrink = exp2_one(static_cast<float>(top - higher) * kLog2e);
    sum = sum * shrink + exp2_one(static_cast<float>(sink - higher) * kLog2e);
    top = higher;
  }
  const float factor = empty ? 0.0F : shrink / sum;
  store_row(p.out.dtype, element_mut(p.out, range.b, h, i), p.out.dim_stride, p.E, acc, factor);
  if (p.lse)  // log(0) is -inf: an empty row
    p.lse[row_index(p, range.b, range.hk, row)] = static_cast<float>(top + __builtin_log(static_cast<double>(sum)));
}

// One tile of keys for all rows of the range.
inline void forward_tile(const AttentionProblem& p, const RowRange& range, std::int64_t j0, ForwardScratch& s) {
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  bool loaded = false, v_finite = true;
  for (std::int64_t row = range.begin; row < range.end; row += kForwardRows) {
    const std::int64_t rows = range.end - row < kForwardRows ? range.end - row : kForwardRows;
    Block block{range.b, range.hk, row, rows, j0, 0, 0, false};
    if (!place_block(p, s.keys, block)) continue;
    if (!loaded) {
      const std::int64_t count = p.N - j0 < kKeyTile ? p.N - j0 : kKeyTile;
      load_tile(p.k, range.b, range.hk, j0, count, p.D, s.k, Dp, kKeyTile);
      transpose_tile(s.k, Dp, p.D, s.k_t);
      v_finite = load_tile(p.v, range.b, range.hk, j0, count, p.E, s.v, Ep, kKeyTile);
      loaded = true;
    }
    const std::int64_t at = row - range.begin, columns = block.c1 - block.c0;
    product<false>({s.q + at * Dp, Dp, 1, s.k_t + block.c0, kKeyTile, s.scores + block.c0, kKeyTile, p.D}, rows,
                   columns);
    finish_scores(p, block, s.keys, s.scores, nullptr);
    softmax_block(block, exponent_factor(p), s.scores, s.part, at, Ep);
    if (p.dropout_threshold) apply_dropout(p, block, s.scores);
    accumulate({s.scores + block.c0, kKeyTile, 1, s.v + block.c0 * Ep, Ep, s.part.acc + at * Ep, Ep, columns}, rows, Ep,
               v_finite);
  }
}

inline void clear_part(const ForwardScratch& s, std::int64_t rows, std::int64_t Ep) {
  for (std::int64_t r = 0; r < rows; ++r) s.part.max[r] = -kInfinity;
  clear(s.part.sums, rows * kLanes);
  clear(s.part.acc, rows * Ep);
}

// All rows of the range over keys [first_split, last_split) * kKeySplit. With `partial`, the state of the one split
// goes there ([rows][2 + Ep]: max, sum, acc) and merge_partials finishes; else the rows are finished here. Both ways
// do the same sums in the same order.
void forward(const AttentionProblem& p, const RowRange& range, std::int64_t first_split, std::int64_t last_split,
             float* partial, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const std::int64_t rows = range.end - range.begin;
  ForwardScratch s = carve_forward(p, rows, carver);
  const std::int64_t Dp = round_up(p.D, kLanes), Ep = round_up(p.E, kLanes);
  fill_row_keys(p, range, s.keys);
  const KeyRange seen = visible_range(p, s.keys, range.begin, range.end);
  load_rows(p, p.q, range.b, range.hk, range.begin, rows, p.D, s.q, Dp);
  for (std::int64_t r = 0; r < rows; ++r) {
    s.total_max[r] = -kInfinity;
    s.total_sum[r] = 0.0F;
  }
  clear(s.total_acc, rows * Ep);

  for (std::int64_t split = first_split; split < last_split; ++split) {
    const std::int64_t begin = split * kKeySplit;
    const std::int64_t end = seen.hi < begin + kKeySplit ? seen.hi : begin + kKeySplit;
    if (end <= begin || begin + kKeySplit <= seen.lo) continue;
    clear_part(s, rows, Ep);
    const std::int64_t first = seen.lo > begin ? seen.lo / kKeyTile * kKeyTile : begin;
    for (std::int64_t j0 = first; j0 < end; j0 += kKeyTile) forward_tile(p, range, j0, s);
    for (std::int64_t r = 0; r < rows; ++r)
      merge_row(exponent_factor(p), s.total_max[r], s.total_sum[r], s.total_acc + r * Ep, s.part.max[r],
                reduce_add(load(s.part.sums + r * kLanes)), s.part.acc + r * Ep, Ep);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!partial) {
      finish_row(p, range, range.begin + r, s.total_max[r], s.total_sum[r], s.total_acc + r * Ep);
      continue;
    }
    float* state = partial + r * (2 + Ep);
    state[0] = s.total_max[r];
    state[1] = s.total_sum[r];
    __builtin_memcpy(state + 2, s.total_acc + r * Ep, static_cast<std::size_t>(Ep) * sizeof(float));
  }
}

std::int64_t partial_floats(const AttentionProblem& p, std::int64_t rows) {
  return rows * (2 + round_up(p.E, kLanes));
}

// Finishes rows from the states of all splits, `stride` floats apart.
void merge_partials(const AttentionProblem& p, const RowRange& range, const float* partials, std::int64_t stride,
                    std::int64_t splits, void* scratch) {
  const std::int64_t Ep = round_up(p.E, kLanes);
  auto* acc = static_cast<float*>(scratch);
  for (std::int64_t r = 0; r < range.end - range.begin; ++r) {
    float row_max = -kInfinity, sum = 0.0F;
    clear(acc, Ep);
    for (std::int64_t split = 0; split < splits; ++split) {
      const float* state = partials + split * stride + r * (2 + Ep);
      merge_row(exponent_factor(p), row_max, sum, acc, state[0], state[1], state + 2, Ep);
    }
    finish_row(p, range, range.begin + r, row_max, sum, acc);
  }
}

// The weights themselves, exp(s - LSE), for all keys: a second sweep with the LSE known.
void weights(const AttentionProblem& p, const RowRange& range, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const std::int64_t rows = range.end - range.begin;
  ForwardScratch s = carve_forward(p, rows, carver);
  const std::int64_t Dp = round_up(p.D, kLanes);
  fill_row_keys(p, range, s.keys);
  load_rows(p, p.q, range.b, range.hk, range.begin, rows, p.D, s.q, Dp);
  const V factor = set1(exponent_factor(p));
  for (std::int64_t j0 = 0; j0 < p.N; j0 += kKeyTile) {
    const std::int64_t count = p.N - j0 < kKeyTile ? p.N - j0 : kKeyTile;
    load_tile(p.k, range.b, range.hk, j0, count, p.D, s.k, Dp, kKeyTile);
    transpose_tile(s.k, Dp, p.D, s.k_t);
    for (std::int64_t row = range.begin; row < range.end; row += kForwardRows) {
      Block block{range.b, range.hk, row, range.end - row < kForwardRows ? range.end - row : kForwardRows,
                  j0,      0,        0,   false};
      const bool seen = place_block(p, s.keys, block);
      if (seen) {
        product<false>(
            {s.q + (row - range.begin) * Dp, Dp, 1, s.k_t + block.c0, kKeyTile, s.scores + block.c0, kKeyTile, p.D},
            block.rows, block.c1 - block.c0);
        finish_scores(p, block, s.keys, s.scores, nullptr);
      }
      for (std::int64_t r = 0; r < block.rows; ++r) {
        float out[kKeyTile] = {};
        const float lse = p.lse[row_index(p, range.b, range.hk, row + r)] * kLog2e;
        const V base = set1(lse == -kInfinity ? 0.0F : -lse);
        for (std::int64_t c = block.c0; seen && c < block.c1; c += kLanes)
          store(out + c, exp2(fma(load(s.scores + r * kKeyTile + c), factor, base)));
        const Operand& w = *p.weights;
        char* dst = element_mut(w, range.b, head_of(p, range.hk, row + r), token_of(p, row + r)) +
                    j0 * w.dim_stride * element_size(w.dtype);
        store_row(w.dtype, dst, w.dim_stride, count, out, 1.0F);
      }
    }
  }
}
