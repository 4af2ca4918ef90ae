// What Reformer's hashes are, and how much of exact attention they find.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attend/reformer.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/threads.hpp"
#include "reference/reformer.hpp"
#include "variants/lsh.hpp"

namespace attend {

std::vector<std::int64_t> reformer_factors(std::int64_t length, const ReformerOptions& options) {
  return LshPlan("reformer_factors", 1, length, 1, options).factors;
}

Tensor reformer_rotations(std::int64_t heads, std::int64_t length, std::int64_t dim, const ReformerOptions& options) {
  return lsh_rotations(LshPlan("reformer_rotations", heads, length, dim, options));
}

std::vector<std::int32_t> reformer_hashes(View q, const ReformerOptions& options) {
  const char* op = "reformer_hashes";
  check_readable(op, "q", q);
  const LshPlan plan(op, q.heads(), q.length(), q.dim(), options);
  if (q.dtype == DType::f64) return reference::reformer_hashes(q, lsh_rotations(plan), plan.factors);
  const std::int64_t L = q.length();
  std::vector<std::int32_t> hashes(
      static_cast<std::size_t>(checked_product(op, {plan.rounds, q.batch(), q.heads(), L})));
  if (hashes.empty()) return hashes;
  const std::int64_t heads = q.batch() * q.heads();
  const WidenedInput q_in(q);
  const Tensor rotations = lsh_rotations(plan);
  SortedHeads sorted(plan, 1);
  for (std::int64_t n = 0; n < plan.rounds * heads; ++n) {
    sorted.sort(q_in, rotations, n / heads, n % heads, 1);
    std::copy_n(sorted.buckets(0), L, hashes.data() + n * L);
  }
  return hashes;
}

namespace {

// The share of token i's exact weight that lies on tokens marked in `met`; -1 when there is nobody it could see.
double recall_of(const LshPlan& plan, const WidenedInput& q_in, double scale, std::int64_t b, std::int64_t h,
                 std::int64_t i, const std::vector<char>& met) {
  const std::int64_t last = plan.causal ? i : plan.L, step = q_in.step();
  const float* q = q_in.row(b, h, i);
  std::vector<double> scores(static_cast<std::size_t>(plan.L), -HUGE_VAL);
  double top = -HUGE_VAL;
  for (std::int64_t j = 0; j < last; ++j) {
    if (j == i) continue;
    const float* k = q_in.row(b, h, j);
    double product = 0, squares = 0;
    for (std::int64_t d = 0; d < plan.D; ++d) {
      product += static_cast<double>(q[d * step]) * static_cast<double>(k[d * step]);
      squares += static_cast<double>(k[d * step]) * static_cast<double>(k[d * step]);
    }
    double& score = scores[static_cast<std::size_t>(j)];
    score = squares > 0 ? scale * product / std::sqrt(squares) : 0;
    top = std::max(top, score);
  }
  double found = 0, all = 0;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double weight = scores[j] == -HUGE_VAL ? 0 : std::exp(scores[j] - top);
    all += weight;
    if (met[j]) found += weight;
  }
  return all > 0 ? found / all : -1;
}

}  // namespace

double reformer_recall(View q, const ReformerOptions& options, std::int64_t samples) {
  const char* op = "reformer_recall";
  check_readable(op, "q", q);
  if (options.scale && !std::isfinite(*options.scale))
    fail(op, "scale is " + std::to_string(*options.scale) + ", expected a finite number");
  if (q.dtype == DType::f64) fail(op, "measures f32, f16 and bf16, got f64");
  if (samples < 1) fail(op, "samples is " + std::to_string(samples) + ", expected at least 1");
  const LshPlan plan(op, q.heads(), q.length(), q.dim(), options);
  if (q.batch() == 0 || q.heads() == 0 || q.length() == 0) return 1;
  const std::int64_t heads = q.batch() * q.heads(), L = q.length();
  const WidenedInput q_in(q);
  const Tensor rotations = lsh_rotations(plan);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim())));
  samples = std::min(samples, L);
  double sum = 0;
  std::int64_t counted = 0;
  SortedHeads sorted(plan, 1);
  std::vector<std::vector<char>> met(static_cast<std::size_t>(samples));
  std::vector<double> recalls(static_cast<std::size_t>(samples));
  const auto token = [&](std::int64_t s) { return L - 1 - s * L / samples; };
  for (std::int64_t head = 0; head < heads; ++head) {
    for (auto& marks : met) marks.assign(static_cast<std::size_t>(L), 0);
    for (std::int64_t round = 0; round < plan.rounds; ++round) {
      sorted.sort(q_in, rotations, round, head, 1);
      for (std::int64_t s = 0; s < samples; ++s) {
        const std::int64_t t = sorted.rank(0)[token(s)];
        for (std::int64_t n = sorted.lo(0)[t]; n < sorted.hi(0)[t]; ++n)
          if (n != t) met[static_cast<std::size_t>(s)][static_cast<std::size_t>(sorted.order(0)[n])] = 1;
      }
    }
    parallel_for(samples, [&](std::int64_t s, int) {
      const auto n = static_cast<std::size_t>(s);
      recalls[n] = recall_of(plan, q_in, scale, head / plan.H, head % plan.H, token(s), met[n]);
    });
    for (const double recall : recalls) {
      sum += std::max(recall, 0.0);
      counted += recall >= 0;
    }
  }
  return counted > 0 ? sum / static_cast<double>(counted) : 1;
}

}  // namespace attend
