// Attention forward: check, describe, cut into rows and splits, run.
#include "attend/attention.hpp"

#include <algorithm>
#include <optional>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/attention_plan.hpp"
#include "ops/dilated.hpp"
#include "ops/row_statistics.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"
#include "reference/attention.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMaxPartialBytes = 64 << 20;
constexpr std::int64_t kMaxPackedBytes = 16 << 20;

// Few rows and many keys (decoding): every split is an item of its own, and a second round merges. False when the
// problem is better cut by rows alone. The choice never shows in the result.
bool forward_by_splits(const AttentionProblem& p, const KernelTable& table, RowTiles tiles) {
  const std::int64_t splits = divide_up(p.N, kKeySplit), heads = p.B * p.Hk;
  if (splits < 2) return false;
  // Many query heads to a KV head: where splits alone keep the threads busy, one item takes all rows, so that a tile of
  // keys is packed once and the next one comes from memory meanwhile.
  const bool together = tiles.per_head() > 1 && tiles.rows <= RowTiles::kMostRows;
  if (together && heads * splits >= 2 * thread_count())
    tiles.rows_each = tiles.rows;
  else if (tiles.count() >= 2 * thread_count())
    return false;
  const std::int64_t stride = table.partial_floats(p, tiles.rows_each);
  if (tiles.count() * splits > kMaxPartialBytes / (stride * std::int64_t{sizeof(float)})) return false;
  const Buffer<float> partials(tiles.count() * splits * stride);
  const Scratch scratch(
      std::max(table.forward_scratch_bytes(p, tiles.rows_each), stride * std::int64_t{sizeof(float)}));
  const auto partial_of = [&](std::int64_t tile, std::int64_t split) {
    return partials.data() + (tile * splits + split) * stride;
  };
  parallel_for(tiles.count() * splits, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t tile = item / splits, split = item % splits;
    table.forward(p, tiles.range(tile % heads, tile / heads), split, split + 1, partial_of(tile, split),
                  scratch.of(worker));
  });
  constexpr std::int64_t kMergedRows = 16;
  const std::int64_t pieces = divide_up(tiles.rows_each, kMergedRows);
  parallel_for(tiles.count() * pieces, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t tile = item / pieces, first = item % pieces * kMergedRows;
    const RowRange range = tiles.range(tile % heads, tile / heads);
    table.merge_partials(p, range, first, std::min(range.end - range.begin, first + kMergedRows), partial_of(tile, 0),
                         stride, splits, scratch.of(worker));
  });
  return true;
}

// The items of the heads [first, first + count), those that see the most keys first: whoever works last then has little
// left. A causal mask alone needs no list, its last rows are the longest.
class ItemOrder {
 public:
  ItemOrder(const AttentionProblem& p, const RowTiles& tiles, std::int64_t first, std::int64_t count)
      : tiles_(tiles), first_(first), count_(count), ragged_(p.mask->segment_queries || p.mask->ragged_keys()) {
    if (!ragged_) return;
    const std::int64_t tokens_each = tiles.rows_each / p.G + 2;
    const Buffer<std::int64_t> lo(tokens_each), hi(tokens_each);
    items_.emplace(count * tiles.per_head());
    for (std::int64_t n = 0, at = 0; n < tiles.per_head(); ++n)
      for (std::int64_t head = first; head < first + count; ++head) {
        const RowRange range = tiles.range(head, n);
        const std::int64_t token = range.begin / p.G, tokens = (range.end - 1) / p.G + 1 - token;
        fill_intervals(*p.mask, range.b, token, tokens, lo.data(), hi.data());
        std::int64_t keys = 0;
        for (std::int64_t t = 0; t < tokens; ++t) keys += std::max<std::int64_t>(0, hi[t] - lo[t]);
        (*items_)[at++] = {keys, range};
      }
    Item* begin = items_->data();
    std::sort(begin, begin + count * tiles.per_head(), [](const Item& a, const Item& b) { return a.keys > b.keys; });
  }
  RowRange operator[](std::int64_t item) const {
    return ragged_ ? (*items_)[item].range : tiles_.range(first_ + item % count_, item / count_);
  }

 private:
  struct Item {
    std::int64_t keys;
    RowRange range;
  };
  const RowTiles& tiles_;
  std::int64_t first_, count_;
  bool ragged_;
  std::optional<Buffer<Item>> items_;
};

// About how many items read the same key, from what a few tokens of the first sequence see.
std::int64_t readers_of_a_key(const AttentionProblem& p, const RowTiles& tiles) {
  constexpr std::int64_t kTokens = 16;
  std::int64_t seen = 0;
  for (std::int64_t n = 0; n < kTokens; ++n) {
    std::int64_t lo = 0, hi = 0;
    fill_intervals(*p.mask, 0, (2 * n + 1) * p.M / (2 * kTokens), 1, &lo, &hi);
    seen += std::max<std::int64_t>(0, hi - lo);
  }
  const double pairs = static_cast<double>(seen) / kTokens * static_cast<double>(p.M * p.G);
  return static_cast<std::int64_t>(pairs / static_cast<double>(p.N * tiles.rows_each));
}

// Rows are the items. When many read the same keys, these are packed once before, a wave of heads at a time; where few
// do, as in short sequences and packed documents, they would only leave the cache in between.
void forward_by_rows(AttentionProblem& p, const KernelTable& table, const RowTiles& tiles) {
  const std::int64_t splits = divide_up(p.N, kKeySplit), heads = p.B * p.Hk;
  const Scratch scratch(table.forward_scratch_bytes(p, tiles.rows_each));
  const auto run = [&](std::int64_t first, std::int64_t count) {
    const ItemOrder order(p, tiles, first, count);
    parallel_for(count * tiles.per_head(), scratch.workers(), [&](std::int64_t item, int worker) {
      table.forward(p, order[item], 0, splits, nullptr, scratch.of(worker));
    });
  };
  PackedTiles packed{nullptr, table.tile_bytes(p), divide_up(p.N, kKeyTile), 0, StoredAs::packed, nullptr};
  // By division: repeated keys (stride 0) may be more than there is memory for.
  const bool fits = packed.tiles_per_head > 0 && packed.tiles_per_head <= kMaxPackedBytes / packed.tile_bytes;
  constexpr std::int64_t kWorthPacking = 3;
  if (p.packed || tiles.per_head() == 1 || !fits || readers_of_a_key(p, tiles) < kWorthPacking) return run(0, heads);
  const std::int64_t head_bytes = packed.tile_bytes * packed.tiles_per_head;
  const std::int64_t at_once = std::clamp<std::int64_t>(kMaxPackedBytes / head_bytes, 1, heads);
  const Scratch memory(head_bytes * at_once, 1);
  packed.data = static_cast<char*>(memory.of(0));
  for (std::int64_t first = 0; first < heads; first += at_once) {
    const std::int64_t count = std::min(at_once, heads - first);
    packed.first_head = first;
    parallel_for(count * packed.tiles_per_head, scratch.workers(), [&](std::int64_t item, int worker) {
      const std::int64_t head = first + item / packed.tiles_per_head, tile = item % packed.tiles_per_head;
      table.pack_tile(p, {head / p.Hk, head % p.Hk, tile * kKeyTile}, packed.tile(head / p.Hk, head % p.Hk, p.Hk, tile),
                      scratch.of(worker));
    });
    p.packed = &packed;
    run(first, count);
    p.packed = nullptr;
  }
}

void sweep_weights(AttentionProblem& p, const KernelTable& table, const RowTiles& tiles) {
  const Buffer<SoftmaxRow> rows(checked_product("rows", {p.B, p.H, p.M}));
  fill_softmax_rows(p, p.lse, true, nullptr, rows.data());
  p.softmax_rows = rows.data();
  const Scratch scratch(table.forward_scratch_bytes(p, tiles.rows_each));
  const std::int64_t heads = p.B * p.Hk;
  parallel_for(tiles.count(), scratch.workers(), [&](std::int64_t tile, int worker) {
    table.weights(p, tiles.range(tile % heads, tile / heads), scratch.of(worker));
  });
}

// The user's functions behind the plain one that kernels call.
class Observing {
 public:
  Observing(const RowSums& wanted, const AttentionProblem& p)
      : wanted_(wanted),
        sums_(checked_product("row sums", {p.B, p.H, p.M, wanted.sums.dim()})),
        observer_{this, wanted.sums.dim(), call, sums_.data()} {}

  const RowObserver* observer() const { return &observer_; }
  void finish() {
    guard_.rethrow();
    const auto& [B, H, M, count] = wanted_.sums.shape;
    for (std::int64_t b = 0, at = 0; b < B; ++b)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t i = 0; i < M; ++i)
          for (std::int64_t n = 0; n < count; ++n) store(wanted_.sums, b, h, i, n, static_cast<double>(sums_[at++]));
  }

 private:
  static void call(void* self, std::int64_t n, float* values, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                   std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    auto& observing = *static_cast<Observing*>(self);
    observing.guard_.run([&] { observing.wanted_.values(n, {values, stride, rows, cols, b, h, i, j}); });
  }

  const RowSums& wanted_;
  Buffer<float> sums_;
  RowObserver observer_;
  CallGuard guard_;
};

void run(const AttentionCall& call, AttentionProblem p, const AttentionExtras& extras) {
  const KernelTable& table = kernels();
  const bool lse_wanted = extras.lse || extras.weights;
  const Buffer<float> lse(lse_wanted ? checked_product("lse", {p.B, p.H, p.M}) : 0);
  if (lse_wanted) p.lse = lse.data();
  std::optional<Observing> observing;
  if (extras.row_sums) p.observer = observing.emplace(*extras.row_sums, p).observer();
  std::optional<StatisticsRows> statistics;
  if (extras.statistics) p.statistics = statistics.emplace(*extras.statistics, p).plan();
  const RowTiles tiles(p, table.block_rows, thread_count());
  if (!forward_by_splits(p, table, tiles)) forward_by_rows(p, table, tiles);
  p.statistics = nullptr;
  if (extras.weights) {
    const Operand weights = operand_of(*extras.weights);
    p.weights = &weights;
    sweep_weights(p, table, tiles);
  }
  call.rule.rethrow();
  if (observing) observing->finish();
  if (statistics) statistics->finish();
  if (extras.lse)
    for (std::int64_t b = 0, at = 0; b < p.B; ++b)
      for (std::int64_t h = 0; h < p.H; ++h)
        for (std::int64_t i = 0; i < p.M; ++i) store(*extras.lse, b, h, i, 0, static_cast<double>(lse[at++]));
}

}  // namespace

void run_attention(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras) {
  AttentionProblem p = call.problem();
  p.out = operand_of(out);
  run(call, p, extras);
}

void run_extras(const AttentionCall& call, const AttentionExtras& extras) {
  AttentionProblem p = call.problem();
  p.no_values = true;
  run(call, p, extras);
}

void attention(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras) {
  kernels();  // complains of a wrong ATTEND_ISA, whatever the dtype
  if (call.q.dtype == DType::f64) return reference::attention(call.q, call.k, call.v, out, call.options, extras);
  if (call.empty() || attention_by_classes(call, out, extras)) return;
  run_attention(call, out, extras);
}

void attention(View q, View k, View v, MutableView out, const AttentionOptions& options,
               const AttentionExtras& extras) {
  const AttentionCall call(q, k, v, options);
  check_outputs(call, out, extras);
  attention(call, out, extras);
}

namespace {

void check_visit(const AttentionCall& call, const View& lse, const WeightVisitor& visitor) {
  constexpr const char* kVisitOp = "visit_weights";
  const View& q = call.q;
  if (q.dtype == DType::f64) fail(kVisitOp, "visits weights of f32, bf16 and f16, got f64");
  check_lse(kVisitOp, lse, q.shape, q.dtype);
  if (!visitor) fail(kVisitOp, "the visitor is empty");
}

}  // namespace

void visit_weights(View q, View k, View lse, const WeightVisitor& visitor, const AttentionOptions& options) {
  const AttentionCall call(q, k, k, options);
  check_visit(call, lse, visitor);
  const KernelTable& table = kernels();
  if (call.empty()) return;
  AttentionProblem p = call.problem();
  const Buffer<float> lse_rows(checked_product("lse", {p.B, p.H, p.M}));
  load_lse(lse, lse_rows.data());
  p.lse = lse_rows.data();
  struct Visiting {
    const WeightVisitor& visitor;
    CallGuard guard;
  } visiting{visitor, {}};
  const WeightsVisitor plain{
      &visiting, [](void* self, const float* weights, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                    std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
        auto& v = *static_cast<Visiting*>(self);
        v.guard.run([&] { v.visitor({weights, stride, rows, cols, b, h, i, j}); });
      }};
  p.visitor = &plain;
  sweep_weights(p, table, RowTiles(p, table.block_rows, thread_count()));
  call.rule.rethrow();
  visiting.guard.rethrow();
}

AttentionResult attention(View q, View k, View v, const AttentionOptions& options, AttentionWants wants) {
  const AttentionCall call(q, k, v, options);
  const DType wide = accumulator_dtype(q.dtype);
  AttentionResult result;
  result.out = Tensor(q.dtype, {q.batch(), q.heads(), q.length(), v.dim()});
  AttentionExtras extras;
  if (wants.lse) extras.lse = result.lse = Tensor(wide, {q.batch(), q.heads(), q.length(), 1});
  if (wants.weights) extras.weights = result.weights = Tensor(wide, {q.batch(), q.heads(), q.length(), k.length()});
  attention(call, result.out, extras);
  return result;
}

}  // namespace attend
