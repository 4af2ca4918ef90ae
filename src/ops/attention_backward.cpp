// Attention backward: tiles of keys run side by side; dq accumulates in key-tile order.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <new>

#include "attend/attention.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/attention_call.hpp"
#include "ops/dilated.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "ops/softmax_rows.hpp"
#include "reference/attention.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMaxSumsBytes = 32 << 20;
constexpr std::int64_t kRowsPerPiece = 192;  // rows that wait together for the tile before
static_assert(kChainRows % kRowsPerPiece == 0);

// For each piece of rows the tile that comes next: key tile j may add to dq when the piece's tiles before it have. The
// order of addition is then fixed, whichever thread does it.
class TileOrder {
 public:
  explicit TileOrder(std::int64_t pieces) : next_(pieces) {}
  void open(std::int64_t piece, std::int64_t first) { new (&next_[piece]) std::atomic<std::int64_t>(first); }
  void wait(std::int64_t piece, std::int64_t tile) const {
    for (int spin = 0; next_[piece].load(std::memory_order_acquire) != tile; ++spin) spin_wait(spin);
  }
  void pass(std::int64_t piece, std::int64_t next) { next_[piece].store(next, std::memory_order_release); }

 private:
  Buffer<std::atomic<std::int64_t>> next_;
};

// Which tiles of keys each piece of rows looks into: from first to last where the mask is an interval, which is the
// same for all heads; where it has holes, a bit for each tile, so that nobody visits a tile in vain.
class PieceTiles {
 public:
  PieceTiles(const AttentionProblem& p, std::int64_t pieces)
      : p_(p),
        pieces_(pieces),
        heads_(p.mask->differs_by_head() ? p.Hk : 1),
        words_(p.mask->has_holes() ? divide_up(divide_up(p.N, kKeyTile), 64) : 0),
        spans_(p.B * heads_ * pieces),
        bits_(checked_product("tiles of a mask", {p.B, heads_, pieces, words_})) {
    parallel_for(p.B * heads_ * pieces, [&](std::int64_t row, int) {
      const std::int64_t head = row / pieces * (p.Hk / heads_);
      if (words_ > 0)
        fill_bits(row, head);
      else
        fill_span(row, head);
    });
  }

  // Past the last tile where there is none.
  std::int64_t first(std::int64_t head, std::int64_t piece) const { return spans_[row_of(head, piece)].first; }
  bool sees(std::int64_t head, std::int64_t piece, std::int64_t tile) const {
    const std::int64_t row = row_of(head, piece);
    if (tile < spans_[row].first || tile > spans_[row].last) return false;
    return words_ == 0 || (bits_[row * words_ + tile / 64] >> tile % 64 & 1) != 0;
  }
  // The tile after this one that the piece looks into; any number past the last where there is none.
  std::int64_t next(std::int64_t head, std::int64_t piece, std::int64_t tile) const {
    const std::int64_t row = row_of(head, piece);
    ++tile;
    if (words_ == 0 || tile > spans_[row].last) return tile;
    const std::uint64_t* words = bits_.data() + row * words_;
    std::int64_t word = tile / 64;
    std::uint64_t rest = words[word] >> tile % 64 << tile % 64;
    while (rest == 0) rest = words[++word];  // the bit of `last` ends it
    return word * 64 + std::countr_zero(rest);
  }

 private:
  struct Span {
    std::int64_t first, last;  // first > last: none
  };

  std::int64_t row_of(std::int64_t head, std::int64_t piece) const {
    return (heads_ == 1 ? head / p_.Hk : head) * pieces_ + piece;
  }
  MaskTile tile_of(std::int64_t row, std::int64_t head) const {
    const std::int64_t begin = row % pieces_ * kRowsPerPiece, end = std::min(p_.M * p_.G, begin + kRowsPerPiece);
    const std::int64_t hk = head % p_.Hk;
    return {head / p_.Hk, hk * p_.G, (hk + 1) * p_.G, begin / p_.G, (end - 1) / p_.G + 1, 0, p_.N};
  }
  void fill_span(std::int64_t row, std::int64_t head) {
    const MaskTile tile = tile_of(row, head);
    std::array<std::int64_t, kRowsPerPiece + 1> lo, hi;
    fill_intervals(*p_.mask, tile.b, tile.i0, tile.i1 - tile.i0, lo.data(), hi.data());
    Span span{p_.N, -1};  // past the last tile
    for (std::size_t t = 0; t < static_cast<std::size_t>(tile.i1 - tile.i0); ++t) {
      if (lo[t] >= hi[t]) continue;
      span.first = std::min(span.first, lo[t] / kKeyTile);
      span.last = std::max(span.last, (hi[t] - 1) / kKeyTile);
    }
    spans_[row] = span;
  }
  void fill_bits(std::int64_t row, std::int64_t head) {
    std::uint64_t* words = bits_.data() + row * words_;
    std::fill_n(words, words_, 0);
    Span span{p_.N, -1};  // past the last tile
    for (MaskTile tile = tile_of(row, head); tile.j0 < p_.N;) {
      const KeySpan seen = seen_keys(*p_.mask, tile);
      if (seen.lo >= seen.hi) break;
      const std::int64_t at = seen.lo / kKeyTile;
      words[at / 64] |= std::uint64_t{1} << at % 64;
      span = {std::min(span.first, at), at};
      tile.j0 = (at + 1) * kKeyTile;
      tile.j1 = seen.hi;
      if (tile.j0 >= tile.j1) break;
    }
    spans_[row] = span;
  }

  const AttentionProblem& p_;
  std::int64_t pieces_, heads_, words_;
  Buffer<Span> spans_;
  Buffer<std::uint64_t> bits_;
};

// The gradient of a bias by distance, where one is asked for. A tile adds up its own distances, in doubles; tiles are
// added to the sums of their KV head in order, and heads to the gradient, whoever makes them.
class DistanceGradient {
 public:
  DistanceGradient(const AttentionProblem& p, const std::optional<MutableView>& to, std::int64_t at_once, int workers)
      : p_(p),
        to_(to),
        heads_(!to                ? 0
               : to->heads() == 1 ? 1
                                  : p.G),
        strip_(p.M + kKeyTile - 1),
        all_(p.M + p.N - 1),
        strips_(checked_product("ddistance_bias", {heads_, strip_, std::int64_t{sizeof(double)}}), workers),
        sums_(checked_product("ddistance_bias", {at_once, heads_, all_})),
        total_(to ? checked_product("ddistance_bias", {to->heads(), all_}) : 0),
        order_(at_once) {
    std::fill_n(total_.data(), to ? to->heads() * all_ : 0, 0.0);
  }

  void begin_heads(std::int64_t count) {
    std::fill_n(sums_.data(), count * heads_ * all_, 0.0);
    for (std::int64_t local = 0; local < count; ++local) order_.open(local, 0);
  }

  struct Tile {
    double* sums;
    std::int64_t lo, hi;  // what of a strip was reached
  };
  Tile begin_tile(int worker) const { return {to_ ? static_cast<double*>(strips_.of(worker)) : nullptr, 0, 0}; }

  // Rows come in rising order, distances in falling order: only as much is cleared as they reach.
  DistanceSums reach(Tile& tile, const RowRange& rows) const {
    if (!to_) return {nullptr, 0};
    if (tile.lo == tile.hi) tile.lo = tile.hi = p_.M - 1 - rows.begin / p_.G + kKeyTile;
    const std::int64_t lo = p_.M - 1 - (rows.end - 1) / p_.G;
    for (std::int64_t g = 0; g < heads_; ++g)
      std::fill(tile.sums + g * strip_ + lo, tile.sums + g * strip_ + tile.lo, 0.0);
    tile.lo = lo;
    return {tile.sums, heads_ == 1 ? 0 : strip_};
  }

  void end_tile(const Tile& tile, std::int64_t local, std::int64_t number) {
    if (!to_) return;
    const std::int64_t hi = std::min(tile.hi, all_ - number * kKeyTile);  // keys past the last one have none
    order_.wait(local, number);
    for (std::int64_t g = 0; g < heads_; ++g) {
      double* sums = sums_.data() + (local * heads_ + g) * all_ + number * kKeyTile;
      for (std::int64_t x = tile.lo; x < hi; ++x) sums[x] += tile.sums[g * strip_ + x];
    }
    order_.pass(local, number + 1);
  }

  void end_heads(std::int64_t first, std::int64_t count) {
    for (std::int64_t local = 0; to_ && local < count; ++local) {
      double* total = total_.data() + (to_->heads() == 1 ? 0 : (first + local) % p_.Hk * p_.G * all_);
      const double* sums = sums_.data() + local * heads_ * all_;
      for (std::int64_t x = 0; x < heads_ * all_; ++x) total[x] += sums[x];
    }
  }

  void write() const {
    for (std::int64_t h = 0; to_ && h < to_->heads(); ++h)
      for (std::int64_t x = 0; x < all_; ++x) store(*to_, 0, h, 0, x, total_[h * all_ + x]);
  }

 private:
  const AttentionProblem& p_;
  const std::optional<MutableView>& to_;
  std::int64_t heads_;  // of a KV head's, those with a bias of their own
  std::int64_t strip_, all_;
  Scratch strips_;
  Buffer<double> sums_, total_;
  TileOrder order_;
};

RowRange piece_of(const AttentionProblem& p, std::int64_t head, std::int64_t piece) {
  const std::int64_t begin = piece * kRowsPerPiece;
  return {head / p.Hk, head % p.Hk, begin, std::min(p.M * p.G, begin + kRowsPerPiece)};
}

// A worker's tile of keys, and what it needs for a piece of rows against it.
struct BackwardMemory {
  BackwardMemory(const AttentionProblem& p, const KernelTable& table, std::int64_t rows)
      : tile(table.backward_tile_bytes(p)), scratch(table.backward_scratch_bytes(p, rows)) {}
  int workers() const { return scratch.workers(); }
  BackwardTile begin(const AttentionProblem& p, const KernelTable& table, const KeyTile& keys, int worker) const {
    return table.backward_begin(p, keys, tile.of(worker), scratch.of(worker));
  }

  Scratch tile, scratch;
};

// Many heads: each is an item of its own, from its first tile to its last, and nobody waits for anybody.
void backward_whole_heads(const AttentionProblem& p, const KernelTable& table, const PieceTiles& seen,
                          const Operand& dq, std::int64_t sums_each, const BackwardMemory& memory) {
  const std::int64_t pieces = divide_up(p.M * p.G, kRowsPerPiece), tiles = divide_up(p.N, kKeyTile);
  const Scratch sums(checked_product("dq", {sums_each, std::int64_t{sizeof(float)}}), memory.workers());
  parallel_for(p.B * p.Hk, memory.workers(), [&](std::int64_t head, int worker) {
    auto* dq_sums = static_cast<float*>(sums.of(worker));
    std::fill_n(dq_sums, sums_each, 0.0F);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      if (job_stops()) return;
      BackwardTile keys = memory.begin(p, table, {head / p.Hk, head % p.Hk, tile * kKeyTile}, worker);
      for (std::int64_t piece = 0; piece < pieces; ++piece)
        if (seen.sees(head, piece, tile))
          table.backward_rows(p, keys, piece_of(p, head, piece), dq_sums, {}, memory.scratch.of(worker));
      table.backward_end(p, keys);
    }
    for (std::int64_t piece = 0; piece < pieces; ++piece) table.store_dq(p, dq, piece_of(p, head, piece), dq_sums);
  });
}

// dq, dk and dv of KV heads [first, first + count) of the batch*Hk list.
void backward_heads(const AttentionProblem& p, const KernelTable& table, const PieceTiles& seen, const Operand& dq,
                    std::int64_t first, std::int64_t count, float* dq_sums, std::int64_t sums_each,
                    DistanceGradient& distances, const BackwardMemory& memory) {
  const std::int64_t pieces = divide_up(p.M * p.G, kRowsPerPiece), tiles = divide_up(p.N, kKeyTile);
  const std::int64_t padded = sums_each / (p.M * p.G);
  TileOrder order(count * pieces);
  const auto clear = [&](const RowRange& range, std::int64_t local) {
    std::fill_n(dq_sums + local * sums_each + range.begin * padded, (range.end - range.begin) * padded, 0.0F);
  };
  for (std::int64_t local = 0; local < count; ++local)
    for (std::int64_t piece = 0; piece < pieces; ++piece)
      order.open(local * pieces + piece, seen.first(first + local, piece));
  distances.begin_heads(count);
  // Items are handed out in rising order, so the tile a worker waits for is always being worked on already.
  parallel_for(tiles * count, memory.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t tile = item / count, local = item % count, head = first + local;
    DistanceGradient::Tile by_distance = distances.begin_tile(worker);
    BackwardTile keys = memory.begin(p, table, {head / p.Hk, head % p.Hk, tile * kKeyTile}, worker);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      if (!seen.sees(head, piece, tile)) continue;
      const RowRange range = piece_of(p, head, piece);
      const DistanceSums reached = distances.reach(by_distance, range);
      order.wait(local * pieces + piece, tile);
      if (tile == seen.first(head, piece)) clear(range, local);
      table.backward_rows(p, keys, range, dq_sums + local * sums_each, reached, memory.scratch.of(worker));
      order.pass(local * pieces + piece, seen.next(head, piece, tile));
    }
    table.backward_end(p, keys);
    distances.end_tile(by_distance, local, tile);
  });
  distances.end_heads(first, count);
  parallel_for(count * pieces, memory.workers(), [&](std::int64_t item, int) {
    const std::int64_t local = item / pieces, piece = item % pieces;
    const RowRange range = piece_of(p, first + local, piece);
    if (seen.first(first + local, piece) >= tiles) clear(range, local);  // no tile did
    table.store_dq(p, dq, range, dq_sums + local * sums_each);
  });
}

void backward_qkv(const AttentionProblem& p, const KernelTable& table, const Operand& dq,
                  const std::optional<MutableView>& ddistance_bias) {
  const std::int64_t heads = p.B * p.Hk, tiles = divide_up(p.N, kKeyTile);
  const std::int64_t padded = divide_up(p.D, table.lanes) * table.lanes;
  const std::int64_t sums_each = checked_product("dq", {p.M, p.G, padded});
  const BackwardMemory memory(p, table, kRowsPerPiece);
  const PieceTiles seen(p, divide_up(p.M * p.G, kRowsPerPiece));
  constexpr std::int64_t kManyHeads =
      16;  // for each thread: what the last one leaves the others waiting is then little
  if (heads >= kManyHeads * thread_count() && !ddistance_bias)
    return backward_whole_heads(p, table, seen, dq, sums_each, memory);
  // Several heads at once, so that neighbouring items are tiles of different heads and seldom wait for each other; but
  // only as many as keep the threads busy: the f32 sums of dq are the one buffer as long as the input.
  const std::int64_t enough = divide_up(std::int64_t{8} * thread_count(), tiles);
  const std::int64_t fitting = std::min<std::int64_t>(kMaxSumsBytes / 4 / sums_each, std::int64_t{4} * thread_count());
  const std::int64_t at_once = std::clamp<std::int64_t>(std::max(enough, fitting), 1, heads);
  const Buffer<float> dq_sums(checked_product("dq", {at_once, sums_each}));
  DistanceGradient distances(p, ddistance_bias, at_once, memory.workers());
  for (std::int64_t first = 0; first < heads; first += at_once)
    backward_heads(p, table, seen, dq, first, std::min(at_once, heads - first), dq_sums.data(), sums_each, distances,
                   memory);
  distances.write();
}

// A piece of dbias has one owner, who sums over what the bias repeats in a fixed order: batch, head, row, key.
void backward_bias(const AttentionProblem& p, const KernelTable& table, const MutableView& dbias) {
  const auto& [Bb, Hb, Mb, Nb] = dbias.shape;
  const std::int64_t tokens_each = std::max<std::int64_t>(1, kKeyTile / p.G);
  const std::int64_t token_blocks = divide_up(p.M, tokens_each), tiles = divide_up(p.N, kKeyTile);
  const std::int64_t groups = Hb == 1 ? 1 : p.Hk;
  const std::int64_t owned_tokens = Mb == 1 ? 1 : tokens_each, owned_heads = Hb == 1 ? 1 : p.G;
  const std::int64_t owned_keys = Nb == 1 ? 1 : kKeyTile;
  const BiasPlace place{Mb == 1 ? 0 : owned_heads * owned_keys, Hb == 1 ? 0 : owned_keys, Nb == 1 ? 0 : 1};
  const BackwardMemory memory(p, table, tokens_each * p.G);
  const Scratch sums_memory(owned_tokens * owned_heads * owned_keys * std::int64_t{sizeof(double)}, memory.workers());
  const std::int64_t block_items = Mb == 1 ? 1 : token_blocks, tile_items = Nb == 1 ? 1 : tiles;
  parallel_for(Bb * groups * block_items * tile_items, memory.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t tile = item % tile_items, block = item / tile_items % block_items;
    const std::int64_t group = item / tile_items / block_items % groups;
    const std::int64_t batch = item / tile_items / block_items / groups;
    auto* sums = static_cast<double*>(sums_memory.of(worker));
    std::fill_n(sums, owned_tokens * owned_heads * owned_keys, 0.0);
    const auto span = [](bool repeated, std::int64_t own, std::int64_t all) {
      return repeated ? std::pair{std::int64_t{0}, all} : std::pair{own, own + 1};
    };
    const auto [b0, b1] = span(Bb == 1, batch, p.B);
    const auto [g0, g1] = span(Hb == 1, group, p.Hk);
    const auto [t0, t1] = span(Mb == 1, block, token_blocks);
    const auto [j0, j1] = span(Nb == 1, tile, tiles);
    for (std::int64_t b = b0; b < b1; ++b)
      for (std::int64_t hk = g0; hk < g1; ++hk)
        for (std::int64_t t = t0; t < t1; ++t)
          for (std::int64_t j = j0; j < j1; ++j)
            table.bias_gradient(p, {b, hk, j * kKeyTile},
                                {b, hk, t * tokens_each * p.G, std::min(p.M, (t + 1) * tokens_each) * p.G}, place, sums,
                                memory.tile.of(worker), memory.scratch.of(worker));
    for (std::int64_t t = 0; t < std::min(owned_tokens, Mb - block * owned_tokens); ++t)
      for (std::int64_t g = 0; g < owned_heads; ++g)
        for (std::int64_t c = 0; c < std::min(owned_keys, Nb - tile * owned_keys); ++c)
          store(dbias, batch, group * owned_heads + g, block * owned_tokens + t, tile * owned_keys + c,
                sums[(t * owned_heads + g) * owned_keys + c]);
  });
}

// The weight of the sink of row `at` of [B, H, M].
double sink_weight(const AttentionProblem& p, std::int64_t at) {
  const float lse = p.lse_in[at];
  if (!lse_suffices(lse)) return static_cast<double>(p.softmax_rows[at].sink);
  return std::exp(static_cast<double>(p.sinks[at / p.M % p.H]) - static_cast<double>(lse));
}

// d(sink) = - sum over rows of the sink's weight times delta.
void backward_sinks(const AttentionProblem& p, const float* deltas, const MutableView& dsinks) {
  for (std::int64_t h = 0; h < p.H; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < p.B; ++b)
      for (std::int64_t i = 0; i < p.M; ++i) {
        const std::int64_t at = (b * p.H + h) * p.M + i;
        const double delta = static_cast<double>(deltas[at]);
        if (delta != 0) sum -= delta * sink_weight(p, at);
      }
    store(dsinks, 0, h, 0, 0, sum);
  }
}

// delta = sum over keys of weight * dw, from weights recomputed in f32: dout . out carries the rounding of a bf16 or
// f16 output. Where the LSE is of more keys than the problem has, only the output knows the whole row: where the
// weights do not sum to 1, delta stays dout . out. Below kOtherShare that costs less than the rounding it avoids.
void fill_wide_delta(const AttentionProblem& p, const KernelTable& table, float* wide_delta) {
  constexpr double kOtherShare = 0x1p-12;
  const std::int64_t pieces = divide_up(p.M * p.G, kRowsPerPiece), tiles = divide_up(p.N, kKeyTile);
  const BackwardMemory memory(p, table, kRowsPerPiece);
  parallel_for(p.B * p.Hk * pieces, memory.workers(), [&](std::int64_t item, int worker) {
    const RowRange range = piece_of(p, item / pieces, item % pieces);
    std::array<DeltaSums, kRowsPerPiece> sums{};
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      if (job_stops()) return;
      table.delta_sums(p, {range.b, range.hk, tile * kKeyTile}, range, sums.data(), memory.tile.of(worker),
                       memory.scratch.of(worker));
    }
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const DeltaSums& sum = sums[static_cast<std::size_t>(row - range.begin)];
      const std::int64_t at = (range.b * p.H + range.hk * p.G + row % p.G) * p.M + row / p.G;
      const double weights = sum.weights + (p.sinks ? sink_weight(p, at) : 0);
      wide_delta[at] = std::abs(1 - weights) <= kOtherShare ? static_cast<float>(sum.delta) : p.delta[at];
    }
  });
}

void zero(const std::optional<MutableView>& x) {
  if (!x || row_count(x->shape) == 0) return;  // no loops over 2^62 nothings
  for (std::int64_t b = 0; b < x->shape[0]; ++b)
    for (std::int64_t h = 0; h < x->shape[1]; ++h)
      for (std::int64_t i = 0; i < x->shape[2]; ++i)
        for (std::int64_t d = 0; d < x->shape[3]; ++d) store(*x, b, h, i, d, 0.0);
}

}  // namespace

void run_attention_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                            const AttentionGradients& gradients, const RowState* whole) {
  const KernelTable& table = kernels();
  AttentionProblem p = call.problem();
  const Operand dout_operand = operand_of(dout);
  p.dout = &dout_operand;
  p.out = operand_of(out);
  p.dk = operand_of(gradients.dk);
  p.dv = operand_of(gradients.dv);
  const std::int64_t rows_in_all = checked_product("lse", {p.B, p.H, p.M});
  const Buffer<float> lse_rows(rows_in_all), delta(rows_in_all);
  const bool half = call.q.dtype == DType::bf16 || call.q.dtype == DType::f16;
  const bool wide = half && (gradients.dbias || gradients.dsinks || gradients.ddistance_bias);
  const Buffer<float> wide_delta(wide ? rows_in_all : 0);
  const Buffer<SoftmaxRow> softmax_rows(rows_in_all), float_rows(wide || gradients.dbias ? rows_in_all : 0);
  load_lse(lse, lse_rows.data());
  p.lse_in = lse_rows.data();
  fill_softmax_rows(p, p.lse_in, false, whole, softmax_rows.data());
  p.softmax_rows = softmax_rows.data();
  p.delta = delta.data();

  const Scratch scratch(table.backward_scratch_bytes(p, 0));
  const std::int64_t pieces = divide_up(call.rows(), kRowsPerPiece);
  parallel_for(p.B * p.Hk * pieces, scratch.workers(), [&](std::int64_t item, int worker) {
    const std::int64_t head = item / pieces, begin = item % pieces * kRowsPerPiece;
    table.delta_rows(p, {head / p.Hk, head % p.Hk, begin, std::min(call.rows(), begin + kRowsPerPiece)}, delta.data(),
                     scratch.of(worker));
  });
  AttentionProblem in_floats = p;  // scores computed in f32, whatever the inputs are
  in_floats.softmax_rows = float_rows.data();
  if (wide || gradients.dbias) fill_softmax_rows(p, p.lse_in, true, whole, float_rows.data());
  if (wide) {
    fill_wide_delta(in_floats, table, wide_delta.data());
    in_floats.delta = p.wide_delta = wide_delta.data();
  }
  backward_qkv(p, table, operand_of(gradients.dq), gradients.ddistance_bias);
  if (gradients.dsinks) backward_sinks(p, in_floats.delta, *gradients.dsinks);
  if (gradients.dbias) backward_bias(in_floats, table, *gradients.dbias);
  call.rule.rethrow();
}

void attention_backward(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                        const AttentionGradients& gradients, const RowState* whole) {
  kernels();  // complains of a wrong ATTEND_ISA, whatever the dtype
  if (call.q.dtype == DType::f64)
    return reference::attention_backward(dout, call.q, call.k, call.v, gradients, call.options);
  if (call.empty() || call.k.length() == 0) {  // nothing looked at anything
    for (const auto& gradient : {std::optional(gradients.dq), std::optional(gradients.dk), std::optional(gradients.dv),
                                 gradients.dbias, gradients.dsinks, gradients.ddistance_bias})
      zero(gradient);
    return;
  }
  if (!whole && attention_backward_by_classes(call, dout, out, lse, gradients)) return;
  run_attention_backward(call, dout, out, lse, gradients, whole);
}

void attention_backward(View dout, View q, View k, View v, View out, View lse, const AttentionGradients& gradients,
                        const AttentionOptions& options) {
  const AttentionCall call(q, k, v, options);
  check_backward(call, dout, out, lse, gradients);
  attention_backward(call, dout, out, lse, gradients);
}

AttentionGradientTensors attention_backward(View dout, View q, View k, View v, View out, View lse,
                                            const AttentionOptions& options) {
  const AttentionCall call(q, k, v, options);
  AttentionGradientTensors result;
  result.dq = Tensor(q.dtype, q.shape);
  result.dk = Tensor(k.dtype, k.shape);
  result.dv = Tensor(v.dtype, v.shape);
  AttentionGradients gradients{result.dq, result.dk, result.dv, {}, {}, {}};
  const DType wide = accumulator_dtype(q.dtype);
  if (options.bias) gradients.dbias = result.dbias = Tensor(wide, options.bias->shape);
  if (options.sinks) gradients.dsinks = result.dsinks = Tensor(wide, options.sinks->shape);
  if (options.distance_bias)
    gradients.ddistance_bias = result.ddistance_bias = Tensor(wide, options.distance_bias->shape);
  check_backward(call, dout, out, lse, gradients);
  attention_backward(call, dout, out, lse, gradients);
  return result;
}

}  // namespace attend
