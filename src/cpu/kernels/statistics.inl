// Statistics of a row's weights, gathered where the weights are made: sums that stand beside the output in a row of the
// accumulator, lane by lane, so that they shrink and merge with it and are added up once, when the row is done.
//
// Sums over places are taken from a key near the row's largest weight on: a row that looks at one place then has small
// terms alone, and its variance keeps its digits at any length.

// The sums of a row in the accumulator, a vector each.
enum StatisticLanes {
  kScoreLanes,  // weight * (score - max)
  kPlaceLanes,  // weight * (j - origin)
  kSquareLanes,
  kDuplicateLanes,
  kInductionLanes,
  kLocalLanes,
  kRecentLanes,
  kMassLanes,  // the first few: sink tokens, self, previous
  kScaledLanes,
  kSumLanes = kScaledLanes,  // the weights; filled where a part of the keys is done
  kMarkLanes,                // the key of the largest weight, an int64: moved, never multiplied
  kStatisticLanes,
};
static_assert(kLanes >= 4, "the masses are three, and a mark takes two floats");
inline std::int64_t statistic_floats(const AttentionProblem& p) {
  return p.statistics ? kStatisticLanes * kLanes : 0;
}

// j - origin and its square for every key of a split and every origin in it.
struct PlaceTables {
  alignas(64) float place[2 * kKeySplit], square[2 * kKeySplit];
};
constexpr PlaceTables place_tables() {
  PlaceTables tables{};
  for (std::int64_t n = 0; n < 2 * kKeySplit; ++n) {
    const std::int64_t x = n - kKeySplit;
    tables.place[n] = static_cast<float>(x);
    tables.square[n] = static_cast<float>(x * x);
  }
  return tables;
}
constexpr PlaceTables kPlaces = place_tables();

inline V lanes_of(const float* statistics, int lanes) {
  return load(statistics + lanes * kLanes);
}
inline std::int64_t argmax_of(const float* statistics) {
  std::int64_t key = 0;
  __builtin_memcpy(&key, statistics + kMarkLanes * kLanes, sizeof(key));
  return key;
}
inline void set_argmax(float* statistics, std::int64_t key) {
  __builtin_memcpy(statistics + kMarkLanes * kLanes, &key, sizeof(key));
}
// Places count from here: the first key of the vector that holds the largest weight.
inline std::int64_t origin_of(std::int64_t argmax) {
  return argmax / kLanes * kLanes;
}

// The sums that change with what they count from, for scores `higher` and an origin `step` keys further left.
struct Moved {
  V score, place, square;
};
inline Moved moved(const float* statistics, V sum, float higher, float step) {
  const V by = set1(step), place = lanes_of(statistics, kPlaceLanes);
  const V once = fma(by, sum, place);
  return {fma(set1(higher), sum, lanes_of(statistics, kScoreLanes)), once,
          fma(by, add(place, once), lanes_of(statistics, kSquareLanes))};
}

// The largest score of the row is now scores[...] = larger, before `smaller`: the lowest key that has it. Called before
// the sums shrink.
inline void mark_maximum(const Block& block, const float* scores, float smaller, float larger, const float* sums,
                         float* statistics) {
  std::int64_t c = block.c0;
  while (c + kLanes < block.c1 && !any(equal(load(scores + c), set1(larger)))) c += kLanes;
  while (c + 1 < block.c1 && scores[c] != larger) ++c;
  const std::int64_t key = block.j0 + c, before = argmax_of(statistics);
  if (smaller != -kInfinity) {
    const std::int64_t step = origin_of(before) - origin_of(key);
    const Moved to = moved(statistics, load(sums), smaller - larger, static_cast<float>(step));
    store(statistics + kScoreLanes * kLanes, to.score);
    store(statistics + kPlaceLanes * kLanes, to.place);
    store(statistics + kSquareLanes * kLanes, to.square);
  }
  set_argmax(statistics, key);
}

// A row of the block as the statistics see it.
struct WatchedRow {
  std::int64_t position;        // p(i), counted from the first key of the tile
  bool near;                    // the tile holds keys that count by their place
  float token;                  // whose keys are counted with the vectors; NaN: none
  const float *place, *square;  // of the tile's first key
};
inline WatchedRow watched_row(const AttentionProblem& p, const Block& block, std::int64_t token, std::int64_t argmax) {
  const StatisticsPlan& plan = *p.statistics;
  const std::int64_t index = block.b * p.M + token, position = plan.positions[index] - block.j0;
  // Where nothing was seen yet, all weights are 0.
  const std::int64_t from = argmax < 0 ? 0 : block.j0 - origin_of(argmax);
  const bool near = (position + plan.reach >= 0 && position - plan.reach < kKeyTile) || block.j0 < plan.sink_tokens;
  return {position, near, near || !plan.tokens ? __builtin_nanf("") : plan.query_tokens[index],
          kPlaces.place + kKeySplit + from, kPlaces.square + kKeySplit + from};
}

// What the keys near the query, and the first ones, get of a row's weights; the duplicates among them, which exclude
// the query's own place.
inline void watch_near(const AttentionProblem& p, const Block& block, const WatchedRow& row, std::int64_t token,
                       const float* weights, float* statistics) {
  const StatisticsPlan& plan = *p.statistics;
  const std::int64_t sinks = plan.sink_tokens - block.j0;  // columns before it are sinks
  const auto at = [&](std::int64_t c) {
    const bool counts = c >= block.c0 && c < block.c1 && !(plan.sinks_apart && c < sinks);
    return counts ? weights[c] : 0.0F;
  };
  float* masses = statistics + kMassLanes * kLanes;
  for (std::int64_t c = block.c0; c < block.c1 && c < sinks; ++c) masses[0] += weights[c];
  masses[1] += at(row.position);
  masses[2] += at(row.position - 1);
  const auto bounded = [](std::int64_t x) {  // as a float it stays exact, and off the tile
    return static_cast<float>(x < -2 * kKeyTile ? -2 * kKeyTile : x > 2 * kKeyTile ? 2 * kKeyTile : x);
  };
  const V zero = set1(0.0F), own = set1(bounded(row.position));
  const V local_from = set1(bounded(row.position - plan.local_width)),
          local_to = set1(bounded(row.position + plan.local_width + 1));
  const V recent_from = set1(bounded(row.position - plan.recent_width)),
          recent_to = set1(bounded(row.position + plan.recent_width + 1));
  const V first = set1(plan.sinks_apart ? bounded(sinks) : 0.0F);
  const V query = set1(plan.tokens ? plan.query_tokens[block.b * p.M + token] : __builtin_nanf(""));
  V local = lanes_of(statistics, kLocalLanes), recent = lanes_of(statistics, kRecentLanes);
  V duplicate = lanes_of(statistics, kDuplicateLanes), induction = lanes_of(statistics, kInductionLanes);
  for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
    const V column = add(set1(static_cast<float>(c)), iota());
    const V w = select(less(column, first), zero, load(weights + c));
    local = add(local, select(less(column, local_from), zero, select(less(column, local_to), w, zero)));
    recent = add(recent, select(less(column, recent_from), zero, select(less(column, recent_to), w, zero)));
    if (!plan.tokens) continue;
    const float *tokens = plan.tokens + block.b * plan.token_row + block.j0 + c, *before = tokens + plan.to_before;
    duplicate = add(duplicate, select(equal(column, own), zero, select(equal(load(tokens), query), w, zero)));
    induction = add(induction, select(equal(load(before), query), w, zero));
  }
  store(statistics + kLocalLanes * kLanes, local);
  store(statistics + kRecentLanes * kLanes, recent);
  store(statistics + kDuplicateLanes * kLanes, duplicate);
  store(statistics + kInductionLanes * kLanes, induction);
}

// Looks on while the weights of a block are made.
template <bool kTokens>
struct Watched {
  const AttentionProblem& p;
  const Block& block;
  std::int64_t token, head;  // of the row that is next: counted on, because a division costs more than it should
  const float *tokens = nullptr, *before = nullptr;
  float weights[kKeyTile];  // of a row with near keys

  Watched(const AttentionProblem& problem, const Block& of, std::int64_t)
      : p(problem), block(of), token(token_of(p, of.row)), head(of.row - token * p.G) {
    if constexpr (kTokens) {
      tokens = p.statistics->tokens + block.b * p.statistics->token_row + block.j0;
      before = tokens + p.statistics->to_before;
    }
  }
  void next_row() {
    if (++head < p.G) return;
    head = 0;
    ++token;
  }
  void new_maximum(const float* scores, float smaller, float larger, const float* sums, float* statistics) const {
    mark_maximum(block, scores, smaller, larger, sums, statistics);
  }

  // One row: its sums over the tile, in registers.
  struct Row {
    Watched& watch;
    float* statistics;
    WatchedRow at;
    V score, place, square, duplicate, induction;

    Row(Watched& by, float* to)
        : watch(by),
          statistics(to),
          at(watched_row(by.p, by.block, by.token, argmax_of(to))),
          score(lanes_of(to, kScoreLanes)),
          place(lanes_of(to, kPlaceLanes)),
          square(lanes_of(to, kSquareLanes)),
          duplicate(lanes_of(to, kDuplicateLanes)),
          induction(lanes_of(to, kInductionLanes)) {}
    // w are the weights of columns from c on, `above` their scores less the largest: -inf where w is 0.
    void see(std::int64_t c, V above, V w) {
      score = fma(w, max(above, set1(-1e30F)), score);
      place = fma(w, load(at.place + c), place);
      square = fma(w, load(at.square + c), square);
      if constexpr (kTokens) {
        const V query = set1(at.token), zero = set1(0.0F);
        duplicate = add(duplicate, select(equal(load(watch.tokens + c), query), w, zero));
        induction = add(induction, select(equal(load(watch.before + c), query), w, zero));
      }
      if (at.near) store(watch.weights + c, w);
    }
    void finish() {
      store(statistics + kScoreLanes * kLanes, score);
      store(statistics + kPlaceLanes * kLanes, place);
      store(statistics + kSquareLanes * kLanes, square);
      if constexpr (kTokens) {
        store(statistics + kDuplicateLanes * kLanes, duplicate);
        store(statistics + kInductionLanes * kLanes, induction);
      }
      if (at.near) watch_near(watch.p, watch.block, at, watch.token, watch.weights, statistics);
    }
  };
};

// The sums of the weights where a part of the keys is done, for the merge.
inline void keep_sums(const float* sums, float* statistics) {
  store(statistics + kSumLanes * kLanes, load(sums));
}

// total <- merge(total, part), for two sides that both saw something; a and b are what their weights are multiplied by.
// The other sums of the accumulator are merged as the output is.
inline void merge_statistics(float total_max, float part_max, float a, float b, float* total, const float* part) {
  const bool later = part_max > total_max;  // of equal weights the lower key counts
  const float top = later ? part_max : total_max;
  const std::int64_t total_key = argmax_of(total), part_key = argmax_of(part), key = later ? part_key : total_key;
  const auto side = [&](const float* statistics, float max, std::int64_t argmax) {
    return moved(statistics, lanes_of(statistics, kSumLanes), max - top,
                 static_cast<float>(origin_of(argmax) - origin_of(key)));
  };
  const Moved x = side(total, total_max, total_key), y = side(part, part_max, part_key);
  const auto put = [&](int lanes, V of_total, V of_part) {
    store(total + lanes * kLanes, fma(of_total, set1(a), mul(of_part, set1(b))));
  };
  put(kScoreLanes, x.score, y.score);
  put(kPlaceLanes, x.place, y.place);
  put(kSquareLanes, x.square, y.square);
  for (int lanes = kDuplicateLanes; lanes <= kSumLanes; ++lanes)
    put(lanes, lanes_of(total, lanes), lanes_of(part, lanes));
  set_argmax(total, key);
}

// The statistics of one row from its sums. `sum` is that of the weights exp(score - max) over the keys, `mass` the
// share of it in the row, a sink included, and `factor` = mass / sum makes a weight of the row of each of them.
inline void finish_statistics(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, float sum,
                              float factor, const float* statistics) {
  const StatisticsPlan& plan = *p.statistics;
  float* to = plan.rows + ((b * p.H + h) * p.M + i) * kRowStatistics;
  clear(to, kRowStatistics);
  const auto put = [&](RowStatistic what, double value) {
    to[static_cast<std::int64_t>(what)] = static_cast<float>(value);
  };
  if (sum == 0.0F) return put(RowStatistic::argmax, -1);
  const auto total = [&](int lanes) { return static_cast<double>(reduce_add(lanes_of(statistics, lanes))); };
  const double share = static_cast<double>(factor), whole = static_cast<double>(sum), mass = whole * share;
  const std::int64_t argmax = argmax_of(statistics);
  put(RowStatistic::mass, p.sinks ? mass : 1);
  put(RowStatistic::entropy,
      -share * in_nats(p, 1.0F) * total(kScoreLanes) - mass * static_cast<double>(__builtin_logf(factor)));
  const double place = total(kPlaceLanes) / whole, variance = total(kSquareLanes) / whole - place * place;
  const std::int64_t to_origin = plan.positions[b * p.M + i] - origin_of(argmax);
  put(RowStatistic::distance_mean, static_cast<double>(to_origin) - place);
  put(RowStatistic::distance_variance, variance < 0 ? 0 : variance);
  const float* masses = statistics + kMassLanes * kLanes;
  put(RowStatistic::sink_tokens, static_cast<double>(masses[0]) * share);
  put(RowStatistic::self, static_cast<double>(masses[1]) * share);
  put(RowStatistic::previous, static_cast<double>(masses[2]) * share);
  put(RowStatistic::local, total(kLocalLanes) * share);
  put(RowStatistic::recent, total(kRecentLanes) * share);
  put(RowStatistic::duplicate, total(kDuplicateLanes) * share);
  put(RowStatistic::induction, total(kInductionLanes) * share);
  put(RowStatistic::maximum, share);
  put(RowStatistic::argmax, static_cast<double>(argmax));
}
