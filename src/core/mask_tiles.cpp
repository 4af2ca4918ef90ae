// What the rules of a mask say of a whole tile, and of one row of it.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/mask_runs.hpp"

namespace attend {
namespace {

std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  const std::int64_t r = a % b;
  return r < 0 ? r + b : r;
}

KeySpan hull(const KeySpan& a, const KeySpan& b) {
  if (a.lo >= a.hi) return b;
  if (b.lo >= b.hi) return a;
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
}

// The interval of query i of a run, by the interval rules alone.
KeySpan interval_at(const MaskPlan& plan, std::int64_t b, std::int64_t i, const MaskRun& run) {
  KeySpan span{run.k0, std::max(run.k1, std::int64_t{0})};
  if (run.k1 >= 0)
    for (const IntervalRule& rule : plan.intervals) narrow(rule, b, i, 0, 1, run, &span.lo, &span.hi);
  return span;
}

// The residue of key j, counted from where the rule's stretch begins; `queries` neighbours widen the stretch.
struct Stretch {
  std::int64_t from, length;
};
Stretch stretch_of(const PeriodRule& rule, std::int64_t b, std::int64_t i, std::int64_t queries, const MaskRun& run) {
  if (!rule.from_position) return {run.k0 + rule.first, rule.count};
  return {i + position_offset(rule.position, b, run) + rule.first, rule.count + queries - 1};
}

// Moves both ends of a span to the next key that a periodic rule shows to queries [i, i + queries).
void narrow_by_period(const PeriodRule& rule, std::int64_t b, std::int64_t i, std::int64_t queries, const MaskRun& run,
                      KeySpan& span) {
  const Stretch stretch = stretch_of(rule, b, i, queries, run);
  if (stretch.length >= rule.period) return;
  const std::int64_t first = floor_mod(span.lo - stretch.from, rule.period);
  if (first >= stretch.length) span.lo += rule.period - first;
  const std::int64_t last = floor_mod(span.hi - 1 - stretch.from, rule.period);
  if (last >= stretch.length) span.hi -= last - stretch.length + 1;
}

// What the rules that count positions show queries [i0, i1) of one run within [lo, hi).
KeySpan seen_in_run(const MaskPlan& plan, std::int64_t b, std::int64_t i0, std::int64_t i1, const MaskRun& run,
                    KeySpan span) {
  if (run.k1 < 0) return {0, 0};
  span.lo = std::max(span.lo, interval_at(plan, b, i0, run).lo);  // along a run neither bound falls
  span.hi = std::min(span.hi, interval_at(plan, b, i1 - 1, run).hi);
  for (const TokensPlan& rule : plan.tokens) {
    if (span.lo >= span.hi) return span;
    const std::int64_t p0 = i0 + position_offset(rule.position, b, run) - run.k0;
    if (rule.queries && listed(rule.positions, p0, p0 + i1 - i0).any()) continue;
    const Listed keys = listed(rule.positions, span.lo - run.k0, span.hi - run.k0);
    span = keys.any() ? KeySpan{run.k0 + *keys.begin, run.k0 + keys.end[-1] + 1} : KeySpan{0, 0};
  }
  for (const PeriodRule& rule : plan.periods) {
    if (span.lo >= span.hi) return span;
    narrow_by_period(rule, b, i0, i1 - i0, run, span);
  }
  return span;
}

bool block_column_seen(const BlocksRule& r, const MaskTile& tile, std::int64_t x) {
  for (std::int64_t h = r.heads == 1 ? 0 : tile.h0; h < (r.heads == 1 ? 1 : tile.h1); ++h)
    for (std::int64_t y = tile.i0 / r.block_queries; y <= (tile.i1 - 1) / r.block_queries; ++y)
      if ((*r.bits)[static_cast<std::size_t>((h * r.rows + y) * r.cols + x)]) return true;
  return false;
}

KeySpan seen_in_blocks(const BlocksRule& r, const MaskTile& tile, KeySpan span) {
  std::int64_t first = span.lo / r.block_keys, last = (span.hi - 1) / r.block_keys;
  while (first <= last && !block_column_seen(r, tile, first)) ++first;
  if (first > last) return {0, 0};
  while (!block_column_seen(r, tile, last)) --last;
  return {std::max(span.lo, first * r.block_keys), std::min(span.hi, (last + 1) * r.block_keys)};
}

MaskTile within(const MaskTile& tile, const KeySpan& span) {
  MaskTile inner = tile;
  inner.j0 = span.lo;
  inner.j1 = span.hi;
  return inner;
}

// All of the tile, by the intervals too: what a part of a union is asked.
bool shows_all(const MaskPlan& plan, const MaskTile& tile);

KeySpan seen_by_any(const AnyPlan& any, const MaskTile& tile) {
  KeySpan span{0, 0};
  if (any.none) {
    for (const auto& part : any.parts)
      if (shows_all(*part, tile)) return span;
    return {tile.j0, tile.j1};
  }
  for (const auto& part : any.parts) {
    span = hull(span, seen_keys(*part, tile));
    if (span.lo == tile.j0 && span.hi == tile.j1) break;
  }
  return span;
}

bool any_shows_all(const AnyPlan& any, const MaskTile& tile) {
  if (!any.none)
    return std::any_of(any.parts.begin(), any.parts.end(), [&](const auto& part) { return shows_all(*part, tile); });
  return std::all_of(any.parts.begin(), any.parts.end(), [&](const auto& part) {
    const KeySpan seen = seen_keys(*part, tile);
    return seen.lo >= seen.hi;
  });
}

bool run_shows_all(const MaskPlan& plan, const MaskTile& tile, std::int64_t i0, std::int64_t i1, const MaskRun& run) {
  const std::int64_t queries = i1 - i0, keys = tile.j1 - tile.j0;
  for (const TokensPlan& rule : plan.tokens) {
    const std::int64_t p0 = i0 + position_offset(rule.position, tile.b, run) - run.k0;
    if (rule.queries && listed(rule.positions, p0, p0 + queries).count() == queries) continue;
    if (listed(rule.positions, tile.j0 - run.k0, tile.j1 - run.k0).count() != keys) return false;
  }
  for (const PeriodRule& rule : plan.periods) {
    if (rule.from_position && queries > 1) return false;
    const Stretch stretch = stretch_of(rule, tile.b, i0, 1, run);
    if (floor_mod(tile.j0 - stretch.from, rule.period) + keys > stretch.length) return false;
  }
  return true;
}

bool shows_all(const MaskPlan& plan, const MaskTile& tile) {
  bool all = true;
  for_runs(plan, tile.b, tile.i0, tile.i1 - tile.i0, [&](std::int64_t t0, std::int64_t t1, const MaskRun& run) {
    all = all && run.k1 >= 0 && interval_at(plan, tile.b, tile.i0 + t1 - 1, run).lo <= tile.j0 &&
          interval_at(plan, tile.b, tile.i0 + t0, run).hi >= tile.j1;
  });
  return all && sees_all(plan, tile);
}

// ---- One row ----

using Bits = std::uint64_t;  // bit c: key j0 + c

Bits ones(std::int64_t from, std::int64_t to) {  // [from, to), cut to the 64 there are
  from = std::clamp<std::int64_t>(from, 0, 64);
  to = std::clamp<std::int64_t>(to, 0, 64);
  if (from >= to) return 0;
  return (~Bits{0} >> (64 - (to - from))) << from;
}

struct MaskRow {
  std::int64_t b, h, i, j0, count;
};

Bits period_bits(const PeriodRule& rule, const MaskRow& row, const MaskRun& run) {
  const Stretch stretch = stretch_of(rule, row.b, row.i, 1, run);
  Bits bits = 0;
  for (std::int64_t c = -floor_mod(row.j0 - stretch.from, rule.period); c < row.count; c += rule.period)
    bits |= ones(c, c + stretch.length);
  return bits;
}

Bits token_bits(const TokensPlan& rule, const MaskRow& row, const MaskRun& run) {
  const std::int64_t p = row.i + position_offset(rule.position, row.b, run) - run.k0;
  if (rule.queries && listed(rule.positions, p, p + 1).any()) return ~Bits{0};
  const Listed keys = listed(rule.positions, row.j0 - run.k0, row.j0 - run.k0 + row.count);
  Bits bits = 0;
  for (const std::int64_t* at = keys.begin; at != keys.end; ++at) bits |= Bits{1} << (*at + run.k0 - row.j0);
  return bits;
}

Bits block_bits(const BlocksRule& r, const MaskRow& row) {
  const std::size_t first =
      static_cast<std::size_t>(((r.heads == 1 ? 0 : row.h) * r.rows + row.i / r.block_queries) * r.cols);
  Bits bits = 0;
  for (std::int64_t x = row.j0 / r.block_keys; x <= (row.j0 + row.count - 1) / r.block_keys; ++x)
    if ((*r.bits)[first + static_cast<std::size_t>(x)])
      bits |= ones(x * r.block_keys - row.j0, std::min(row.count, (x + 1) * r.block_keys - row.j0));
  return bits;
}

Bits dense_bits(const DenseRule& r, const MaskRow& row) {
  const std::uint8_t* at =
      r.data + row.b * r.strides[0] + row.h * r.strides[1] + row.i * r.strides[2] + row.j0 * r.strides[3];
  Bits bits = 0;
  for (std::int64_t c = 0; c < row.count; ++c) bits |= Bits{at[c * r.strides[3]] != 0} << c;
  return bits;
}

// What the rules leave of the row; without `intervals`, those with holes alone.
Bits row_bits(const MaskPlan& plan, const MaskRow& row, bool intervals) {
  Bits bits = ones(0, row.count);
  if (intervals || !plan.periods.empty() || !plan.tokens.empty())
    for_runs(plan, row.b, row.i, 1, [&](std::int64_t, std::int64_t, const MaskRun& run) {
      if (intervals) {
        const KeySpan span = interval_at(plan, row.b, row.i, run);
        bits &= ones(span.lo - row.j0, span.hi - row.j0);
      }
      for (const PeriodRule& rule : plan.periods) bits &= bits ? period_bits(rule, row, run) : 0;
      for (const TokensPlan& rule : plan.tokens) bits &= bits ? token_bits(rule, row, run) : 0;
    });
  for (const BlocksRule& rule : plan.blocks) bits &= bits ? block_bits(rule, row) : 0;
  for (const DenseRule& rule : plan.denses) bits &= bits ? dense_bits(rule, row) : 0;
  for (const AnyPlan& any : plan.anys) {
    Bits seen = 0;
    for (const auto& part : any.parts)
      if ((bits & ~seen) != 0) seen |= row_bits(*part, row, true);
    bits &= any.none ? ~seen : seen;
  }
  return bits;
}

// For each four bits, which of four floats they keep.
constexpr auto kKeep = [] {
  std::array<std::array<std::uint32_t, 4>, 16> keep{};
  for (std::size_t bits = 0; bits < 16; ++bits)
    for (std::size_t c = 0; c < 4; ++c) keep[bits][c] = (bits >> c & 1) != 0 ? 0xFFFFFFFFU : 0;
  return keep;
}();

}  // namespace

KeySpan seen_keys(const MaskPlan& plan, const MaskTile& tile) {
  KeySpan span{tile.j0, tile.j1};
  constexpr int kRounds = 4;  // a rule may move an end to where another moves it on
  for (int round = 0; round < kRounds; ++round) {
    const KeySpan before = span;
    KeySpan runs{0, 0};
    for_runs(plan, tile.b, tile.i0, tile.i1 - tile.i0, [&](std::int64_t t0, std::int64_t t1, const MaskRun& run) {
      runs = hull(runs, seen_in_run(plan, tile.b, tile.i0 + t0, tile.i0 + t1, run, span));
    });
    span = runs;
    if (span.lo >= span.hi) return {0, 0};
    for (const BlocksRule& rule : plan.blocks) {
      span = seen_in_blocks(rule, tile, span);
      if (span.lo >= span.hi) return {0, 0};
    }
    for (const AnyPlan& any : plan.anys) {
      span = seen_by_any(any, within(tile, span));
      if (span.lo >= span.hi) return {0, 0};
    }
    if (span.lo == before.lo && span.hi == before.hi) break;
  }
  return span;
}

bool sees_all(const MaskPlan& plan, const MaskTile& tile) {
  if (!plan.denses.empty()) return false;
  bool all = true;
  if (!plan.periods.empty() || !plan.tokens.empty())
    for_runs(plan, tile.b, tile.i0, tile.i1 - tile.i0, [&](std::int64_t t0, std::int64_t t1, const MaskRun& run) {
      all = all && run_shows_all(plan, tile, tile.i0 + t0, tile.i0 + t1, run);
    });
  for (const BlocksRule& r : plan.blocks)
    for (std::int64_t h = r.heads == 1 ? 0 : tile.h0; all && h < (r.heads == 1 ? 1 : tile.h1); ++h)
      for (std::int64_t y = tile.i0 / r.block_queries; y <= (tile.i1 - 1) / r.block_queries; ++y)
        for (std::int64_t x = tile.j0 / r.block_keys; x <= (tile.j1 - 1) / r.block_keys; ++x)
          all = all && (*r.bits)[static_cast<std::size_t>((h * r.rows + y) * r.cols + x)] != 0;
  return all &&
         std::all_of(plan.anys.begin(), plan.anys.end(), [&](const AnyPlan& any) { return any_shows_all(any, tile); });
}

void hide_holes(const MaskPlan& plan, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0,
                std::int64_t count, float* scores) {
  const Bits seen = row_bits(plan, {b, h, i, j0, count}, false);
  if (seen == ones(0, count)) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::uint32_t hidden;
  const float minus_infinity = -kInfinity;
  std::memcpy(&hidden, &minus_infinity, sizeof hidden);
  std::int64_t c = 0;
  for (; c + 4 <= count; c += 4) {
    const auto& keep = kKeep[seen >> c & 15];
    std::uint32_t four[4];
    std::memcpy(four, scores + c, sizeof four);
    for (std::size_t n = 0; n < 4; ++n) four[n] = (four[n] & keep[n]) | (hidden & ~keep[n]);
    std::memcpy(scores + c, four, sizeof four);
  }
  for (; c < count; ++c)
    if ((seen >> c & 1) == 0) scores[c] = -kInfinity;
}

}  // namespace attend
