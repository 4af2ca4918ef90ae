// The statistics of a row of weights as their formulas say them, in double.
#include "reference/row_statistics.hpp"

#include <cmath>
#include <cstddef>

namespace attend::reference {

std::array<double, kRowStatistics> row_statistics(std::span<const double> weights, std::int64_t position,
                                                  std::int64_t b, const RowStatisticsOptions& options) {
  const std::int64_t N = std::ssize(weights);
  std::array<double, kRowStatistics> result{};
  const auto of = [&](RowStatistic what) -> double& { return result[static_cast<std::size_t>(what)]; };
  const std::int64_t first_token = std::ssize(options.tokens) == N ? 0 : b * N;
  const auto token = [&](std::int64_t j) { return options.tokens[static_cast<std::size_t>(first_token + j)]; };
  const bool known = !options.tokens.empty() && position >= 0 && position < N;
  of(RowStatistic::argmax) = -1;
  for (std::int64_t j = 0; j < N; ++j) {
    const double w = weights[static_cast<std::size_t>(j)];
    if (w == 0) continue;
    of(RowStatistic::mass) += w;
    of(RowStatistic::entropy) -= w * std::log(w);
    of(RowStatistic::distance_mean) += w * static_cast<double>(position - j);
    if (!(w <= of(RowStatistic::maximum))) {
      of(RowStatistic::maximum) = w;
      of(RowStatistic::argmax) = static_cast<double>(j);
    }
    const bool sink = j < options.sink_tokens;
    if (sink) of(RowStatistic::sink_tokens) += w;
    if (sink && options.sinks_apart) continue;
    const std::int64_t distance = position < j ? j - position : position - j;
    if (j == position) of(RowStatistic::self) += w;
    if (j == position - 1) of(RowStatistic::previous) += w;
    if (distance <= options.local_width) of(RowStatistic::local) += w;
    if (distance <= options.recent_width) of(RowStatistic::recent) += w;
    if (known && j != position && token(j) == token(position)) of(RowStatistic::duplicate) += w;
    if (known && j > 0 && token(j - 1) == token(position)) of(RowStatistic::induction) += w;
  }
  const double mass = of(RowStatistic::mass);
  if (mass == 0) return result;
  const double mean = of(RowStatistic::distance_mean) /= mass;
  for (std::int64_t j = 0; j < N; ++j) {
    const double away = static_cast<double>(position - j) - mean;
    of(RowStatistic::distance_variance) += weights[static_cast<std::size_t>(j)] / mass * away * away;
  }
  return result;
}

}  // namespace attend::reference
