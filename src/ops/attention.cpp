// Attention forward: check, describe, cut into rows and splits, run.
#include "attend/attention.hpp"

#include <algorithm>
#include <vector>

#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/attention_plan.hpp"
#include "ops/scratch.hpp"
#include "reference/attention.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMaxPartialBytes = 32 << 20;

// Few rows and many keys (decoding): every split is an item of its own, and a second round merges. False when the
// problem is better cut by rows alone. The choice never shows in the result.
bool forward_by_splits(const AttentionCall& call, const KernelTable& table, const RowTiles& tiles) {
  const AttentionProblem& p = call.problem;
  const std::int64_t splits = (p.N + kKeySplit - 1) / kKeySplit;
  if (splits < 2 || tiles.count() >= 2 * thread_count()) return false;
  const std::int64_t stride = table.partial_floats(p, tiles.rows_each);
  if (tiles.count() * splits > kMaxPartialBytes / (stride * std::int64_t{sizeof(float)})) return false;
  std::vector<float> partials(static_cast<std::size_t>(tiles.count() * splits * stride));
  const Scratch scratch(
      std::max(table.forward_scratch_bytes(p, tiles.rows_each), stride * std::int64_t{sizeof(float)}));
  const auto partial_of = [&](std::int64_t tile, std::int64_t split) {
    return partials.data() + (tile * splits + split) * stride;
  };
  parallel_for(tiles.count() * splits, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t tile = item / splits, split = item % splits;
    table.forward(p, tiles[tile], split, split + 1, partial_of(tile, split), scratch.of(worker));
  });
  parallel_for(tiles.count(), scratch.workers(), [&](std::int64_t tile, int worker) {
    table.merge_partials(p, tiles[tile], partial_of(tile, 0), stride, splits, scratch.of(worker));
  });
  return true;
}

void forward_by_rows(const AttentionCall& call, const KernelTable& table, const RowTiles& tiles) {
  const AttentionProblem& p = call.problem;
  const std::int64_t splits = (p.N + kKeySplit - 1) / kKeySplit;
  const Scratch scratch(table.forward_scratch_bytes(p, tiles.rows_each));
  parallel_for(tiles.count(), scratch.workers(), [&](std::int64_t tile, int worker) {
    table.forward(p, tiles[tile], 0, splits, nullptr, scratch.of(worker));
  });
}

void write_weights(const AttentionCall& call, const KernelTable& table, const RowTiles& tiles) {
  const Scratch scratch(table.forward_scratch_bytes(call.problem, tiles.rows_each));
  parallel_for(tiles.count(), scratch.workers(),
               [&](std::int64_t tile, int worker) { table.weights(call.problem, tiles[tile], scratch.of(worker)); });
}

}  // namespace

void attention(View q, View k, View v, MutableView out, const AttentionOptions& options,
               const AttentionExtras& extras) {
  check_attention(q, k, v, options);
  check_attention_outputs(q, k, v, out, extras);
  const KernelTable& table = kernels();
  if (q.dtype == DType::f64) return reference::attention(q, k, v, out, options, extras);
  if (q.batch() == 0 || q.length() == 0) return;

  AttentionCall call(q, k, v, options);
  AttentionProblem& p = call.problem;
  p.out = operand_of(out);
  std::vector<float> lse;
  if (extras.lse || extras.weights) {
    lse.resize(static_cast<std::size_t>(checked_product("lse", {p.B, p.H, p.M})));
    p.lse = lse.data();
  }
  const RowTiles tiles(p, thread_count());
  if (!forward_by_splits(call, table, tiles)) forward_by_rows(call, table, tiles);
  if (extras.weights) {
    const Operand weights = operand_of(*extras.weights);
    p.weights = &weights;
    write_weights(call, table, tiles);
  }
  call.rule.rethrow();
  if (extras.lse)
    for (std::int64_t b = 0, at = 0; b < p.B; ++b)
      for (std::int64_t h = 0; h < p.H; ++h)
        for (std::int64_t i = 0; i < p.M; ++i)
          store(*extras.lse, b, h, i, 0, static_cast<double>(lse[static_cast<std::size_t>(at++)]));
}

AttentionResult attention(View q, View k, View v, const AttentionOptions& options, AttentionWants wants) {
  check_attention(q, k, v, options);
  const DType wide = accumulator_dtype(q.dtype);
  AttentionResult result;
  result.out = Tensor(q.dtype, {q.batch(), q.heads(), q.length(), v.dim()});
  AttentionExtras extras;
  if (wants.lse) extras.lse = result.lse = Tensor(wide, {q.batch(), q.heads(), q.length(), 1});
  if (wants.weights) extras.weights = result.weights = Tensor(wide, {q.batch(), q.heads(), q.length(), k.length()});
  attention(q, k, v, result.out, options, extras);
  return result;
}

}  // namespace attend
