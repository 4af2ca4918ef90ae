// Forward: one sweep over the keys with an online softmax, a block of rows at a time.

// The softmax of a row over some keys, its scores as the kernels hold them.
using RowSoftmax = SoftmaxState<float, float>;

// The running softmax of some rows: sum = sum of exp(s - max), acc = the same weights times v.
struct RunningRows {
  float* max;   // [rows]
  float* sums;  // [rows][kLanes]: one sum a lane, added up when the state is merged
  float* acc;   // [rows][acc_row]

  RowSoftmax row(std::int64_t r) const { return {max[r], reduce_add(load(sums + r * kLanes))}; }
};

// Sums that an observer asked for stand beside the output in a row of the accumulator, and shrink and merge with it;
// behind them the sums of the statistics.
inline std::int64_t statistics_at(const AttentionProblem& p) {
  return round_up(p.E, kLanes) + (p.observer ? round_up(p.observer->count, kLanes) : 0);
}
inline std::int64_t acc_row(const AttentionProblem& p) {
  return statistics_at(p) + statistic_floats(p);
}

// Room for the rows of a tile before they are packed.
template <class Math>
inline typename Math::Element* take_tile_rows(const AttentionProblem& p, Carver& carver) {
  return carver.take<typename Math::Element>(kKeyTile * Math::row_elements(p.D > p.E ? p.D : p.E));
}
inline std::int64_t keys_in_tile(const AttentionProblem& p, const KeyTile& at) {
  return p.N - at.j0 < kKeyTile ? p.N - at.j0 : kKeyTile;
}

template <class Math>
std::int64_t tile_bytes_with(const AttentionProblem& p) {
  Carver carver{nullptr};
  take_tile<Math>(p.D, p.E, carver);
  return carver.used;
}
template <class Math>
void pack_tile_with(const AttentionProblem& p, const KeyTile& at, char* dst, void* scratch) {
  Carver scratch_carver{static_cast<char*>(scratch)}, carver{dst};
  typename Math::Element* rows = take_tile_rows<Math>(p, scratch_carver);
  const PackedTile<Math> tile = take_tile<Math>(p.D, p.E, carver);
  Math::pack_along_dim(p.k, at, keys_in_tile(p, at), p.D, rows, tile.k);
  if (const auto* v = Math::in_place(p.v, at, keys_in_tile(p, at), p.E))
    *tile.v_finite = Math::finite_in_place(v, p.v.row_stride, p.E);
  else
    *tile.v_finite = Math::pack_along_keys(p.v, at, keys_in_tile(p, at), p.E, rows, tile.v);
}

template <class Math>
struct ForwardScratch {
  typename Math::Element *tile_rows, *q, *weights;
  const typename Math::Element* queries;  // the range's rows, query_row elements apart
  std::int64_t query_row;
  PackedTile<Math> tile;
  float* scores;
  float* next_scores;                      // the other block's, where two are worked on at once (overlap.inl)
  typename Math::Element* before_weights;  // and its weights
  RunningRows part;
  RowSoftmax* total;  // [rows]
  float* total_acc;   // [rows][acc_row]
  float* acc_before;  // of the decode path
  RowKeys keys;
};

template <class Math>
inline ForwardScratch<Math> carve_forward(const AttentionProblem& p, std::int64_t rows, Carver& carver) {
  using Element = typename Math::Element;
  const std::int64_t Ap = acc_row(p);
  ForwardScratch<Math> s{};
  s.tile_rows = take_tile_rows<Math>(p, carver);
  s.tile = take_tile<Math>(p.D, p.E, carver);
  s.q = carver.take<Element>(rows * Math::row_elements(p.D));
  s.scores = carver.take<float>(kBlockRows * kKeyTile);
  s.weights = Math::take_weights(s.scores, kBlockRows, carver);
#ifdef ATTEND_TILE_DOT
  s.next_scores = carver.take<float>(kBlockRows * kKeyTile);
  s.before_weights = Math::take_weights(s.next_scores, kBlockRows, carver);
#endif
  s.part = {carver.take<float>(rows), carver.take<float>(rows * kLanes), carver.take<float>(rows * Ap)};
  s.total = carver.take<RowSoftmax>(rows);
  s.total_acc = carver.take<float>(rows * Ap);
  s.acc_before = carver.take<float>(kTileRows * Ap);
  s.keys = take_row_keys(p, rows, carver);
  return s;
}

template <class Math>
std::int64_t forward_scratch_bytes_with(const AttentionProblem& p, std::int64_t rows) {
  Carver carver{nullptr};
  carve_forward<Math>(p, rows, carver);
  return carver.used;
}

// The largest score of a row has grown to `larger`: what was summed against the smaller one shrinks.
inline void shrink_row(const AttentionProblem& p, float smaller, float larger, float* sums, float* acc) {
  const V shrink = set1(exp2_one((smaller - larger) * exponent_factor(p)));
  store(sums, mul(load(sums), shrink));
  const std::int64_t end = statistics_at(p) + scaled_statistics(p);
  for (std::int64_t e = 0; e < end; e += kLanes) store(acc + e, mul(load(acc + e), shrink));
}

// Without an observer.
struct Unwatched {
  Unwatched(const AttentionProblem&, const Block&) {}
  static void new_maximum(const float*, float, float, const float*, const float*) {}
  struct Row {
    Row(const Unwatched&, const float*) {}
    static void see(std::int64_t, V, V) {}
    static void finish(const float*) {}
  };
  static void next_row() {}
};

// Scores to weights, the state brought up to date. One row's arithmetic never depends on another's. The weights end as
// Math's products want them or, as floats, in place of the scores: where an observer has yet to see them.
template <class Math, class Watch>
inline void softmax_block_with(const AttentionProblem& p, const Block& block, float* scores, bool as_floats,
                               typename Math::Element* weights, const RunningRows& state, std::int64_t at) {
  const std::int64_t Ap = acc_row(p), first_statistic = statistics_at(p), c0 = block.c0, c1 = block.c1;
  const float factor = exponent_factor(p);
  Watch watch(p, block);
  for (std::int64_t r = 0; r < block.rows; ++r, watch.next_row()) {
    float* s = scores + r * kKeyTile;
    float& row_max = state.max[at + r];
    float *sums = state.sums + (at + r) * kLanes, *acc = state.acc + (at + r) * Ap;
    V top = load(s + c0);
    for (std::int64_t c = c0 + kLanes; c < c1; c += kLanes) top = max(top, load(s + c));
    if (any(less(set1(row_max), top))) {  // seldom, once the first tiles are behind
      const float larger = reduce_max(top);
      watch.new_maximum(s, row_max, larger, sums, acc + first_statistic);
      if (row_max != -kInfinity) shrink_row(p, row_max, larger, sums, acc);  // else there is nothing yet to shrink
      row_max = larger;
    }
    // Nothing seen yet: weights must come out 0.
    const typename Math::Exponent exponent(row_max == -kInfinity ? 0.0F : row_max, factor);
    exponent.use([&](auto power) {
      V sum = load(sums);
      typename Watch::Row watched(watch, acc + first_statistic);
      for (std::int64_t c = c0; c < c1; c += kLanes) {
        const V t = power(load(s + c)), w = Math::power_of_two(t);
        sum = add(sum, w);
        watched.see(c, t, w);
        if (as_floats)
          store(s + c, w);
        else
          Math::store_weights(weights + r * Math::kWeightRow, c, w);
      }
      store(sums, sum);
      watched.finish(acc + first_statistic);
    });
  }
}
// Apart from the loop that everybody runs.
template <class Math, class Watch>
[[gnu::noinline]] void softmax_block_watched(const AttentionProblem& p, const Block& block, float* scores,
                                             bool as_floats, typename Math::Element* weights, const RunningRows& state,
                                             std::int64_t at) {
  softmax_block_with<Math, Watch>(p, block, scores, as_floats, weights, state, at);
}
template <class Math>
inline void softmax_block(const AttentionProblem& p, const Block& block, float* scores, bool as_floats,
                          typename Math::Element* weights, const RunningRows& state, std::int64_t at) {
  if (!p.statistics) return softmax_block_with<Math, Unwatched>(p, block, scores, as_floats, weights, state, at);
  (p.statistics->tokens ? softmax_block_watched<Math, Watched<true>>
                        : softmax_block_watched<Math, Watched<false>>)(p, block, scores, as_floats, weights, state, at);
}

// total <- merge(total, part) for one row. Merging in rising order of keys is part of the definition of the bits.
inline void merge_row(const AttentionProblem& p, RowSoftmax& total, float* total_acc, const RowSoftmax& part,
                      const float* part_acc) {
  const RowSoftmax before = total;
  const float factor = exponent_factor(p);
  const auto merged = merge(total, part, [&](float x) { return exp2_one(x * factor); });
  total = merged.whole;
  if (part.empty()) return;
  const std::int64_t linear = statistics_at(p);
  if (before.empty()) {
    __builtin_memcpy(total_acc, part_acc, static_cast<std::size_t>(acc_row(p)) * sizeof(float));
    return;
  }
  if (p.statistics)
    merge_statistics(factor, before.max, part.max, merged.a, merged.b, total_acc + linear, part_acc + linear);
  for (std::int64_t e = 0; e < linear; e += kLanes)
    store(total_acc + e, fma(load(total_acc + e), set1(merged.a), mul(load(part_acc + e), set1(merged.b))));
}

// Writes output and LSE of one row. A row that saw nothing gives zeros and -inf.
inline void finish_row(const AttentionProblem& p, const RowRange& range, std::int64_t row, const RowSoftmax& seen,
                       const float* acc) {
  const std::int64_t h = head_of(p, range.hk, row), i = token_of(p, row);
  // The maximum in double, because the LSE and with it all of backward hang on it.
  SoftmaxState<double, float> all{in_nats(p, seen.max), seen.sum};
  float shrink = 1.0F;
  if (p.sinks && p.sinks[h] != -kInfinity) {
    const SoftmaxState<double, float> sink{static_cast<double>(p.sinks[h]), 1.0F};
    const auto merged = merge(all, sink, [](double x) { return exp2_one(static_cast<float>(x) * kLog2e); });
    all = merged.whole;
    shrink = merged.a;
  }
  const float factor = seen.empty() ? 0.0F : shrink / all.sum;
  if (!p.no_values) store_row(p.out.dtype, element_mut(p.out, range.b, h, i), p.out.dim_stride, p.E, acc, factor);
  if (p.observer) {
    const float* sums = acc + round_up(p.E, kLanes);
    float* dst = p.observer->sums + row_index(p, range.b, range.hk, row) * p.observer->count;
    for (std::int64_t n = 0; n < p.observer->count; ++n) dst[n] = sums[n] * factor;
  }
  if (p.statistics) finish_statistics(p, range.b, h, i, seen.sum, factor, acc + statistics_at(p));
  if (p.lse)  // log(0) is -inf: an empty row
    p.lse[row_index(p, range.b, range.hk, row)] =
        static_cast<float>(all.max + __builtin_log(static_cast<double>(all.sum)));
}

// Adds each row's sum of weight * f(i, j) over the block, for every f of the observer.
inline void observe_block(const AttentionProblem& p, const Block& block, const float* weights, float* acc) {
  const std::int64_t Ap = acc_row(p), first = round_up(p.E, kLanes);
  float values[kBlockRows * kKeyTile];
  for (std::int64_t n = 0; n < p.observer->count; ++n) {
    clear(values, block.rows * kKeyTile);
    for_head_tiles(p, block, [&](auto at, auto stride, auto rows, auto h, auto i) {
      p.observer->values(p.observer->context, n, values + at, stride, rows, valid_columns(p, block), block.b, h, i,
                         block.j0 + block.c0);
    });
    for (std::int64_t r = 0; r < block.rows; ++r) {
      V sum = set1(0.0F);
      for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
        const V w = load(weights + r * kKeyTile + c);
        // A hidden key adds nothing, whatever f says of it.
        const V f = select(equal(w, set1(0.0F)), set1(0.0F), load(values + r * kKeyTile + c));
        sum = fma(w, f, sum);
      }
      acc[r * Ap + first + n] += reduce_add(sum);
    }
  }
}

// Keys and values of a tile, wherever they are: packed before, in place, or packed here.
template <class Math>
struct TileOperands {
  const typename Math::Element *k, *v;
  std::int64_t v_row;
  bool v_finite;
  const float *k_scales, *v_scales;  // of an int8 cache, for each key; else null
};
template <class Math>
inline TileOperands<Math> tile_operands(const AttentionProblem& p, const KeyTile& at, const ForwardScratch<Math>& s) {
  const std::int64_t Ep = round_up(p.E, kLanes), count = keys_in_tile(p, at);
  if (p.packed) {
    char* data = p.packed->tile(at.b, at.hk, p.Hk, at.j0 / kKeyTile);
    const bool more = p.packed->pages && at.j0 + kKeyTile < p.N;
    const char* next = more ? p.packed->tile(at.b, at.hk, p.Hk, at.j0 / kKeyTile + 1) : data;
    const bool halves = p.packed->stored == StoredAs::bf16 || p.packed->stored == StoredAs::f16;
    if (more && !halves)
      for (std::int64_t n = 0; n < p.packed->tile_bytes; n += 64) __builtin_prefetch(next + n, 0, 2);
    if (p.packed->stored != StoredAs::packed) {
      const StoredTile t = widen_tile<Math>(p, data, next - data, s.tile);
      return {s.tile.k, s.tile.v, Ep, *t.v_finite, t.k_scales, t.v_scales};
    }
    Carver carver{data};
    const PackedTile<Math> tile = take_tile<Math>(p.D, p.E, carver);
    const auto* v = p.packed->pages ? nullptr : Math::in_place(p.v, at, count, p.E);
    return {tile.k, v ? v : tile.v, v ? p.v.row_stride : Ep, *tile.v_finite, nullptr, nullptr};
  }
  Math::pack_along_dim(p.k, at, count, p.D, s.tile_rows, s.tile.k);
  if (const auto* v = Math::in_place(p.v, at, count, p.E))
    return {s.tile.k, v, p.v.row_stride, Math::finite_in_place(v, p.v.row_stride, p.E), nullptr, nullptr};
  const bool finite = Math::pack_along_keys(p.v, at, count, p.E, s.tile_rows, s.tile.v);
  return {s.tile.k, s.tile.v, Ep, finite, nullptr, nullptr};
}

// The keys of a tile as the products read them; values are not looked at.
template <class Math>
inline TileOperands<Math> tile_keys(const AttentionProblem& p, const KeyTile& at, const ForwardScratch<Math>& s) {
  if (!p.packed) {
    Math::pack_along_dim(p.k, at, keys_in_tile(p, at), p.D, s.tile_rows, s.tile.k);
    return {s.tile.k, nullptr, 0, true, nullptr, nullptr};
  }
  char* data = p.packed->tile(at.b, at.hk, p.Hk, at.j0 / kKeyTile);
  if (p.packed->stored != StoredAs::packed) {
    const StoredTile t = widen_tile<Math>(p, data, 0, s.tile);
    return {s.tile.k, nullptr, 0, true, t.k_scales, nullptr};
  }
  Carver carver{data};
  return {take_tile<Math>(p.D, p.E, carver).k, nullptr, 0, true, nullptr, nullptr};
}

// Scores to weights as the product with the values wants them: what the options and the mask say, the softmax, and
// the observer. Row 0 of the block is row `at` of the range.
template <class Math>
inline void weigh_block(const AttentionProblem& p, const Block& block, const float* k_scales, const float* v_scales,
                        ForwardScratch<Math>& s, std::int64_t at) {
  if (k_scales) scale_columns(block, s.scores, k_scales);
  finish_scores(p, block, s.keys, s.scores);
  const bool as_floats = p.dropout_threshold || p.observer || v_scales;
  softmax_block<Math>(p, block, s.scores, as_floats, s.weights, s.part, at);
  if (p.observer) observe_block(p, block, s.scores, s.part.acc + at * acc_row(p));
  if (p.dropout_threshold) apply_dropout(p, block, s.scores);
  if (v_scales) scale_columns(block, s.scores, v_scales);
  if (as_floats) Math::weights_along_keys(s.scores, block.rows, block.c0, block.c1, s.weights);
}

// The products of a block: its scores, and what its weights add to the sums.
template <class Math>
inline ProductArgs<typename Math::Format> score_args(const AttentionProblem& p, const Block& block, const Term& term,
                                                     const TileOperands<Math>& tile, const ForwardScratch<Math>& s,
                                                     std::int64_t at, float* scores) {
  const std::int64_t depth = Math::depth(p.D);
  return {.a = {s.queries + at * s.query_row + term.a * depth, s.query_row},  // (M,D) q
          .b = {tile.k + term.b * depth * kKeyTile + block.c0, kKeyTile},     // (D,N) k, transposed
          .c = {scores + block.c0, kKeyTile},                                 // (M,N) scores
          .inner = depth};
}
template <class Math>
inline ProductArgs<typename Math::Format> value_args(const AttentionProblem& p, const Block& block, const Term& term,
                                                     const TileOperands<Math>& tile, const ForwardScratch<Math>& s,
                                                     std::int64_t at, const typename Math::Element* weights) {
  constexpr std::int64_t kTileElements = kKeyTile / Math::kPack;
  const std::int64_t first = block.c0 / Math::kPack;
  return {.a = {weights + term.a * kTileElements + first, Math::kWeightRow},          // (M,N) weights
          .b = {tile.v + (term.b * kTileElements + first) * tile.v_row, tile.v_row},  // (N,E) v
          .c = {s.part.acc + at * acc_row(p), acc_row(p)},                            // (M,E) sums
          .inner = (block.c1 - block.c0) / Math::kPack};
}

// q.k of a block whose row 0 is row `at` of the range.
template <class Math>
inline void multiply_keys(const AttentionProblem& p, const Block& block, const TileOperands<Math>& tile,
                          const ForwardScratch<Math>& s, std::int64_t at) {
  for (const Term& term : Math::kProducts) {
    const auto args = score_args(p, block, term, tile, s, at, s.scores);
    if (&term == Math::kProducts)
      product<false>(args, block.rows, block.c1 - block.c0);
    else
      product<true>(args, block.rows, block.c1 - block.c0);
  }
}

#ifdef ATTEND_TILE_DOT
#include "cpu/kernels/overlap.inl"
#endif

// One tile of keys for all rows of the range.
template <class Math>
inline void forward_tile(const AttentionProblem& p, const RowRange& range, std::int64_t j0, ForwardScratch<Math>& s) {
  Block block{range.b, range.hk, range.begin, 0, j0, 0, 0, false};
  if (!next_block(p, s.keys, range.end, block)) return;
  const KeyTile keys{range.b, range.hk, j0};
  const TileOperands<Math> tile = p.no_values ? tile_keys<Math>(p, keys, s) : tile_operands<Math>(p, keys, s);
#ifdef ATTEND_TILE_DOT
  if (overlaps(p, tile)) return forward_overlapped(p, range, block, tile, s);
#endif
  do {
    const std::int64_t at = block.row - range.begin;
    multiply_keys(p, block, tile, s, at);
    weigh_block<Math>(p, block, tile.k_scales, tile.v_scales, s, at);
    if (p.no_values) continue;
    for (const Term& term : Math::kProducts)
      accumulate(value_args(p, block, term, tile, s, at, s.weights), block.rows, round_up(p.E, kLanes), tile.v_finite);
  } while (next_block(p, s.keys, range.end, block));
}

#include "cpu/kernels/decode.inl"

template <class Math>
inline void clear_part(const AttentionProblem& p, const ForwardScratch<Math>& s, std::int64_t rows) {
  const std::int64_t Ap = acc_row(p);
  for (std::int64_t r = 0; r < rows; ++r) s.part.max[r] = -kInfinity;
  clear(s.part.sums, rows * kLanes);
  clear(s.part.acc, rows * Ap);
  if (p.statistics)
    for (std::int64_t r = 0; r < rows; ++r) set_argmax(s.part.acc + r * Ap + statistics_at(p), -1);
}

// The rows' queries where the products can broadcast them from: in place if they lie so, else loaded.
template <class Math>
inline void load_queries(const AttentionProblem& p, const RowRange& range, ForwardScratch<Math>& s) {
  const MatrixRef rows{p.q.dtype, const_cast<char*>(element(p.q, range.b, range.hk * p.G, 0)), p.q.row_stride,
                       p.q.dim_stride};
  const typename Math::Element* in_place = p.G == 1 ? Math::rows_in_place(rows, range.begin, 0, p.D) : nullptr;
  if (in_place && p.q.dim_stride == 1) {
    s.queries = in_place;
    s.query_row = p.q.row_stride / Math::kPack;
    return;
  }
  load_rows<Math>(p, p.q, range.b, range.hk, range.begin, range.end - range.begin, p.D, s.q);
  s.queries = s.q;
  s.query_row = Math::row_elements(p.D);
}

// The state of a split that merge_partials takes up: RowSoftmax[rows], then acc[rows][Ap], where the products add to it
// in place.
inline std::int64_t partial_acc(std::int64_t rows) {
  return round_up(2 * rows, kLanes);
}
std::int64_t partial_floats(const AttentionProblem& p, std::int64_t rows) {
  return round_up(partial_acc(rows) + rows * acc_row(p), kLanes);
}

// All rows of the range over keys [first_split, last_split) * kKeySplit. With `partial`, the state of the one split
// goes there and merge_partials finishes; else the rows are finished here. Both ways do the same sums in the same
// order.
template <class Math>
void forward_with(const AttentionProblem& p, const RowRange& range, std::int64_t first_split, std::int64_t last_split,
                  float* partial, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const std::int64_t rows = range.end - range.begin;
  [[maybe_unused]] const typename Math::Session session{};
  ForwardScratch<Math> s = carve_forward<Math>(p, rows, carver);
  const std::int64_t Ap = acc_row(p);
  fill_row_keys(p, range, s.keys);
  const KeyRange seen = visible_range(p, s.keys, range.begin, range.end);
  load_queries<Math>(p, range, s);
  if (partial) s.part.acc = partial + partial_acc(rows);

  bool merging = false;
  for (std::int64_t split = first_split; split < last_split; ++split) {
    const std::int64_t begin = split * kKeySplit;
    const std::int64_t end = seen.hi < begin + kKeySplit ? seen.hi : begin + kKeySplit;
    if (end <= begin || begin + kKeySplit <= seen.lo) continue;
    const std::int64_t next = next_seen(p, range, seen.lo > begin ? seen.lo : begin, seen.hi);
    if (next >= seen.hi) break;
    if (next >= end) {  // on to the split that holds it
      split = next / kKeySplit - 1;
      continue;
    }
    clear_part(p, s, rows);
    for (std::int64_t j = next; j < end; j = next_seen(p, range, j / kKeyTile * kKeyTile + kKeyTile, end))
      if (const std::int64_t j0 = j / kKeyTile * kKeyTile; !decode_tile(p, range, j0, s))
        forward_tile<Math>(p, range, j0, s);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (p.statistics) keep_sums(s.part.sums + r * kLanes, s.part.acc + r * Ap + statistics_at(p));
      if (merging)
        merge_row(p, s.total[r], s.total_acc + r * Ap, s.part.row(r), s.part.acc + r * Ap);
      else
        s.total[r] = s.part.row(r);
    }
    if (!merging) {  // merging with nothing would copy: the parts become the totals instead
      float* parts = s.part.acc;
      s.part.acc = s.total_acc;
      s.total_acc = parts;
    }
    merging = true;
  }
  if (!merging) {  // nothing was seen
    for (std::int64_t r = 0; r < rows; ++r) s.total[r] = {};
    if (partial) s.total_acc = s.part.acc;
    clear(s.total_acc, rows * Ap);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    if (partial)
      reinterpret_cast<RowSoftmax*>(partial)[r] = s.total[r];
    else
      finish_row(p, range, range.begin + r, s.total[r], s.total_acc + r * Ap);
  }
}

// Finishes rows [first, last) of the range from the states of all splits, `stride` floats apart.
void merge_partials(const AttentionProblem& p, const RowRange& range, std::int64_t first, std::int64_t last,
                    const float* partials, std::int64_t stride, std::int64_t splits, void* scratch) {
  const std::int64_t Ap = acc_row(p), rows = range.end - range.begin;
  auto* acc = static_cast<float*>(scratch);
  for (std::int64_t r = first; r < last; ++r) {
    RowSoftmax total;
    clear(acc, Ap);
    for (std::int64_t split = 0; split < splits; ++split) {
      const float* state = partials + split * stride;
      merge_row(p, total, acc, reinterpret_cast<const RowSoftmax*>(state)[r], state + partial_acc(rows) + r * Ap);
    }
    finish_row(p, range, range.begin + r, total, acc);
  }
}

// The weights themselves: a second sweep over QK^T with the softmax of each row known. Stored for all keys, or shown to
// the visitor where the mask leaves something to see.
void weights(const AttentionProblem& p, const RowRange& range, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  const std::int64_t rows = range.end - range.begin;
  ForwardScratch<Floats> s = carve_forward<Floats>(p, rows, carver);
  const std::int64_t Dp = round_up(p.D, kLanes);
  fill_row_keys(p, range, s.keys);
  load_rows<Floats>(p, p.q, range.b, range.hk, range.begin, rows, p.D, s.q);
  const V factor = set1(exponent_factor(p));
  for (std::int64_t j0 = 0; j0 < p.N; j0 += kKeyTile) {
    if (!p.weights) {
      const std::int64_t next = next_seen(p, range, j0, p.N);
      if (next >= p.N) break;
      j0 = next / kKeyTile * kKeyTile;
    }
    const KeyTile tile{range.b, range.hk, j0};
    const std::int64_t count = keys_in_tile(p, tile);
    bool packed = false;
    for (std::int64_t row = range.begin; row < range.end; row += kBlockRows) {
      Block block{range.b, range.hk, row, range.end - row < kBlockRows ? range.end - row : kBlockRows, j0, 0, 0, false};
      const bool seen = place_block(p, s.keys, block);
      if (!seen && !p.weights) continue;
      clear(s.scores, block.rows * kKeyTile);
      if (seen) {
        if (!packed) Floats::pack_along_dim(p.k, tile, count, p.D, s.tile_rows, s.tile.k);
        packed = true;
        set_product({s.scores + block.c0, kKeyTile}, LeftTile<FloatFormat>{s.q + (row - range.begin) * Dp, Dp},
                    RightTile<FloatFormat>{s.tile.k + block.c0, kKeyTile},
                    {block.rows, block.c1 - block.c0, p.D});  // (M,N) = (M,D) . (D,N)
        finish_scores(p, block, s.keys, s.scores);
        for (std::int64_t r = 0; r < block.rows; ++r) {
          float* score = s.scores + r * kKeyTile;
          const SoftmaxRow& softmax = p.softmax_rows[row_index(p, range.b, range.hk, row + r)];
          const V base = set1(softmax.base), shift = set1(softmax.shift);
          for (std::int64_t c = block.c0; c < block.c1; c += kLanes)
            store(score + c, exp2(fma(sub(load(score + c), base), factor, shift)));
        }
      }
      if (p.visitor)
        for_head_tiles(p, block, [&](auto at, auto stride, auto tile_rows, auto h, auto i) {
          p.visitor->visit(p.visitor->context, s.scores + at, stride, tile_rows, valid_columns(p, block), block.b, h, i,
                           j0 + block.c0);
        });
      if (p.weights)
        for (std::int64_t r = 0; r < block.rows; ++r) {
          const Operand& w = *p.weights;
          char* dst = element_mut(w, range.b, head_of(p, range.hk, row + r), token_of(p, row + r)) +
                      j0 * w.dim_stride * element_size(w.dtype);
          store_row(w.dtype, dst, w.dim_stride, count, s.scores + r * kKeyTile, 1.0F);
        }
    }
  }
}
