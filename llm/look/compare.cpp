// Two runs side by side.
#include <algorithm>
#include <string>

#include "attend/error.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/predictions.hpp"

namespace attend::llm {
namespace {

LossChange loss_change(const Look& before, const Look& after, const TokenRange& range) {
  LossChange change{range};
  const auto add = [&](const Look& look, double& mean) {
    const std::int64_t end = std::min(range.end, look.length());
    std::int64_t count = 0;
    for (std::int64_t i = std::max<std::int64_t>(range.begin, 1); i < end; ++i, ++count)
      mean += static_cast<double>(look.losses()[static_cast<std::size_t>(i)]);
    if (count > 0) mean /= static_cast<double>(count);
    return count;
  };
  add(before, change.before);
  change.tokens = add(after, change.after);
  return change;
}

}  // namespace

LookComparison compare(const Look& before, const Look& after, std::span<const TokenRange> ranges, std::int64_t top) {
  LookComparison result;
  result.position = after.length() - 1;
  const Look::State &a = LookAccess::state(before), &b = LookAccess::state(after);
  const auto predicts = [](const Look::State& s) { return s.config().causal || s.config().masked_head; };
  if (predicts(a) && predicts(b)) {
    const std::vector<float> x = before.next_logits(), y = after.next_logits();
    if (x.size() == y.size()) result.divergence = divergence(x, y);
    result.before = likeliest(a.model->tokenizer, probabilities(x), top);
    result.after = likeliest(b.model->tokenizer, probabilities(y), top);
  }
  if (a.options.losses && b.options.losses) {
    result.losses.push_back(loss_change(before, after, {0, std::max(before.length(), after.length()), "all tokens"}));
    for (const TokenRange& range : ranges) {
      if (range.begin < 0 || range.end < range.begin)
        throw InvalidArgument("compare: the range " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
                              ", expected a beginning of 0 or more and an end behind it");
      result.losses.push_back(loss_change(before, after, range));
    }
  }
  if (a.options.statistics && b.options.statistics && before.layers() == after.layers() &&
      before.heads() == after.heads())
    for (std::int64_t n = 0; n < kRowStatistics; ++n) {
      const std::vector<double> x = before.means(static_cast<RowStatistic>(n));
      std::vector<double> y = after.means(static_cast<RowStatistic>(n));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] -= x[i];
      result.statistics.push_back(std::move(y));
    }
  return result;
}

PooledMap difference(const PooledMap& a, const PooledMap& b) {
  const auto same = [](const LensArea& x, const LensArea& y) {
    return x.first_query == y.first_query && x.queries == y.queries && x.first_key == y.first_key && x.keys == y.keys;
  };
  if (a.rows != b.rows || a.cols != b.cols || !same(a.area, b.area))
    throw InvalidArgument("difference: maps of " + std::to_string(a.rows) + " x " + std::to_string(a.cols) + " and " +
                          std::to_string(b.rows) + " x " + std::to_string(b.cols) +
                          " cells, expected two that cover the same queries and keys");
  const auto minus = [](const Tensor& x, const Tensor& y) {
    Tensor result = x.clone();
    auto* to = result.data<float>();
    const auto* from = y.data<float>();
    for (std::int64_t i = 0; i < result.size(); ++i) to[i] -= from[i];
    return result;
  };
  return {a.area, a.rows, a.cols, a.finished && b.finished, minus(a.mass, b.mass), minus(a.peak, b.peak)};
}

}  // namespace attend::llm
