// Lowers a mask's plan to the plain data that kernels are given.
#include "cuda/device_mask.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "cuda/lower_mask.hpp"

namespace attend::cuda {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 28;

int clipped(std::int64_t x) {
  return static_cast<int>(std::clamp<std::int64_t>(x, -kFarKey, kFarKey));
}
int side(std::int64_t x) {
  return x == kUnlimited ? kFarKey : clipped(x);
}

int append(std::vector<int>& ints, const std::vector<std::int64_t>& values) {
  const auto first = static_cast<int>(ints.size());
  for (const std::int64_t x : values) ints.push_back(clipped(x));
  return first;
}
PerBatch per_batch_list(std::vector<int>& ints, const SharedInts& values) {
  if (!values) return {};
  return {append(ints, *values), values->size() == 1 ? 0 : 1};
}

// One number for all batches, or none.
bool is_single(const SharedInts& list) {
  return !list || list->size() == 1;
}

// Several rules as one, where they are the same for all batches and count from the same diagonal.
SimpleRule simple_rule(const MaskPlan& plan) {
  using From = IntervalRule::From;
  SimpleRule simple;
  simple.most = clipped(plan.N);
  if (plan.segment_queries) return simple;
  for (const IntervalRule& rule : plan.intervals) {
    if (!is_single(rule.starts) || !is_single(rule.ends) || !is_single(rule.prefix) ||
        !is_single(rule.position.offsets))
      return simple;
    if (rule.from == From::keys) {
      if (rule.starts) simple.least = std::max(simple.least, clipped(rule.starts->front()));
      if (rule.ends) simple.most = std::min(simple.most, clipped(rule.ends->front()));
    } else if (rule.from == From::position && (!rule.prefix || plan.intervals.size() == 1)) {
      const std::int64_t offset = rule.position.offsets                    ? rule.position.offsets->front()
                                  : rule.position.align == Align::last_key ? plan.N - plan.M
                                                                           : 0;
      simple.lo_add = std::max(simple.lo_add, clipped(offset - side(rule.left)));
      simple.hi_add = std::min(simple.hi_add, clipped(offset + side(rule.right) + 1));
      if (rule.prefix) simple.prefix = clipped(rule.prefix->front());
    } else {
      return simple;
    }
  }
  simple.is = 1;
  return simple;
}

}  // namespace

PerBatch lower_offsets(const PositionPlan& position, std::vector<int>& ints) {
  if (position.offsets)
    for (const std::int64_t x : *position.offsets)
      if (x < -kLongest || x > kLongest)
        fail("cuda::attention", "a diagonal's offset is " + std::to_string(x) + ", expected at most 2^28 on a GPU");
  return per_batch_list(ints, position.offsets);
}

void lower_mask(const MaskPlan& plan, DeviceMask& mask, std::vector<int>& ints) {
  constexpr const char* kOp = "cuda::attention";
  if (plan.M > kLongest || plan.N > kLongest) fail(kOp, "lengths above 2^28 are not supported on a GPU");
  if (plan.intervals.size() > kMostRules)
    fail(kOp, "the mask has " + std::to_string(plan.intervals.size()) + " interval rules, expected at most " +
                  std::to_string(kMostRules) + " on a GPU");
  mask.M = static_cast<int>(plan.M), mask.N = static_cast<int>(plan.N);
  mask.simple = simple_rule(plan);
  mask.rule_count = static_cast<int>(plan.intervals.size());
  using From = IntervalRule::From;
  for (std::size_t r = 0; r < plan.intervals.size(); ++r) {
    const IntervalRule& rule = plan.intervals[r];
    IntervalRule32& to = mask.rules[r];
    switch (rule.from) {
      case From::keys:
        to.from = IntervalRule32::keys;
        break;
      case From::position:
        to.from = IntervalRule32::position;
        break;
      case From::chunk:
        to.from = IntervalRule32::chunk;
        break;
      case From::segment:
        to.from = IntervalRule32::segment;
        break;
    }
    to.left = rule.from == From::position ? side(rule.left) : clipped(rule.left);
    to.right = rule.from == From::position ? side(rule.right) : clipped(rule.right);
    to.last_key = rule.position.align == Align::last_key ? 1 : 0;
    to.offsets = lower_offsets(rule.position, ints);
    to.starts = per_batch_list(ints, rule.starts);
    to.ends = per_batch_list(ints, rule.ends);
    to.prefix = per_batch_list(ints, rule.prefix);
  }
  if (plan.segment_queries) {
    // At least one, if an empty one: none would mean that there is no such rule.
    const auto with_one = [](std::vector<std::int64_t> cumulative) {
      if (cumulative.size() == 1) cumulative.push_back(cumulative.front());
      return cumulative;
    };
    mask.segment_queries = append(ints, with_one(*plan.segment_queries));
    mask.segments = static_cast<int>(ints.size()) - mask.segment_queries - 1;
    mask.segment_keys = append(ints, with_one(*plan.segment_keys));
  }
}

}  // namespace attend::cuda
