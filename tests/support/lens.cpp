// What the lens must show of a problem: from the dense weights of the truth, with bounds for each number.
#include "support/lens.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/random.hpp"
#include "reference/attention.hpp"
#include "reference/row_statistics.hpp"
#include "support/compare.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr const char* kNames[kRowStatistics] = {
    "mass",  "entropy", "distance_mean", "distance_variance", "sink_tokens", "self",  "previous",
    "local", "recent",  "duplicate",     "induction",         "maximum",     "argmax"};

// How far each statistic may be from the truth, when a weight is off by at most `error` of itself. The engine counts
// distances from the largest weight, up to a vector's length from it: from any that the error may make the largest.
struct StatisticBounds {
  double entropy, mean, variance;
};
StatisticBounds bounds_of(std::span<const double> weights, double error) {
  constexpr double kLanes = 16;
  StatisticBounds bounds{};
  double mass = 0, largest = 0, first = 0, last = 0;
  for (const double w : weights) largest = std::max(largest, w);
  for (std::size_t j = weights.size(); j-- > 0;)
    if (weights[j] >= largest * (1 - 2 * error)) first = static_cast<double>(j);
  for (std::size_t j = 0; j < weights.size(); ++j)
    if (weights[j] >= largest * (1 - 2 * error)) last = static_cast<double>(j);
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const double w = weights[j], at = static_cast<double>(j), away = std::max(at - first, last - at) + kLanes;
    if (w == 0) continue;
    mass += w;
    bounds.entropy += error * w * (std::abs(std::log(w)) + 1);
    bounds.mean += error * w * away;
    bounds.variance += 2 * error * w * away * away;
  }
  if (mass == 0) return {};
  return {bounds.entropy, bounds.mean / mass, bounds.variance / mass};
}

std::string text(const char* what, int64_t row, double got, double expected, double bound) {
  return std::string(what) + " of row " + std::to_string(row) + " is " + std::to_string(got) + ", expected " +
         std::to_string(expected) + " within " + std::to_string(bound);
}

}  // namespace

std::vector<std::int32_t> drawn_tokens(const Case& c) {
  std::vector<std::int32_t> tokens;
  for (int64_t n = 0; n < c.B * c.N; ++n)
    tokens.push_back(static_cast<std::int32_t>(normal(77, static_cast<std::uint64_t>(n)) * 2) * 1000003 - 7);
  return tokens;
}

std::string compare_statistics(const Problem& problem, const Truth& truth, const RowStatisticsOptions& options,
                               const Tensor& rows) {
  const Case& c = problem.info;
  const auto& mask = problem.options(DType::f32).mask;
  for (int64_t row = 0; row < c.B * c.H * c.M; ++row) {
    const int64_t b = row / c.M / c.H, i = row % c.M;
    const std::span weights(truth.results.weights.data() + row * c.N, static_cast<std::size_t>(c.N));
    const auto expected =
        reference::row_statistics(weights, reference::key_position(mask, options.diagonal, b, i, c.M, c.N), b, options);
    const float* got = rows.data<float>() + row * kRowStatistics;
    const auto argmax = static_cast<int64_t>(got[static_cast<int>(RowStatistic::argmax)]);
    const double error = 32 * unit_roundoff(DType::f32) * truth.magnitudes.score[static_cast<std::size_t>(row)];
    const StatisticBounds bounds = bounds_of(weights, error);
    for (int64_t n = 0; n < kRowStatistics; ++n) {
      const double want = expected[static_cast<std::size_t>(n)], have = static_cast<double>(got[n]);
      double bound = error * want + 1e-36;
      switch (static_cast<RowStatistic>(n)) {
        case RowStatistic::entropy:
          bound = bounds.entropy + 1e-36;
          break;
        case RowStatistic::distance_mean:
          bound = bounds.mean + half_ulp(DType::f32, want);
          break;
        case RowStatistic::distance_variance:
          bound = bounds.variance + half_ulp(DType::f32, want);
          break;
        case RowStatistic::argmax: {  // a key whose weight is the largest as far as the engine can tell
          const double largest = expected[static_cast<std::size_t>(RowStatistic::maximum)];
          if (largest == 0
                  ? argmax == -1
                  : argmax >= 0 && argmax < c.N && weights[static_cast<std::size_t>(argmax)] >= largest * (1 - error))
            continue;
          bound = 0;
          break;
        }
        default:
          break;
      }
      if (!(std::abs(have - want) <= bound)) return text(kNames[n], row, have, want, bound);
    }
  }
  return "";
}

}  // namespace attend::test
