// The lens: questions about the weights of a call, each answered by a sweep over the heads it is about.
#include "attend/lens.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "lens/state.hpp"
#include "ops/lens_area.hpp"
#include "ops/row_statistics.hpp"
#include "ops/scratch.hpp"
#include "reference/attention.hpp"
#include "reference/lens.hpp"

namespace attend {

Lens::State::State(const View& q, const View& k, const AttentionOptions& given, const LensOptions& with)
    : options(given), lens(with) {
  own.emplace(q, k, k, options);
  check_lens_options();
}

Lens::State::State(const View& q, const PagedKvCache& keys, std::span<const std::int64_t> sequences,
                   const AttentionOptions& given, const LensOptions& with)
    : options(given), lens(with), cache(&keys) {
  cached.emplace(q, keys, sequences, options);
  if (lens.v) fail(kLensOp, "values are given beside a cache, which has its own");
  check_lens_options();
}

void Lens::State::check_lens_options() const {
  const View &q = call().q, &k = call().k;
  if (lens.lse) check_lse(kLensOp, *lens.lse, q.shape, q.dtype);
  if (lens.v) check_fitting(kLensOp, {"q", q}, {"k", k}, {"v", *lens.v});
}

std::size_t Lens::State::index_of(LensHead head) const {
  return static_cast<std::size_t>(head.batch * call().q.heads() + head.head);
}

void Lens::State::check_head(LensHead head) const {
  check_lens_head(kLensOp, head, call().q);
}

LensArea Lens::State::checked(const LensArea& area) const {
  return checked_area(kLensOp, area, M(), N());
}

void Lens::State::make_room_for_lse() const {
  if (!known.empty()) return;
  const View& q = call().q;
  lse = Tensor(accumulator_dtype(q.dtype), {q.batch(), q.heads(), q.length(), 1});
  known.assign(static_cast<std::size_t>(checked_product("heads", {q.batch(), q.heads()})), 0);
}

View Lens::State::whole_lse() const {
  if (lens.lse) return *lens.lse;
  const View& q = call().q;
  make_room_for_lse();
  if (std::ranges::all_of(known, [](char x) { return x != 0; })) return lse;
  AttentionExtras extras;
  extras.lse = lse.view();
  if (in_double()) {
    Tensor out(DType::f64, {q.batch(), q.heads(), q.length(), call().k.dim()});
    reference::attention(q, call().k, call().k, out, options, extras);
  } else if (!call().empty()) {
    run_extras(call(), extras);
  }
  std::ranges::fill(known, 1);
  return lse;
}

View Lens::State::lse_of(LensHead head) const {
  if (lens.lse) return *lens.lse;
  if (in_double()) return whole_lse();
  make_room_for_lse();
  if (!known[index_of(head)]) HeadSweep(call(), head.batch, head.head).make_lse(lse.data<float>());
  known[index_of(head)] = 1;
  return lse;
}

std::unique_ptr<HeadSweep> Lens::State::sweep_of(LensHead head) const {
  auto sweep = std::make_unique<HeadSweep>(call(), head.batch, head.head);
  sweep->take_lse(lse_of(head));
  return sweep;
}

void Lens::State::for_rows(
    LensHead head, const LensArea& area,
    const std::function<void(std::int64_t, std::span<const double>, std::span<const char>)>& f) const {
  const auto first = static_cast<std::size_t>(area.first_key), count = static_cast<std::size_t>(area.keys);
  reference::for_weight_rows(call().q, call().k, options, head.batch, head.head, area.first_query, area.queries,
                             [&](std::int64_t i, auto weights, auto visible) {
                               f(i, weights.subspan(first, count), visible.subspan(first, count));
                             });
}

Lens::Lens(View q, View k, const AttentionOptions& options, const LensOptions& lens)
    : state_("Lens", std::make_unique<State>(q, k, options, lens)) {}
Lens::Lens(View q, const PagedKvCache& cache, std::span<const std::int64_t> sequences, const AttentionOptions& options,
           const LensOptions& lens)
    : state_("Lens", std::make_unique<State>(q, cache, sequences, options, lens)) {}
Lens::~Lens() = default;
Lens::Lens(Lens&&) noexcept = default;
Lens& Lens::operator=(Lens&&) noexcept = default;

std::int64_t Lens::batches() const {
  return state_->call().q.batch();
}
std::int64_t Lens::heads() const {
  return state_->call().q.heads();
}
std::int64_t Lens::queries() const {
  return state_->M();
}
std::int64_t Lens::keys() const {
  return state_->N();
}
View Lens::lse() const {
  return state_->whole_lse();
}

Tensor Lens::statistics(const RowStatisticsOptions& options) const {
  const AttentionCall& call = state_->call();
  const View& q = call.q;
  Tensor rows(accumulator_dtype(q.dtype), {q.batch(), q.heads(), q.length(), kRowStatistics});
  AttentionExtras extras;
  extras.statistics = RowStatistics{rows, options};
  check_statistics(kLensOp, q, call.k, *extras.statistics);
  if (state_->in_double()) {
    Tensor out(DType::f64, {q.batch(), q.heads(), q.length(), call.k.dim()});
    reference::attention(q, call.k, call.k, out, state_->options, extras);
  } else if (!call.empty()) {
    run_extras(call, extras);
  }
  return rows;
}

namespace {

constexpr std::int64_t kKeysEach = 16 << 10;  // of an item where queries are few: whole tiles

// Runs `sweep` over the area in items of rows, and of keys where `by_keys`. prepare(sweep, worker) may change it.
struct AreaSweep {
  static constexpr std::int64_t kRows = 96;  // of an item

  AreaSweep(const HeadSweep& sweep, const LensArea& over)
      : head(sweep), area(over), scratch(sweep.scratch_bytes(std::min(kRows, over.queries))) {}

  template <class Prepare>
  void run(const LensSweep& sweep, bool by_keys, const Prepare& prepare) const {
    const std::int64_t rows = std::min(kRows, area.queries), pieces = divide_up(area.queries, rows);
    const std::int64_t from = area.first_key / kKeyTile * kKeyTile, end = area.first_key + area.keys;
    const bool few = by_keys && pieces < 2 * threads();
    const std::int64_t keys = few ? kKeysEach : end - from, columns = divide_up(end - from, keys);
    parallel_for(pieces * columns, scratch.workers(), [&](std::int64_t item, int worker) {
      const std::int64_t begin = area.first_query + item / columns * rows, column = item % columns;
      LensSweep part = sweep;
      part.first_key = std::max(area.first_key, from + column * keys);
      part.end_key = std::min(end, from + (column + 1) * keys);
      prepare(part, worker);
      head.run(part, begin, std::min(area.first_query + area.queries, begin + rows), scratch.of(worker));
    });
  }

  const HeadSweep& head;
  const LensArea& area;
  Scratch scratch;
};

}  // namespace

Tensor Lens::zoom(LensHead head, const LensArea& wanted) const {
  state_->check_head(head);
  const LensArea area = state_->checked(wanted);
  Tensor weights(accumulator_dtype(state_->call().q.dtype), {1, 1, area.queries, area.keys});
  if (area.queries == 0 || area.keys == 0) return weights;
  if (state_->in_double()) {
    state_->for_rows(head, area, [&](std::int64_t i, auto row, auto) {
      std::ranges::copy(row, weights.data<double>() + (i - area.first_query) * area.keys);
    });
    return weights;
  }
  const auto sweep = state_->sweep_of(head);
  LensSweep into{};
  into.into = LensSweep::Into::weights;
  into.first_query = area.first_query;
  into.stride = area.keys;
  AreaSweep(*sweep, area).run(into, true, [&](LensSweep& part, int) {
    part.weights = weights.data<float>() + part.first_key - area.first_key;
  });
  state_->call().rule.rethrow();
  return weights;
}

Tensor Lens::row(LensHead head, std::int64_t query) const {
  return zoom(head, {query, 1, 0, kToTheEnd});
}
Tensor Lens::column(LensHead head, std::int64_t key) const {
  return zoom(head, {0, kToTheEnd, key, 1});
}

TopKeys Lens::top_keys(LensHead head, std::int64_t count, const LensArea& wanted) const {
  state_->check_head(head);
  const LensArea area = state_->checked(wanted);
  check_at_least(kLensOp, "count", count, 1);
  const std::int64_t size = checked_product("top keys", {area.queries, count});
  TopKeys top{area.first_query, area.queries, count, {}, Tensor(DType::f32, {1, 1, area.queries, count})};
  top.keys.assign(static_cast<std::size_t>(size), -1);
  if (area.queries == 0 || area.keys == 0) return top;
  if (state_->in_double()) {
    std::vector<double> largest(static_cast<std::size_t>(count));
    state_->for_rows(head, area, [&](std::int64_t i, auto row, auto) {
      const std::int64_t at = (i - area.first_query) * count;
      reference::top_row(row, area.first_key, count, top.keys.data() + at, largest.data());
      std::ranges::transform(largest, top.weights.data<float>() + at, [](double x) { return static_cast<float>(x); });
    });
    return top;
  }
  const auto sweep = state_->sweep_of(head);
  LensSweep into{};
  into.into = LensSweep::Into::top;
  into.first_query = area.first_query;
  into.count = count;
  into.keys = top.keys.data();
  into.top = top.weights.data<float>();
  AreaSweep(*sweep, area).run(into, false, [](LensSweep&, int) {});
  state_->call().rule.rethrow();
  return top;
}

WeightHistogram Lens::histogram(LensHead head, std::int64_t bins, const LensArea& wanted) const {
  constexpr std::int64_t kMostBins = 126;  // the smallest exponent of a normal number
  state_->check_head(head);
  const LensArea area = state_->checked(wanted);
  if (bins < 1 || bins > kMostBins)
    fail(kLensOp, "bins is " + std::to_string(bins) + ", expected 1 to " + std::to_string(kMostBins));
  std::vector<std::int64_t> counts(static_cast<std::size_t>(bins + 1), 0);
  if (area.queries > 0 && area.keys > 0) {
    if (state_->in_double()) {
      state_->for_rows(head, area, [&](std::int64_t, auto row, auto visible) {
        reference::count_row(row, visible, bins, counts.data());
      });
    } else {
      const auto sweep = state_->sweep_of(head);
      const AreaSweep over(*sweep, area);
      std::vector<std::int64_t> all(counts.size() * static_cast<std::size_t>(over.scratch.workers()), 0);
      LensSweep into{};
      into.into = LensSweep::Into::histogram;
      into.bins = bins;
      over.run(into, true, [&](LensSweep& part, int worker) { part.counts = all.data() + worker * (bins + 1); });
      for (std::size_t n = 0; n < all.size(); ++n) counts[n % counts.size()] += all[n];
      state_->call().rule.rethrow();
    }
  }
  const std::int64_t below = counts.back();
  counts.pop_back();
  return {std::move(counts), below};
}

}  // namespace attend
