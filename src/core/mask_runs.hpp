// What lowering a mask and asking it share: runs of queries that count positions together, and intervals.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/mask_plan.hpp"

namespace attend {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;  // adding two of them cannot wrap

inline std::int64_t per_batch(const SharedInts& values, std::int64_t b) {
  return values->size() == 1 ? (*values)[0] : (*values)[static_cast<std::size_t>(b)];
}

// Queries [q0, q1) and keys [k0, k1) that count positions together; k1 < 0: these queries are in no segment.
struct MaskRun {
  std::int64_t q0, q1, k0, k1;
};

// The segment that holds query i: the last one starting at or before it that is not empty; -1 past the end.
inline std::int64_t segment_of(const std::vector<std::int64_t>& cu, std::int64_t i) {
  if (i >= cu.back()) return -1;
  return std::upper_bound(cu.begin(), cu.end(), i) - cu.begin() - 1;
}

// Calls f(t0, t1, run) for queries i + t that share a run.
template <class F>
void for_runs(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, F&& f) {
  if (!plan.segment_queries)
    return f(std::int64_t{0}, count, MaskRun{0, plan.M, 0, plan.key_lengths ? plan.key_lengths[b] : plan.N});
  const auto& cq = *plan.segment_queries;
  const auto& ck = *plan.segment_keys;
  for (std::int64_t t = 0; t < count;) {
    const std::int64_t s = segment_of(cq, i + t);
    if (s < 0) return f(t, count, MaskRun{0, 0, 0, -1});
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t end = std::min(count, cq[at + 1] - i);
    f(t, end, MaskRun{cq[at], cq[at + 1], ck[at], ck[at + 1]});
    t = end;
  }
}

inline std::int64_t position_offset(const PositionPlan& position, std::int64_t b, const MaskRun& run) {
  if (position.offsets) return per_batch(position.offsets, b) + run.k0 - run.q0;
  return position.align == Align::first_key ? run.k0 - run.q0 : run.k1 - run.q1;
}

// Narrows [lo[t], hi[t]) for queries i + t of a run. Along a run, neither bound ever falls.
inline void narrow(const IntervalRule& rule, std::int64_t b, std::int64_t i, std::int64_t t0, std::int64_t t1,
                   const MaskRun& run, std::int64_t* lo, std::int64_t* hi) {
  using From = IntervalRule::From;
  if (rule.from == From::keys || rule.from == From::segment) {
    const bool keys = rule.from == From::keys;
    const std::int64_t start = keys ? (rule.starts ? per_batch(rule.starts, b) : 0) : run.k0 + rule.left;
    const std::int64_t end = keys ? (rule.ends ? per_batch(rule.ends, b) : kFar) : run.k0 + rule.right;
    for (auto t = t0; t < t1; ++t) {
      lo[t] = std::max(lo[t], start);
      hi[t] = std::min(hi[t], end);
    }
    return;
  }
  const std::int64_t p0 = i + position_offset(rule.position, b, run);
  if (rule.from == From::chunk) {
    for (auto t = t0; t < t1; ++t) {
      const std::int64_t p = p0 + t - run.k0;
      const std::int64_t chunk = p < 0 ? -1 : p / rule.left;  // before the first key there is nothing to see
      hi[t] = std::min(hi[t], run.k0 + (chunk + 1) * rule.left);
      if (chunk > rule.right) lo[t] = std::max(lo[t], run.k0 + (chunk - rule.right) * rule.left);
    }
    return;
  }
  const std::int64_t left = rule.left == kUnlimited ? kFar : std::min(rule.left, kFar);
  const std::int64_t right = rule.right == kUnlimited ? kFar : std::min(rule.right, kFar);
  const std::int64_t prefix = rule.prefix ? run.k0 + per_batch(rule.prefix, b) : 0;
  for (auto t = t0; t < t1; ++t) {
    lo[t] = std::max(lo[t], p0 + t - left);
    hi[t] = std::min(hi[t], std::max(p0 + t + right + 1, prefix));
  }
}

// The positions of a list that lie in [from, to).
struct Listed {
  const std::int64_t *begin, *end;
  bool any() const { return begin != end; }
  std::int64_t count() const { return end - begin; }
};
inline Listed listed(const SharedInts& positions, std::int64_t from, std::int64_t to) {
  const std::int64_t* first = positions->data();
  const std::int64_t* last = first + positions->size();
  const std::int64_t* begin = std::lower_bound(first, last, from);
  return {begin, std::lower_bound(begin, last, std::max(from, to))};
}

}  // namespace attend
