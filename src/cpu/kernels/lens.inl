// The lens: a second sweep over QK^T for the rows of one head, with the softmax of each row known. What is asked for is
// made of the weights while they lie in the cache: sums and maxima of cells, the weights themselves, the largest ones,
// counts.

// q.k of a block, finished as the options and the mask say.
template <class Math>
inline void make_scores(const AttentionProblem& p, const Block& block, const TileOperands<Math>& tile,
                        const ForwardScratch<Math>& s, std::int64_t at) {
  multiply_keys(p, block, tile, s, at);
  if (tile.k_scales) scale_columns(block, s.scores, tile.k_scales);
  finish_scores(p, block, s.keys, s.scores);
}

inline V weight_of(V score, const SoftmaxRow& row, V factor) {
  return exp2(fma(sub(score, set1(row.base)), factor, set1(row.shift)));
}

// Adds the sums of columns [from, to) of a tile to their cells.
inline void add_to_cells(const LensSweep& sweep, std::int64_t j0, std::int64_t from, std::int64_t to, const float* sums,
                         const float* tops, std::int64_t row) {
  const CellAxis& axis = sweep.key_axis;
  double* mass = sweep.mass + (row - sweep.first_row) * axis.cells;
  float* peak = sweep.peak + (row - sweep.first_row) * axis.cells;
  for (std::int64_t cell = axis.cell(j0 + from); from < to; ++cell) {
    const std::int64_t next = axis.begin(cell + 1) - j0, end = next < to ? next : to;
    V sum = set1(0.0F), top = set1(0.0F);
    for (; from + kLanes <= end; from += kLanes) {
      sum = add(sum, load(sums + from));
      top = max(top, load(tops + from));
    }
    double all = static_cast<double>(reduce_add(sum));
    float largest = reduce_max(top);
    for (; from < end; ++from) {
      all += static_cast<double>(sums[from]);
      largest = tops[from] > largest ? tops[from] : largest;
    }
    mass[cell] += all;
    if (!(largest <= peak[cell])) peak[cell] = largest;
  }
}

// The weights of a block to the sums and maxima of its cells: over the rows of a row of cells first, then along it.
inline void pool_block(const LensSweep& sweep, const Block& block, std::int64_t from, std::int64_t to, V factor,
                       const float* scores) {
  float sums[kKeyTile], tops[kKeyTile];
  const CellAxis& axis = sweep.query_axis;
  for (std::int64_t r = 0; r < block.rows;) {
    const std::int64_t row = axis.cell(block.row + r), last = axis.begin(row + 1) - block.row;
    const std::int64_t end = last < block.rows ? last : block.rows;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
      V sum = set1(0.0F), top = set1(0.0F);
      for (std::int64_t n = r; n < end; ++n) {
        const V w = weight_of(load(scores + n * kKeyTile + c), sweep.softmax[block.row + n], factor);
        sum = add(sum, w);
        top = max(w, top);
      }
      store(sums + c, sum);
      store(tops + c, top);
    }
    add_to_cells(sweep, block.j0, from, to, sums, tops, row);
    r = end;
  }
}

// Puts a weight and its key into the sorted list; of equal weights the one that came before, the lower key, stays
// before.
inline void insert_top(float* weights, std::int64_t* keys, std::int64_t count, float w, std::int64_t key) {
  std::int64_t at = count - 1;
  for (; at > 0 && weights[at - 1] < w; --at) {
    weights[at] = weights[at - 1];
    keys[at] = keys[at - 1];
  }
  weights[at] = w;
  keys[at] = key;
}
inline void top_row(const LensSweep& sweep, const Block& block, std::int64_t i, std::int64_t from, std::int64_t to,
                    const float* w) {
  float* weights = sweep.top + (i - sweep.first_query) * sweep.count;
  std::int64_t* keys = sweep.keys + (i - sweep.first_query) * sweep.count;
  for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
    if (!any(less(set1(weights[sweep.count - 1]), load(w + c)))) continue;
    for (std::int64_t n = c < from ? from : c; n < c + kLanes && n < to; ++n)
      if (w[n] > weights[sweep.count - 1]) insert_top(weights, keys, sweep.count, w[n], block.j0 + n);
  }
}

inline void count_row(const LensSweep& sweep, std::int64_t from, std::int64_t to, const float* scores, const float* w) {
  constexpr std::int64_t kHalf = 126;  // the exponent field of [1/2, 1)
  for (std::int64_t c = from; c < to; ++c) {
    if (scores[c] == -kInfinity) continue;
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, w + c, sizeof(bits));
    const std::int64_t bin = kHalf - static_cast<std::int64_t>(bits >> 23 & 0xFF);
    ++sweep.counts[bin < 0 ? 0 : bin < sweep.bins ? bin : sweep.bins];
  }
}

// Weights of a block one row at a time, for all but cells.
inline void look_rows(const LensSweep& sweep, const Block& block, std::int64_t from, std::int64_t to, V factor,
                      const float* scores) {
  float w[kKeyTile];
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t i = block.row + r;
    const float* s = scores + r * kKeyTile;
    for (std::int64_t c = block.c0; c < block.c1; c += kLanes)
      store(w + c, weight_of(load(s + c), sweep.softmax[i], factor));
    if (sweep.into == LensSweep::Into::top) {
      top_row(sweep, block, i, from, to, w);
    } else if (sweep.into == LensSweep::Into::histogram) {
      count_row(sweep, from, to, s, w);
    } else {
      float* dst = sweep.weights + (i - sweep.first_query) * sweep.stride + block.j0 - sweep.first_key;
      __builtin_memcpy(dst + from, w + from, static_cast<std::size_t>(to - from) * sizeof(float));
    }
  }
}

// Rows of one head, which the problem has as a group of its own (G = 1).
template <class Math>
void lens_with(const AttentionProblem& p, const RowRange& range, const LensSweep& sweep, void* scratch) {
  Carver carver{static_cast<char*>(scratch)};
  [[maybe_unused]] const typename Math::Session session{};
  ForwardScratch<Math> s = carve_forward<Math>(p, range.end - range.begin, carver);
  fill_row_keys(p, range, s.keys);
  load_queries<Math>(p, range, s);
  const KeyRange seen = visible_range(p, s.keys, range.begin, range.end);
  const std::int64_t first = seen.lo > sweep.first_key ? seen.lo : sweep.first_key;
  const std::int64_t end = seen.hi < sweep.end_key ? seen.hi : sweep.end_key;
  const V factor = set1(exponent_factor(p));
  for (std::int64_t j = next_seen(p, range, first, end); j < end;
       j = next_seen(p, range, j / kKeyTile * kKeyTile + kKeyTile, end)) {
    const std::int64_t j0 = j / kKeyTile * kKeyTile;
    Block block{range.b, range.hk, range.begin, 0, j0, 0, 0, false};
    if (!next_block(p, s.keys, range.end, block)) continue;
    const TileOperands<Math> tile = tile_keys<Math>(p, {range.b, range.hk, j0}, s);
    do {
      const std::int64_t from = sweep.first_key - j0 > block.c0 ? sweep.first_key - j0 : block.c0;
      const std::int64_t valid = block.c0 + valid_columns(p, block);
      const std::int64_t to = sweep.end_key - j0 < valid ? sweep.end_key - j0 : valid;
      if (from >= to) continue;
      make_scores(p, block, tile, s, block.row - range.begin);
      if (sweep.into == LensSweep::Into::cells)
        pool_block(sweep, block, from, to, factor, s.scores);
      else
        look_rows(sweep, block, from, to, factor, s.scores);
    } while (next_block(p, s.keys, range.end, block));
  }
}
