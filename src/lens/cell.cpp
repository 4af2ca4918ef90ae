// The arithmetic of one weight, step by step, in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "core/mask_plan.hpp"
#include "core/softmax_state.hpp"
#include "lens/state.hpp"

namespace attend {
namespace {

std::vector<double> numbers_of(const View& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  std::vector<double> numbers;
  for (std::int64_t d = 0; d < x.dim(); ++d) numbers.push_back(load(x, b, h, i, d));
  return numbers;
}

double load_broadcast(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const auto at = [&](std::size_t d, std::int64_t place) { return x.shape[d] == 1 ? 0 : place; };
  return load(x, at(0, b), at(1, h), at(2, i), at(3, j));
}

double bias_of(const AttentionOptions& options, LensHead head, std::int64_t i, std::int64_t j, std::int64_t M) {
  if (options.distance_bias) return load_broadcast(*options.distance_bias, 0, head.head, 0, M - 1 + j - i);
  return options.bias ? load_broadcast(*options.bias, head.batch, head.head, i, j) : 0;
}

bool sees(const MaskPlan& mask, LensHead head, std::int64_t i, std::int64_t j) {
  std::int64_t lo = 0, hi = 0;
  fill_intervals(mask, head.batch, i, 1, &lo, &hi);
  float score = 0;
  if (mask.has_holes()) hide_holes(mask, head.batch, head.head, i, j, 1, &score);
  return j >= lo && j < hi && score == 0;
}

double edited(const ScoreRule& rule, double score, LensHead head, std::int64_t i, std::int64_t j) {
  if (rule.forward_f64) {
    rule.forward_f64({&score, 1, 1, 1, head.batch, head.head, i, j});
    return score;
  }
  auto narrow = static_cast<float>(score);
  rule.forward_f32({&narrow, 1, 1, 1, head.batch, head.head, i, j});
  return static_cast<double>(narrow);
}

}  // namespace

CellArithmetic Lens::cell(LensHead head, std::int64_t query, std::int64_t key) const {
  const State& s = *state_;
  s.check_head(head);
  s.checked({query, 1, key, 1});
  const AttentionOptions& options = s.options;
  const AttentionCall& call = s.call();
  const auto [b, h] = head;
  const std::int64_t hk = h / (call.q.heads() / call.k.heads());
  CellArithmetic cell{};
  cell.q = numbers_of(call.q, b, h, query);
  if (s.cached) {
    std::vector<float> k(static_cast<std::size_t>(call.k.dim())), v(static_cast<std::size_t>(call.v.dim()));
    s.cached->read(*s.cache, b, hk, key, k.data(), v.data());
    cell.k.assign(k.begin(), k.end());
    cell.v.assign(v.begin(), v.end());
  } else {
    cell.k = numbers_of(call.k, b, hk, key);
    if (s.lens.v) cell.v = numbers_of(*s.lens.v, b, hk, key);
  }
  for (std::size_t d = 0; d < cell.q.size(); ++d) {
    cell.products.push_back(cell.q[d] * cell.k[d]);
    cell.dot += cell.products.back();
  }
  cell.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(call.q.dim())));
  cell.scaled = cell.scale * cell.dot;
  cell.softcap = options.softcap;
  cell.capped = cell.softcap == 0 ? cell.scaled : cell.softcap * std::tanh(cell.scaled / cell.softcap);
  cell.ruled = options.rule ? edited(options.rule, cell.capped, head, query, key) : cell.capped;
  cell.bias = bias_of(options, head, query, key, s.M());
  if (options.alibi_slopes) {
    std::int64_t position = 0;
    fill_positions(call.mask, lower_diagonal(options.alibi_diagonal, "ALiBi", call.q.batch()), b, query, 1, &position);
    cell.alibi_slope = load_broadcast(*options.alibi_slopes, b, h, 0, 0);
    cell.alibi_distance = static_cast<double>(position - key);
    cell.alibi = cell.alibi_slope * std::abs(cell.alibi_distance);
  }
  const double hidden = -std::numeric_limits<double>::infinity();
  cell.score = cell.bias == hidden ? hidden : cell.ruled + cell.bias - cell.alibi;
  cell.visible = sees(call.mask, head, query, key) && cell.score != hidden;
  cell.lse = load(s.lse_of(head), b, h, query, 0);
  if (options.sinks) {
    cell.sink = load(*options.sinks, 0, h, 0, 0);
    cell.sink_weight = std::exp(*cell.sink - cell.lse);
  }
  cell.weight = cell.visible ? std::exp(cell.score - cell.lse) : 0;
  // An LSE that f32 is too narrow for says nothing of the weight: that is made from the row's maximum and sum.
  if (!s.in_double() && !lse_suffices(static_cast<float>(cell.lse)))
    cell.weight = static_cast<double>(*zoom(head, {query, 1, key, 1}).data<float>());
  for (const double x : cell.v) cell.weighted.push_back(cell.weight * x);
  return cell;
}

}  // namespace attend
