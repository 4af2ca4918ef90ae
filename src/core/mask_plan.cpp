// Lowers masks and answers the kernels' questions about rows and tiles.
#include "core/mask_plan.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/checked.hpp"

namespace attend {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;  // adding two of them cannot wrap

std::int64_t per_batch(const SharedInts& values, std::int64_t b) {
  return values->size() == 1 ? (*values)[0] : (*values)[static_cast<std::size_t>(b)];
}

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

std::int64_t divide_up(std::int64_t n, std::int64_t by) {
  return n / by + (n % by != 0);
}

struct Lowering {
  MaskPlan& plan;
  std::int64_t H;

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
    plan.intervals.push_back({false, kUnlimited, kUnlimited, {Align::last_key, nullptr}, r.starts, r.ends, nullptr});
  }
  void operator()(const PrefixRule& r) const {
    if (!r.lengths) fail("mask", "prefix without lengths");
    check_per_batch("prefix lengths", r.lengths, plan.B);
    check_bounds("prefix lengths", r.lengths, plan.N, "keys");
    add_relative(kUnlimited, 0, r.diagonal, "prefix");
    plan.intervals.back().prefix = r.lengths;
  }
  void operator()(const SegmentsRule& r) const {
    if (plan.segment_queries) fail("mask", "got two segments rules, expected at most one");
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

  void add_relative(std::int64_t left, std::int64_t right, const Diagonal& diagonal, const char* what) const {
    plan.intervals.push_back({true, left, right, lower_diagonal(diagonal, what, plan.B), nullptr, nullptr, nullptr});
  }
};

// The segment that holds query i: the last one starting at or before it that is not empty; -1 past the end.
std::int64_t segment_of(const std::vector<std::int64_t>& cu, std::int64_t i) {
  if (i >= cu.back()) return -1;
  return std::upper_bound(cu.begin(), cu.end(), i) - cu.begin() - 1;
}

// Calls f(t0, t1, q0, q1, k0, k1) for runs of queries i + t that share a segment; k1 < 0 for queries in none.
template <class F>
void for_segments(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, F&& f) {
  if (!plan.segment_queries)
    return f(0, count, std::int64_t{0}, plan.M, std::int64_t{0}, plan.key_lengths ? plan.key_lengths[b] : plan.N);
  const auto& cq = *plan.segment_queries;
  const auto& ck = *plan.segment_keys;
  for (std::int64_t t = 0; t < count;) {
    const std::int64_t s = segment_of(cq, i + t);
    if (s < 0) return f(t, count, std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, std::int64_t{-1});
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t end = std::min(count, cq[at + 1] - i);
    f(t, end, cq[at], cq[at + 1], ck[at], ck[at + 1]);
    t = end;
  }
}

std::int64_t position_offset(const PositionPlan& position, std::int64_t b, std::int64_t q0, std::int64_t q1,
                             std::int64_t k0, std::int64_t k1) {
  if (position.offsets) return per_batch(position.offsets, b) + k0 - q0;
  return position.align == Align::first_key ? k0 - q0 : k1 - q1;
}

}  // namespace

PositionPlan lower_diagonal(const Diagonal& diagonal, const char* what, std::int64_t B) {
  check_per_batch((std::string(what) + " offsets").c_str(), diagonal.offsets, B);
  if (diagonal.offsets)
    for (const std::int64_t offset : *diagonal.offsets)
      if (offset > kFar || offset < -kFar)
        fail("mask", std::string(what) + " offset is " + std::to_string(offset) + ", too far from the keys");
  return {diagonal.align, diagonal.offsets};
}

MaskPlan::MaskPlan(const Mask& mask, std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys)
    : memory_(room_.data(), room_.size()),
      B(batch),
      M(queries),
      N(keys),
      intervals(&memory_),
      blocks(&memory_),
      denses(&memory_) {
  for (const MaskRule& rule : mask.rules) std::visit(Lowering{*this, heads}, rule);
}

bool MaskPlan::ragged_keys() const {
  const auto differs = [](const SharedInts& x) { return x && x->size() > 1; };
  return key_lengths != nullptr || std::any_of(intervals.begin(), intervals.end(), [&](const IntervalRule& rule) {
           return differs(rule.starts) || differs(rule.ends) || differs(rule.prefix) || differs(rule.position.offsets);
         });
}

void fill_intervals(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, std::int64_t* lo,
                    std::int64_t* hi) {
  for_segments(plan, b, i, count, [&](auto t0, auto t1, auto q0, auto q1, auto k0, auto k1) {
    for (auto t = t0; t < t1; ++t) {
      lo[t] = k0;
      hi[t] = std::max(k1, std::int64_t{0});
    }
    if (k1 < 0) return;
    for (const IntervalRule& rule : plan.intervals) {
      if (!rule.from_position) {
        const std::int64_t start = rule.starts ? per_batch(rule.starts, b) : 0;
        const std::int64_t end = rule.ends ? per_batch(rule.ends, b) : plan.N;
        for (auto t = t0; t < t1; ++t) {
          lo[t] = std::max(lo[t], start);
          hi[t] = std::min(hi[t], end);
        }
        continue;
      }
      const std::int64_t p0 = i + position_offset(rule.position, b, q0, q1, k0, k1);
      const std::int64_t left = rule.left == kUnlimited ? kFar : std::min(rule.left, kFar);
      const std::int64_t right = rule.right == kUnlimited ? kFar : std::min(rule.right, kFar);
      const std::int64_t prefix = rule.prefix ? k0 + per_batch(rule.prefix, b) : 0;
      for (auto t = t0; t < t1; ++t) {
        lo[t] = std::max(lo[t], p0 + t - left);
        hi[t] = std::min(hi[t], std::max(p0 + t + right + 1, prefix));
      }
    }
  });
  for (std::int64_t t = 0; plan.row_lo && t < count; ++t) {
    lo[t] = std::max(lo[t], plan.row_lo[b * plan.M + i + t]);
    hi[t] = std::min(hi[t], plan.row_hi[b * plan.M + i + t]);
  }
}

void fill_positions(const MaskPlan& plan, const PositionPlan& position, std::int64_t b, std::int64_t i,
                    std::int64_t count, std::int64_t* p) {
  for_segments(plan, b, i, count, [&](auto t0, auto t1, auto q0, auto q1, auto k0, auto k1) {
    const std::int64_t p0 = k1 < 0 ? i : i + position_offset(position, b, q0, q1, k0, k1);
    for (auto t = t0; t < t1; ++t) p[t] = p0 + t;
  });
}

Coverage hole_coverage(const MaskPlan& plan, std::int64_t b, std::int64_t h0, std::int64_t h1, std::int64_t i0,
                       std::int64_t i1, std::int64_t j0, std::int64_t j1) {
  static_cast<void>(b);
  bool all = plan.denses.empty();
  for (const BlocksRule& r : plan.blocks) {
    bool any = false;
    for (std::int64_t h = r.heads == 1 ? 0 : h0; h < (r.heads == 1 ? 1 : h1); ++h)
      for (std::int64_t y = i0 / r.block_queries; y <= (i1 - 1) / r.block_queries; ++y)
        for (std::int64_t x = j0 / r.block_keys; x <= (j1 - 1) / r.block_keys; ++x) {
          const bool set = (*r.bits)[static_cast<std::size_t>((h * r.rows + y) * r.cols + x)] != 0;
          any |= set;
          all &= set;
        }
    if (!any) return Coverage::none;
  }
  return all ? Coverage::all : Coverage::some;
}

void hide_holes(const MaskPlan& plan, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0,
                std::int64_t count, float* scores) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (const BlocksRule& r : plan.blocks) {
    const std::int64_t row = ((r.heads == 1 ? 0 : h) * r.rows + i / r.block_queries) * r.cols;
    for (std::int64_t c = 0; c < count; ++c)
      if (!(*r.bits)[static_cast<std::size_t>(row + (j0 + c) / r.block_keys)]) scores[c] = kHidden;
  }
  for (const DenseRule& r : plan.denses) {
    const std::uint8_t* row = r.data + b * r.strides[0] + h * r.strides[1] + i * r.strides[2] + j0 * r.strides[3];
    for (std::int64_t c = 0; c < count; ++c)
      if (!row[c * r.strides[3]]) scores[c] = kHidden;
  }
}

}  // namespace attend
