// Lowers masks, and says which keys a query may see as an interval.
#include "core/mask_plan.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "core/mask_runs.hpp"

namespace attend {
namespace {

void check_per_batch(const char* what, const SharedInts& values, std::int64_t B) {
  if (!values) return;
  const auto n = static_cast<std::int64_t>(values->size());
  if (n != 1 && n != B)
    fail("mask",
         std::string(what) + " has " + std::to_string(n) + " values, expected 1 or " + std::to_string(B) + " (batch)");
}

void check_bounds(const char* what, const SharedInts& values, std::int64_t limit, const char* limit_name) {
  if (!values) return;
  for (std::size_t n = 0; n < values->size(); ++n)
    if ((*values)[n] < 0 || (*values)[n] > limit)
      fail("mask", std::string(what) + "[" + std::to_string(n) + "] is " + std::to_string((*values)[n]) +
                       ", expected 0 to " + std::to_string(limit) + " (" + limit_name + ")");
}

void check_cumulative(const char* what, const std::vector<std::int64_t>& cu, std::int64_t limit) {
  if (cu.empty() || cu.front() != 0) fail("mask", std::string(what) + " must start at 0");
  for (std::size_t s = 1; s < cu.size(); ++s)
    if (cu[s] < cu[s - 1])
      fail("mask", std::string(what) + "[" + std::to_string(s) + "] is " + std::to_string(cu[s]) +
                       ", expected at least " + std::to_string(cu[s - 1]) + " (never falling)");
  if (cu.back() > limit)
    fail("mask", std::string(what) + " ends at " + std::to_string(cu.back()) + ", expected at most " +
                     std::to_string(limit) + " (length)");
}

// Each rule beside the others; unions come after them.
struct Lowering {
  using From = IntervalRule::From;

  MaskPlan& plan;
  std::int64_t H;
  bool& own_segments;

  void operator()(const CausalRule& r) const { add_relative(kUnlimited, 0, r.diagonal, "causal"); }
  void operator()(const WindowRule& r) const {
    if (r.left < kUnlimited || r.right < kUnlimited)
      fail("mask", "window is (" + std::to_string(r.left) + ", " + std::to_string(r.right) +
                       "), expected sizes of 0 or more, or -1 for unlimited");
    add_relative(r.left, r.right, r.diagonal, "window");
  }
  void operator()(const PaddingRule& r) const {
    check_per_batch("padding starts", r.starts, plan.B);
    check_per_batch("padding lengths", r.ends, plan.B);
    check_bounds("padding starts", r.starts, plan.N, "keys");
    check_bounds("padding lengths", r.ends, plan.N, "keys");
    plan.intervals.push_back({From::keys, 0, 0, {Align::last_key, nullptr}, r.starts, r.ends, nullptr});
  }
  void operator()(const PrefixRule& r) const {
    if (!r.lengths) fail("mask", "prefix without lengths");
    check_per_batch("prefix lengths", r.lengths, plan.B);
    check_bounds("prefix lengths", r.lengths, plan.N, "keys");
    add_relative(kUnlimited, 0, r.diagonal, "prefix");
    plan.intervals.back().prefix = r.lengths;
  }
  void operator()(const SegmentsRule& r) const {
    if (own_segments) fail("mask", "got two segments rules, expected at most one");
    own_segments = true;
    if (!r.queries || !r.keys) fail("mask", "segments without cumulative lengths");
    check_cumulative("segment queries", *r.queries, plan.M);
    check_cumulative("segment keys", *r.keys, plan.N);
    check_equal("mask", "segment keys count", static_cast<std::int64_t>(r.keys->size()),
                static_cast<std::int64_t>(r.queries->size()), "segment queries count");
    plan.segment_queries = r.queries;
    plan.segment_keys = r.keys;
  }
  void operator()(const BlocksRule& r) const {
    if (!r.bits) fail("mask", "blocks without bits");
    if (r.block_queries < 1 || r.block_keys < 1)
      fail("mask", "block size is " + std::to_string(r.block_queries) + " x " + std::to_string(r.block_keys) +
                       ", expected at least 1 x 1");
    if (r.heads != 1) check_equal("mask", "blocks heads", r.heads, H, "heads, or 1");
    check_equal("mask", "block rows", r.rows, divide_up(plan.M, r.block_queries), "queries / block, rounded up");
    check_equal("mask", "block columns", r.cols, divide_up(plan.N, r.block_keys), "keys / block, rounded up");
    check_equal("mask", "block bits", static_cast<std::int64_t>(r.bits->size()),
                checked_product("blocks", {r.heads, r.rows, r.cols}), "heads x rows x columns");
    plan.blocks.push_back(r);
  }
  void operator()(const DenseRule& r) const {
    const Shape full = {plan.B, H, plan.M, plan.N};
    DenseRule lowered = r;
    for (std::size_t d = 0; d < 4; ++d) {
      if (r.shape[d] != full[d] && r.shape[d] != 1)
        fail("mask",
             "dense shape is " + to_string(r.shape) + ", expected " + to_string(full) + " with any dimension 1");
      if (r.shape[d] == 1) lowered.strides[d] = 0;
    }
    check_layout("mask", "dense", r.data, r.shape, r.strides, 1);
    plan.denses.push_back(lowered);
  }

  void operator()(const ChunksRule& r) const {
    check_size("chunks size", r.size, 1);
    check_size("chunks back", r.back, 0);
    plan.intervals.push_back(
        {From::chunk, r.size, r.back, lower_diagonal(r.diagonal, "chunks", plan.B), nullptr, nullptr, nullptr});
  }
  void operator()(const DilatedRule& r) const {
    check_size("dilated step", r.step, 1);
    if (r.step == 1) return;
    plan.periods.push_back({true, lower_diagonal(r.diagonal, "dilated", plan.B), r.step, 0, 1});
  }
  void operator()(const ColumnsRule& r) const {
    check_size("columns period", r.period, 1);
    check_size("columns first", r.first, 0);
    check_size("columns count", r.count, 1);
    if (r.first >= r.period || r.count > r.period - r.first)
      fail("mask", "columns are " + std::to_string(r.count) + " from " + std::to_string(r.first) +
                       " on, expected all " + "within the period of " + std::to_string(r.period));
    if (r.period >= plan.N) {  // the first period is all there is
      const std::int64_t first = std::min(r.first, plan.N), end = first + std::min(r.count, plan.N - first);
      plan.intervals.push_back({From::segment, first, end, {Align::last_key, nullptr}, nullptr, nullptr, nullptr});
    } else if (r.count < r.period) {
      plan.periods.push_back({false, {Align::last_key, nullptr}, r.period, r.first, r.count});
    }
  }
  void operator()(const TokensRule& r) const {
    if (!r.positions || r.positions->empty()) fail("mask", "tokens without positions");
    check_bounds("token positions", r.positions, plan.N - 1, "the last key");
    if (!std::is_sorted(r.positions->begin(), r.positions->end()))
      fail("mask", "token positions fall, expected rising");
    plan.tokens.push_back({r.positions, r.queries, lower_diagonal(r.diagonal, "tokens", plan.B)});
  }
  void operator()(const AnyRule&) const {}  // after all others: its parts stand within the segments beside them

  static void check_size(const char* what, std::int64_t got, std::int64_t least) {
    if (got < least || got > std::int64_t{1} << 60)
      fail("mask",
           std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(least) + " to 2^60");
  }
  void add_relative(std::int64_t left, std::int64_t right, const Diagonal& diagonal, const char* what) const {
    plan.intervals.push_back(
        {From::position, left, right, lower_diagonal(diagonal, what, plan.B), nullptr, nullptr, nullptr});
  }
};

}  // namespace

PositionPlan lower_diagonal(const Diagonal& diagonal, const char* what, std::int64_t B) {
  check_per_batch((std::string(what) + " offsets").c_str(), diagonal.offsets, B);
  if (diagonal.offsets)
    for (const std::int64_t offset : *diagonal.offsets)
      if (offset > kFar || offset < -kFar)
        fail("mask", std::string(what) + " offset is " + std::to_string(offset) + ", too far from the keys");
  return {diagonal.align, diagonal.offsets};
}

namespace {

thread_local std::int64_t lowered_masks = 0;

}  // namespace

std::int64_t MaskPlan::lowered() {
  return lowered_masks;
}

MaskPlan::MaskPlan(std::int64_t batch, std::int64_t queries, std::int64_t keys)
    : memory_(room_.data(), room_.size()),
      B(batch),
      M(queries),
      N(keys),
      intervals(&memory_),
      blocks(&memory_),
      denses(&memory_),
      periods(&memory_),
      tokens(&memory_),
      anys(&memory_) {}

MaskPlan::MaskPlan(const Mask& mask, std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys)
    : MaskPlan(batch, queries, keys) {
  ++lowered_masks;
  Nesting nesting{0, 0};
  lower(mask, heads, nesting);
}

MaskPlan::MaskPlan(const Mask& mask, const MaskPlan& around, std::int64_t heads, Nesting& nesting)
    : MaskPlan(around.B, around.M, around.N) {
  segment_queries = around.segment_queries;
  segment_keys = around.segment_keys;
  lower(mask, heads, nesting);
}

MaskPlan::~MaskPlan() = default;

void MaskPlan::lower(const Mask& mask, std::int64_t H, Nesting& nesting) {
  bool own_segments = false;
  for (const MaskRule& rule : mask.rules) std::visit(Lowering{*this, H, own_segments}, rule);
  for (const MaskRule& rule : mask.rules) {
    const auto* any = std::get_if<AnyRule>(&rule);
    if (any == nullptr) continue;
    if (!any->masks) fail("mask", "a union without masks");
    if (++nesting.depth > kDeepestMask)
      fail("mask", "masks nest deeper than " + std::to_string(kDeepestMask) + ", the most there may be");
    AnyPlan& lowered = anys.emplace_back();
    lowered.none = any->none;
    for (const Mask& part : *any->masks) {
      if (++nesting.parts > kMostParts)
        fail("mask", "more than " + std::to_string(kMostParts) + " masks in a mask, the most there may be");
      lowered.parts.push_back(std::unique_ptr<MaskPlan>(new MaskPlan(part, *this, H, nesting)));
    }
    --nesting.depth;
  }
  holes = !blocks.empty() || !denses.empty() || !periods.empty() || !tokens.empty() || !anys.empty();
}

bool MaskPlan::ragged_keys() const {
  const auto differs = [](const SharedInts& x) { return x && x->size() > 1; };
  const auto rule_differs = [&](const IntervalRule& rule) {
    return differs(rule.starts) || differs(rule.ends) || differs(rule.prefix) || differs(rule.position.offsets);
  };
  return key_lengths != nullptr || std::any_of(intervals.begin(), intervals.end(), rule_differs);
}

bool MaskPlan::differs_by_head() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlocksRule& r) { return r.heads != 1; }) ||
         std::any_of(anys.begin(), anys.end(), [](const AnyPlan& any) {
           return std::any_of(any.parts.begin(), any.parts.end(), [](const auto& x) { return x->differs_by_head(); });
         });
}

void MaskPlan::set_key_lengths(const std::int64_t* lengths) {
  key_lengths = lengths;
  for (const AnyPlan& any : anys)
    for (const auto& part : any.parts) part->set_key_lengths(lengths);
}

namespace {

// The smallest intervals that hold what the parts see, a few queries at a time, narrow lo and hi.
void narrow_by_parts(const AnyPlan& any, std::int64_t b, std::int64_t i, std::int64_t count, std::int64_t* lo,
                     std::int64_t* hi) {
  constexpr std::int64_t kAtOnce = 32;
  std::int64_t part_lo[kAtOnce], part_hi[kAtOnce], least[kAtOnce], most[kAtOnce];
  for (std::int64_t t = 0; t < count; t += kAtOnce) {
    const std::int64_t n = std::min(kAtOnce, count - t);
    std::fill_n(least, n, kFar);
    std::fill_n(most, n, std::int64_t{0});
    for (const auto& part : any.parts) {
      fill_intervals(*part, b, i + t, n, part_lo, part_hi);
      for (std::int64_t s = 0; s < n; ++s) {
        if (part_lo[s] >= part_hi[s]) continue;
        least[s] = std::min(least[s], part_lo[s]);
        most[s] = std::max(most[s], part_hi[s]);
      }
    }
    for (std::int64_t s = 0; s < n; ++s) {
      lo[t + s] = std::max(lo[t + s], least[s]);
      hi[t + s] = std::min(hi[t + s], most[s]);
    }
  }
}

}  // namespace

void fill_intervals(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, std::int64_t* lo,
                    std::int64_t* hi) {
  for_runs(plan, b, i, count, [&](std::int64_t t0, std::int64_t t1, const MaskRun& run) {
    for (auto t = t0; t < t1; ++t) {
      lo[t] = run.k0;
      hi[t] = std::max(run.k1, std::int64_t{0});
    }
    if (run.k1 < 0) return;
    for (const IntervalRule& rule : plan.intervals) narrow(rule, b, i, t0, t1, run, lo, hi);
    for (const TokensPlan& rule : plan.tokens) {
      const std::int64_t p0 = i + position_offset(rule.position, b, run) - run.k0;
      for (auto t = t0; t < t1; ++t) {
        if (rule.queries && listed(rule.positions, p0 + t, p0 + t + 1).any()) continue;
        lo[t] = std::max(lo[t], run.k0 + rule.positions->front());
        hi[t] = std::min(hi[t], run.k0 + rule.positions->back() + 1);
      }
    }
  });
  for (std::int64_t t = 0; plan.row_lo && t < count; ++t) {
    lo[t] = std::max(lo[t], plan.row_lo[b * plan.M + i + t]);
    hi[t] = std::min(hi[t], plan.row_hi[b * plan.M + i + t]);
  }
  for (const AnyPlan& any : plan.anys)
    if (!any.none) narrow_by_parts(any, b, i, count, lo, hi);
}

void fill_positions(const MaskPlan& plan, const PositionPlan& position, std::int64_t b, std::int64_t i,
                    std::int64_t count, std::int64_t* p) {
  for_runs(plan, b, i, count, [&](std::int64_t t0, std::int64_t t1, const MaskRun& run) {
    const std::int64_t p0 = run.k1 < 0 ? i : i + position_offset(position, b, run);
    for (auto t = t0; t < t1; ++t) p[t] = p0 + t;
  });
}

}  // namespace attend
