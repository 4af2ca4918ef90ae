// Statistics of a row's weights, gathered where the weights are made: sums that stand beside the output in a row of the
// accumulator, lane by lane, so that they shrink and merge with it and are added up once, when the row is done.
//
// Sums over places are taken from a key near the row's largest weight on: a row that looks at one place then has small
// terms alone, and its variance keeps its digits at any length.

// The sums of a row in the accumulator, in vectors.
constexpr int kMasses =
    5;  // sink tokens, self, previous, local, recent: a number each, for few tiles have keys of them
enum StatisticLanes {
  kPowerLanes,  // weight * log2 of it, as weights are made: against the largest
  kPlaceLanes,  // weight * (j - origin)
  kSquareLanes,
  kMassLanes,
  kDuplicateLanes = kMassLanes + (kMasses + kLanes - 1) / kLanes,
  kInductionLanes,
  kSumLanes,   // the weights; filled where a part of the keys is done
  kMarkLanes,  // the key of the largest weight, an int64: moved, never multiplied
  kStatisticLanes,
};
static_assert(kLanes >= 2, "a mark takes two floats");
inline std::int64_t statistic_floats(const AttentionProblem& p) {
  return p.statistics ? kStatisticLanes * kLanes : 0;
}
// Those that shrink with the output: a multiple of a vector.
inline std::int64_t scaled_statistics(const AttentionProblem& p) {
  if (!p.statistics) return 0;
  return (p.statistics->tokens ? kSumLanes : kDuplicateLanes) * kLanes;
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
  return argmax & -std::int64_t{kLanes};
}

// The sums that change with what they count from: for powers that are `lower` by so much, and an origin `step` keys
// further left.
struct Moved {
  V power, place, square;
};
inline Moved moved(const float* statistics, V sum, float lower, float step) {
  const V by = set1(step), place = lanes_of(statistics, kPlaceLanes);
  const V once = fma(by, sum, place);
  return {fma(set1(lower), sum, lanes_of(statistics, kPowerLanes)), once,
          fma(by, add(place, once), lanes_of(statistics, kSquareLanes))};
}

// The largest score of the row is now `larger`, before `smaller`: it is that of the lowest key that has it. Called
// before the sums shrink.
inline void mark_maximum(const AttentionProblem& p, const Block& block, const float* scores, float smaller,
                         float larger, const float* sums, float* statistics) {
  std::uint64_t found = 0;
  for (std::int64_t c = block.c0; c < block.c1; c += kLanes) found |= bits(equal(load(scores + c), set1(larger))) << c;
  const std::int64_t key = block.j0 + (found ? __builtin_ctzll(found) : block.c0), before = argmax_of(statistics);
  set_argmax(statistics, key);
  if (smaller == -kInfinity) return;
  const Moved to = moved(statistics, load(sums), (smaller - larger) * exponent_factor(p),
                         static_cast<float>(origin_of(before) - origin_of(key)));
  store(statistics + kPowerLanes * kLanes, to.power);
  store(statistics + kPlaceLanes * kLanes, to.place);
  store(statistics + kSquareLanes * kLanes, to.square);
}

// A row of the block as the statistics see it.
struct WatchedRow {
  std::int64_t position;        // p(i), counted from the first key of the tile
  bool near;                    // the tile holds keys that count by their place
  const float *place, *square;  // of the tile's first key
};

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
  V local = zero, recent = zero;
  V duplicate = lanes_of(statistics, kDuplicateLanes), induction = lanes_of(statistics, kInductionLanes);
  for (std::int64_t c = block.c0; c < block.c1; c += kLanes) {
    const V column = add(set1(static_cast<float>(c)), iota());
    const V w = select(less(column, first), zero, load(weights + c));
    local = add(local, select(less(column, local_from), zero, select(less(column, local_to), w, zero)));
    recent = add(recent, select(less(column, recent_from), zero, select(less(column, recent_to), w, zero)));
    if (!plan.tokens) continue;
    const float *tokens = plan.tokens + block.b * plan.token_row + block.j0 + c, *before = tokens + plan.to_before;
    duplicate = add(duplicate, select(equal(column, own), zero, select(equal(load(tokens), query), w, zero)));
    induction = add_where(equal(load(before), query), induction, w);
  }
  masses[3] += reduce_add(local);
  masses[4] += reduce_add(recent);
  store(statistics + kDuplicateLanes * kLanes, duplicate);
  store(statistics + kInductionLanes * kLanes, induction);
}

// Looks on while the weights of a block are made.
template <bool kTokens>
struct Watched {
  const AttentionProblem& p;
  const Block& block;
  std::int64_t token, head;  // of the row that is next: counted on, because a division costs more than it should
  const std::int64_t j0, G, reach;
  const bool sinks;               // the tile has some
  const std::int64_t* positions;  // [M]
  const float *query_tokens, *tokens = nullptr, *before = nullptr;
  float weights[kKeyTile];  // of a row with near keys

  Watched(const AttentionProblem& problem, const Block& of)
      : p(problem),
        block(of),
        token(token_of(p, of.row)),
        head(of.row - token * p.G),
        j0(of.j0),
        G(p.G),
        reach(p.statistics->reach),
        sinks(of.j0 < p.statistics->sink_tokens),
        positions(p.statistics->positions + of.b * p.M),
        query_tokens(p.statistics->query_tokens + of.b * p.M) {
    if constexpr (kTokens) {
      tokens = p.statistics->tokens + block.b * p.statistics->token_row + block.j0;
      before = tokens + p.statistics->to_before;
    }
  }
  WatchedRow row(std::int64_t argmax) const {
    // Where nothing was seen yet, all weights are 0.
    const std::int64_t position = positions[token] - j0, from = kKeySplit + (argmax < 0 ? 0 : j0 - origin_of(argmax));
    const bool near = sinks || (position + reach >= 0 && position - reach < kKeyTile);
    return {position, near, kPlaces.place + from, kPlaces.square + from};
  }
  void next_row() {
    if (++head < G) return;
    head = 0;
    ++token;
  }
  void new_maximum(const float* scores, float smaller, float larger, const float* sums, float* statistics) const {
    mark_maximum(p, block, scores, smaller, larger, sums, statistics);
  }

  // One row: its sums over the tile, in registers.
  struct Row {
    Watched& watch;
    WatchedRow at;
    const float *tokens, *before;
    V query;  // whose keys are counted here; of a row with near keys they are counted there
    V power, place, square, duplicate, induction;

    Row(Watched& by, const float* from)
        : watch(by),
          at(by.row(argmax_of(from))),
          tokens(by.tokens),
          before(by.before),
          query(set1(kTokens && !at.near ? by.query_tokens[by.token] : __builtin_nanf(""))),
          power(lanes_of(from, kPowerLanes)),
          place(lanes_of(from, kPlaceLanes)),
          square(lanes_of(from, kSquareLanes)),
          duplicate(kTokens ? lanes_of(from, kDuplicateLanes) : set1(0.0F)),
          induction(kTokens ? lanes_of(from, kInductionLanes) : set1(0.0F)) {}
    // w are the weights of columns from c on, t their powers of two: -inf where a key is hidden.
    void see(std::int64_t c, V t, V w) {
      power = fma(w, max(t, set1(-200.0F)), power);  // 2^-200 is 0
      place = fma(w, load(at.place + c), place);
      square = fma(w, load(at.square + c), square);
      if constexpr (kTokens) {
        duplicate = add_where(equal(load(tokens + c), query), duplicate, w);
        induction = add_where(equal(load(before + c), query), induction, w);
      }
      if (at.near) store(watch.weights + c, w);
    }
    void finish(float* to) const {
      store(to + kPowerLanes * kLanes, power);
      store(to + kPlaceLanes * kLanes, place);
      store(to + kSquareLanes * kLanes, square);
      if constexpr (kTokens) {
        store(to + kDuplicateLanes * kLanes, duplicate);
        store(to + kInductionLanes * kLanes, induction);
      }
      if (at.near) watch_near(watch.p, watch.block, at, watch.token, watch.weights, to);
    }
  };
};

// The sums of the weights where a part of the keys is done, for the merge.
inline void keep_sums(const float* sums, float* statistics) {
  store(statistics + kSumLanes * kLanes, load(sums));
}

// total <- merge(total, part), for two sides that both saw something; a and b are what their weights are multiplied by.
// The other sums of the accumulator are merged as the output is.
inline void merge_statistics(float factor, float total_max, float part_max, float a, float b, float* total,
                             const float* part) {
  const bool later = part_max > total_max;  // of equal weights the lower key counts
  const float top = later ? part_max : total_max;
  const std::int64_t total_key = argmax_of(total), part_key = argmax_of(part), key = later ? part_key : total_key;
  const auto side = [&](const float* statistics, float max, std::int64_t argmax) {
    return moved(statistics, lanes_of(statistics, kSumLanes), (max - top) * factor,
                 static_cast<float>(origin_of(argmax) - origin_of(key)));
  };
  const Moved x = side(total, total_max, total_key), y = side(part, part_max, part_key);
  const auto put = [&](int lanes, V of_total, V of_part) {
    store(total + lanes * kLanes, fma(of_total, set1(a), mul(of_part, set1(b))));
  };
  put(kPowerLanes, x.power, y.power);
  put(kPlaceLanes, x.place, y.place);
  put(kSquareLanes, x.square, y.square);
  for (int lanes = kMassLanes; lanes <= kSumLanes; ++lanes) put(lanes, lanes_of(total, lanes), lanes_of(part, lanes));
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
      -share * static_cast<double>(kLn2) * total(kPowerLanes) - mass * static_cast<double>(__builtin_logf(factor)));
  const double place = total(kPlaceLanes) / whole, variance = total(kSquareLanes) / whole - place * place;
  const std::int64_t to_origin = plan.positions[b * p.M + i] - origin_of(argmax);
  put(RowStatistic::distance_mean, static_cast<double>(to_origin) - place);
  put(RowStatistic::distance_variance, variance < 0 ? 0 : variance);
  const float* masses = statistics + kMassLanes * kLanes;
  put(RowStatistic::sink_tokens, static_cast<double>(masses[0]) * share);
  put(RowStatistic::self, static_cast<double>(masses[1]) * share);
  put(RowStatistic::previous, static_cast<double>(masses[2]) * share);
  put(RowStatistic::local, static_cast<double>(masses[3]) * share);
  put(RowStatistic::recent, static_cast<double>(masses[4]) * share);
  put(RowStatistic::duplicate, total(kDuplicateLanes) * share);
  put(RowStatistic::induction, total(kInductionLanes) * share);
  put(RowStatistic::maximum, share);
  put(RowStatistic::argmax, static_cast<double>(argmax));
}
