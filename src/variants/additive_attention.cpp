// Additive attention: rows in blocks of 64 against tiles of 64 keys, the softmax running along.
#include "attend/additive_attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/rows.hpp"
#include "reference/additive_attention.hpp"
#include "variants/additive_tiles.hpp"

namespace attend {
namespace {

using namespace additive;

constexpr const char* kOp = "additive_attention";
constexpr const char* kBackwardOp = "additive_attention_backward";

// ---- Checks ----

void check_inputs(const char* op, const View& a, const View& b, const View& w, const View& v,
                  const AdditiveAttentionOptions& options) {
  check_fitting(op, {"a", a}, {"b", b}, {"v", v});
  check_readable(op, "w", w);
  check_dtype(op, "w", w.dtype, a.dtype);
  check_shape(op, "w", w.shape, {1, a.heads(), 1, a.dim()});
  if (a.dim() < 1 || v.dim() < 1)
    fail(op,
         "dim is " + std::to_string(a.dim()) + " and value dim " + std::to_string(v.dim()) + ", expected at least 1");
  if (a.heads() < 1 || b.heads() < 1 || a.heads() % b.heads() != 0)
    fail(op, "a has " + std::to_string(a.heads()) + " heads and b " + std::to_string(b.heads()) +
                 ", expected a whole number of query heads for each KV head");
  if (!std::isfinite(options.scale))
    fail(op, "scale is " + std::to_string(options.scale) + ", expected a finite number");
  checked_product("additive_attention: scores",
                  {a.batch(), a.heads(), a.length(), std::max<std::int64_t>(1, b.length())});
}

void check_written(const char* op, const char* what, const MutableView& x, DType dtype, const Shape& shape) {
  check_writable(op, what, x);
  check_dtype(op, what, x.dtype, dtype);
  check_shape(op, what, x.shape, shape);
}

// ---- Forward ----

// The scores become weights against the largest score so far; what was summed before is brought down to it.
void weigh(const Problem& p, const Block& block, Work& work) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = work.scores + r * kKeyTile;
    float largest = work.max[r];
    for (std::int64_t j = 0; j < kKeyTile; ++j)
      if (!(row[j] <= largest)) largest = row[j];
    if (largest == kHidden) continue;  // nothing to see so far: the scores are all -inf, and so the weights 0
    for (std::int64_t j = 0; j < kKeyTile; ++j) row[j] -= largest;
    work.delta[r] = work.max[r] - largest;
    work.max[r] = largest;
  }
  kernels().exp2(work.scores, work.scores, block.rows * kKeyTile);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    if (work.max[r] == kHidden) continue;
    const float* row = work.scores + r * kKeyTile;
    float lane[8] = {};
    for (std::int64_t j = 0; j < kKeyTile; j += 8)
      for (std::int64_t n = 0; n < 8; ++n) lane[n] += row[j + n];
    const float added = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    const float factor = std::exp2(work.delta[r]);
    work.sum[r] = work.sum[r] * factor + added;
    if (factor == 1.0F) continue;
    for (std::int64_t e = 0; e < p.E; ++e) work.out[r * p.E + e] *= factor;
  }
}

void forward_block(const Problem& p, const Keys& keys, const Block& block, const MutableView& out,
                   const std::optional<MutableView>& lse, Work work) {
  load_queries(p, block, work);
  std::fill(work.out, work.out + block.rows * p.E, 0.0F);
  std::fill(work.max, work.max + block.rows, kHidden);
  std::fill(work.sum, work.sum + block.rows, 0.0F);
  const TileRange range(block, work);
  for (std::int64_t tile = range.begin; tile < range.end; ++tile) {
    if (!make_scores(p, keys, block, tile, work)) continue;
    load_values(p, block, tile, work);
    weigh(p, block, work);
    weighted_sum({work.scores, block.rows, kKeyTile, kKeyTile}, {work.v, kKeyTile, p.E, p.E},
                 {work.out, block.rows, p.E, p.E}, work.v_finite, work.product);
  }
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const bool nothing = work.max[r] == kHidden;
    const float factor = nothing ? 0.0F : 1.0F / work.sum[r];
    float* row = work.out + r * p.E;
    for (std::int64_t e = 0; e < p.E; ++e) row[e] *= factor;
    store_floats(out, block.b, block.h, block.i + r, row);
    const double sum = static_cast<double>(work.max[r]) / kLog2e + std::log(static_cast<double>(work.sum[r]));
    const float logarithm = nothing ? kHidden : static_cast<float>(sum);
    if (lse) store_floats(*lse, block.b, block.h, block.i + r, &logarithm);
  }
}

// ---- Backward ----

// Rows are cut into chunks by the problem alone. A chunk owns its rows of da, and sums db, dv and dw for itself.
struct Chunks {
  explicit Chunks(const Problem& p) {
    constexpr std::int64_t kWanted = 16, kFewestRows = 256;
    const std::int64_t most = std::max<std::int64_t>(1, divide_up(p.M, kFewestRows));
    per_head = std::clamp<std::int64_t>(divide_up(kWanted, std::max<std::int64_t>(1, p.B * p.H)), 1, most);
    rows = divide_up(divide_up(p.M, per_head), kBlock) * kBlock;
  }
  std::int64_t per_head, rows;
};

// A chunk's sums. db and dw lack their factors: 4 w, and -2.
struct Partial {
  float *db, *dv;  // [tiles * kKeyTile][stride], [tiles * kKeyTile][E]
  double* dw;      // [stride]
};

// Where an LSE is too large to make weights from, the row's maximum and sum once more. True when a row needed it.
bool remake_softmax(const Problem& p, const Keys& keys, const Block& block, const TileRange& range, const View& lse,
                    float* max, float* sum, Work& work) {
  bool all = true;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    load_floats(lse, block.b, block.h, block.i + r, max + r, 1);
    all &= max[r] == kHidden || lse_suffices(max[r]);
  }
  if (all) return false;
  std::fill(work.out, work.out + block.rows * p.E, 0.0F);
  std::fill(work.max, work.max + block.rows, kHidden);
  std::fill(work.sum, work.sum + block.rows, 0.0F);
  for (std::int64_t tile = range.begin; tile < range.end; ++tile)
    if (make_scores(p, keys, block, tile, work)) weigh(p, block, work);
  std::copy_n(work.max, block.rows, max);
  std::copy_n(work.sum, block.rows, sum);
  return true;
}

// dout, delta = sum of dout * out, and what a weight is made of: 2^(score - max + sum), mostly the LSE in units of ln 2
// and 0. Rows that see nothing count as zeros.
bool load_outputs(const Problem& p, const Keys& keys, const Block& block, const TileRange& range, const View& dout,
                  const View& out, const View& lse, Work& work) {
  float max[kBlock], sum[kBlock];
  const bool remade = remake_softmax(p, keys, block, range, lse, max, sum, work);
  bool finite = true;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    load_floats(lse, block.b, block.h, block.i + r, work.max + r, 1);
    const bool suffices = work.max[r] == kHidden || lse_suffices(work.max[r]);
    work.max[r] = remade && !suffices ? max[r] : work.max[r] * static_cast<float>(kLog2e);
    work.sum[r] = remade && !suffices ? -std::log2(sum[r]) : 0.0F;
    float* dy = work.dout + r * p.E;
    if (work.max[r] == kHidden) {
      std::fill(dy, dy + p.E, 0.0F);
      work.delta[r] = 0;
      continue;
    }
    finite &= std::isfinite(load_floats(dout, block.b, block.h, block.i + r, dy, p.E));
    load_floats(out, block.b, block.h, block.i + r, work.out + r * p.E, p.E);
    const float* y = work.out + r * p.E;
    work.delta[r] = static_cast<float>(
        sum_terms(p.E, [&](std::int64_t e) { return static_cast<double>(dy[e]) * static_cast<double>(y[e]); }));
  }
  return finite;
}

// From scores: the weights in their place, and ds = scale * weight * (dp - delta).
void make_ds(const Problem& p, const Block& block, Work& work) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = work.scores + r * kKeyTile;
    for (std::int64_t j = 0; j < kKeyTile; ++j)
      row[j] = row[j] == kHidden ? kHidden : row[j] - work.max[r] + work.sum[r];
  }
  kernels().exp2(work.scores, work.scores, block.rows * kKeyTile);
  const auto scale = static_cast<float>(p.scale);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t at = r * kKeyTile;
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      const float weight = work.scores[at + j];
      work.ds[at + j] = weight == 0 ? 0 : scale * (weight * (work.dp[at + j] - work.delta[r]));
    }
  }
}

void backward_block(const Problem& p, const Keys& keys, const Block& block, const View& dout, const View& out,
                    const View& lse, const MutableView& da, const Partial& partial, Work work) {
  load_queries(p, block, work);
  const TileRange range(block, work);
  const bool dout_finite = load_outputs(p, keys, block, range, dout, out, lse, work);
  std::fill(work.dq, work.dq + block.rows * p.stride, 0.0F);
  const FloatMatrix weights{work.scores, block.rows, kKeyTile, kKeyTile}, dy{work.dout, block.rows, p.E, p.E};
  const FloatMatrix values{work.v, kKeyTile, p.E, p.E};
  for (std::int64_t tile = range.begin; tile < range.end; ++tile) {
    if (!make_scores(p, keys, block, tile, work)) continue;
    load_values(p, block, tile, work);
    block_product(dy, values.transposed(), {work.dp, block.rows, kKeyTile, kKeyTile}, false, work.product);
    make_ds(p, block, work);
    weighted_sum(weights.transposed(), dy, {partial.dv + tile * kKeyTile * p.E, kKeyTile, p.E, p.E}, dout_finite,
                 work.product);
    add_gradients(p, keys, block, tile, partial.db + tile * kKeyTile * p.stride, work);
    for (std::int64_t d = 0; d < p.D; ++d) partial.dw[d] += static_cast<double>(work.dw[d]);
  }
  const float* w = p.w.data() + block.h * p.stride;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* row = work.dq + r * p.stride;
    for (std::int64_t d = 0; d < p.D; ++d) row[d] *= 4 * w[d];
    store_floats(da, block.b, block.h, block.i + r, row);
  }
}

// The sums of all chunks, in the order of heads and chunks.
class Partials {
 public:
  Partials(const Problem& p, const Chunks& chunks)
      : p_(p),
        chunks_(chunks.per_head),
        keys_(p.tiles * kKeyTile),
        db_(checked_product("additive_attention: db", {p.B, p.H, chunks_, keys_, p.stride})),
        dv_(checked_product("additive_attention: dv", {p.B, p.H, chunks_, keys_, p.E})),
        dw_(checked_product("additive_attention: dw", {p.B, p.H, chunks_, p.stride})) {}

  // Zeroed, for the worker who will fill it.
  Partial take(std::int64_t item) const {
    const Partial partial = at(item);
    std::fill(partial.db, partial.db + keys_ * p_.stride, 0.0F);
    std::fill(partial.dv, partial.dv + keys_ * p_.E, 0.0F);
    std::fill(partial.dw, partial.dw + p_.stride, 0.0);
    return partial;
  }

  // `work.v` and `work.key_rows` hold a row of the sums.
  void store_key(std::int64_t b, std::int64_t hk, std::int64_t j, const AdditiveAttentionGradients& g,
                 const Work& work) const {
    const std::int64_t group = p_.H / p_.Hk;
    float *db = work.key_rows, *dv = work.v;
    std::fill(db, db + p_.D, 0.0F);
    std::fill(dv, dv + p_.E, 0.0F);
    for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h)
      for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
        const Partial partial = at((b * p_.H + h) * chunks_ + chunk);
        const float* w = p_.w.data() + h * p_.stride;
        for (std::int64_t d = 0; d < p_.D; ++d) db[d] += 4 * w[d] * partial.db[j * p_.stride + d];
        for (std::int64_t e = 0; e < p_.E; ++e) dv[e] += partial.dv[j * p_.E + e];
      }
    store_floats(g.db, b, hk, j, db);
    store_floats(g.dv, b, hk, j, dv);
  }

  void store_dw(const MutableView& dw) const {
    for (std::int64_t h = 0; h < p_.H; ++h)
      visit_f32_family(dw.dtype, [&](auto element) {
        const auto row = row_of<decltype(element)>(dw, h);
        for (std::int64_t d = 0; d < p_.D; ++d) {
          double sum = 0;
          for (std::int64_t b = 0; b < p_.B; ++b)
            for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) sum += at((b * p_.H + h) * chunks_ + chunk).dw[d];
          row.set(d, static_cast<float>(0 - 2 * sum));  // the sum of ds over a row is 0: of 1 - 2u the u is left
        }
      });
  }

 private:
  Partial at(std::int64_t item) const {
    return {db_.data() + item * keys_ * p_.stride, dv_.data() + item * keys_ * p_.E, dw_.data() + item * p_.stride};
  }

  const Problem& p_;
  std::int64_t chunks_, keys_;
  Buffer<float> db_, dv_;
  Buffer<double> dw_;
};

void run_backward(const Problem& p, const View& dout, const View& out, const View& lse,
                  const AdditiveAttentionGradients& g) {
  const Keys keys(p, true);
  const Chunks chunks(p);
  const Partials partials(p, chunks);
  const Scratch scratch(Work::bytes(p));
  parallel_for(p.B * p.H * chunks.per_head, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t head = item / chunks.per_head, chunk = item % chunks.per_head;
    const Partial partial = partials.take(item);
    const std::int64_t end = std::min(p.M, (chunk + 1) * chunks.rows);
    for (std::int64_t i = chunk * chunks.rows; i < end; i += kBlock)
      backward_block(p, keys, {head / p.H, head % p.H, i, std::min(kBlock, end - i)}, dout, out, lse, g.da, partial,
                     Work(p, scratch.of(worker)));
  });
  parallel_for(p.B * p.Hk * p.tiles, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t head = item / p.tiles, j0 = item % p.tiles * kKeyTile;
    const Work work(p, scratch.of(worker));
    for (std::int64_t j = j0; j < std::min(p.N, j0 + kKeyTile); ++j)
      partials.store_key(head / p.Hk, head % p.Hk, j, g, work);
  });
  partials.store_dw(g.dw);
}

}  // namespace

void additive_attention(View a, View b, View w, View v, MutableView out, const AdditiveAttentionOptions& options,
                        std::optional<MutableView> lse) {
  check_inputs(kOp, a, b, w, v, options);
  const MaskPlan mask(options.mask, a.batch(), a.heads(), a.length(), b.length());
  check_written(kOp, "out", out, a.dtype, {a.batch(), a.heads(), a.length(), v.dim()});
  if (lse) check_written(kOp, "lse", *lse, accumulator_dtype(a.dtype), {a.batch(), a.heads(), a.length(), 1});
  const std::initializer_list<Written> written = {{"out", out}, {"lse", lse}};
  check_all_apart(kOp, written, {{"a", a}, {"b", b}, {"w", w}, {"v", v}});
  check_apart_from_mask(kOp, options.mask, written);
  kernels();  // complains of a wrong ATTEND_ISA, whatever the dtype
  if (a.dtype == DType::f64) return reference::additive_attention(a, b, w, v, out, options, lse);
  if (a.batch() == 0 || a.length() == 0) return;

  const Problem p(a, b, w, v, mask, options.scale);
  const Keys keys(p, false);
  const Scratch scratch(Work::bytes(p));
  const std::int64_t blocks = divide_up(p.M, kBlock);
  parallel_for(p.B * p.H * blocks, scratch.workers(), [&](std::int64_t item, int worker) {
    // The last rows first: under a causal mask they are the longest.
    const std::int64_t head = item / blocks, i = (blocks - 1 - item % blocks) * kBlock;
    forward_block(p, keys, {head / p.H, head % p.H, i, std::min(kBlock, p.M - i)}, out, lse,
                  Work(p, scratch.of(worker)));
  });
}

void additive_attention_backward(View dout, View a, View b, View w, View v, View out, View lse,
                                 const AdditiveAttentionGradients& g, const AdditiveAttentionOptions& options) {
  check_inputs(kBackwardOp, a, b, w, v, options);
  const MaskPlan mask(options.mask, a.batch(), a.heads(), a.length(), b.length());
  check_results(kBackwardOp, dout, out, lse, {a.batch(), a.heads(), a.length(), v.dim()}, a.dtype);
  check_written(kBackwardOp, "da", g.da, a.dtype, a.shape);
  check_written(kBackwardOp, "db", g.db, a.dtype, b.shape);
  check_written(kBackwardOp, "dw", g.dw, g.dw.dtype, w.shape);
  check_written(kBackwardOp, "dv", g.dv, a.dtype, v.shape);
  if ((g.dw.dtype == DType::f64) != (a.dtype == DType::f64))
    fail(kBackwardOp,
         std::string("dw is ") + name(g.dw.dtype) + " beside " + name(a.dtype) + " inputs, expected f64 for f64 alone");
  const std::initializer_list<Written> written = {{"da", g.da}, {"db", g.db}, {"dw", g.dw}, {"dv", g.dv}};
  check_all_apart(kBackwardOp, written,
                  {{"a", a}, {"b", b}, {"w", w}, {"v", v}, {"out", out}, {"dout", dout}, {"lse", lse}});
  check_apart_from_mask(kBackwardOp, options.mask, written);
  kernels();
  if (a.dtype == DType::f64) return reference::additive_attention_backward(dout, a, b, w, v, g, options);
  run_backward(Problem(a, b, w, v, mask, options.scale), dout, out, lse, g);
}

}  // namespace attend
