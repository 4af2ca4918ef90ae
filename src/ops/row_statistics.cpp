// Row statistics: where queries stand, tokens as numbers that floats hold, and the results.
#include "ops/row_statistics.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "core/mask_plan.hpp"
#include "ops/attention_call.hpp"

namespace attend {
namespace {

constexpr float kNobody = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;  // numbers that floats tell apart
constexpr std::int64_t kWidest = std::int64_t{1} << 40;      // a width that adds to any position

std::int64_t token_row(const AttentionProblem& p) {
  return divide_up(p.N, kKeyTile) * kKeyTile;
}
std::int64_t token_floats(const RowStatistics& wanted, const AttentionProblem& p) {
  return wanted.options.tokens.empty() ? 0 : checked_product("tokens", {2, p.B, token_row(p)});
}

bool lies_in_order(const MutableView& rows) {
  return rows.strides == contiguous_strides(rows.shape);
}
std::int64_t row_floats(const RowStatistics& wanted) {  // where the kernels cannot write to the view itself
  const auto& [B, H, M, count] = wanted.rows.shape;
  return lies_in_order(wanted.rows) ? 0 : checked_product("statistics", {B, H, M, count});
}

}  // namespace

void check_statistics(const char* op, const View& q, const View& k, const RowStatistics& wanted) {
  const std::int64_t B = q.batch(), N = k.length();
  check_writable(op, "statistics", wanted.rows);
  check_dtype(op, "statistics", wanted.rows.dtype, accumulator_dtype(q.dtype));
  check_shape(op, "statistics", wanted.rows.shape, {B, q.heads(), q.length(), kRowStatistics});
  const RowStatisticsOptions& options = wanted.options;
  check_at_least(op, "statistics: sink_tokens", options.sink_tokens, 0);
  check_at_least(op, "statistics: local_width", options.local_width, 0);
  check_at_least(op, "statistics: recent_width", options.recent_width, 0);
  lower_diagonal(options.diagonal, "statistics", B);
  const auto tokens = static_cast<std::int64_t>(options.tokens.size());
  if (tokens != 0 && tokens != N && tokens != checked_product("tokens", {B, N}))
    fail(op, "statistics: there are " + std::to_string(tokens) + " tokens, expected one for each of " +
                 std::to_string(N) + " keys, in each of " + std::to_string(B) + " sequences or once for all");
  if (tokens != 0 && N > kMostTokens)
    fail(op, "statistics: tokens of " + std::to_string(N) + " keys, expected at most " + std::to_string(kMostTokens));
}

StatisticsRows::StatisticsRows(const RowStatistics& wanted, const AttentionProblem& p)
    : wanted_(wanted),
      positions_(checked_product("positions", {p.B, p.M})),
      query_tokens_(checked_product("positions", {p.B, p.M})),
      tokens_(token_floats(wanted, p)),
      rows_(row_floats(wanted)) {
  const RowStatisticsOptions& options = wanted.options;
  const PositionPlan position = lower_diagonal(options.diagonal, "statistics", p.B);
  for (std::int64_t b = 0; b < p.B; ++b) fill_positions(*p.mask, position, b, 0, p.M, positions_.data() + b * p.M);
  plan_.positions = positions_.data();
  plan_.query_tokens = query_tokens_.data();
  plan_.sink_tokens = options.sink_tokens;
  plan_.sinks_apart = options.sinks_apart;
  plan_.local_width = std::min(options.local_width, kWidest);
  plan_.recent_width = std::min(options.recent_width, kWidest);
  plan_.reach = std::max({plan_.local_width, plan_.recent_width, std::int64_t{1}});
  plan_.rows = lies_in_order(wanted.rows) ? static_cast<float*>(wanted.rows.data) : rows_.data();
  if (!options.tokens.empty()) number_tokens(p);
}

void StatisticsRows::number_tokens(const AttentionProblem& p) {
  const std::vector<std::int32_t>& given = wanted_.options.tokens;
  const bool shared = std::ssize(given) == p.N;
  plan_.tokens = tokens_.data();
  plan_.token_row = token_row(p);
  plan_.to_before = p.B * plan_.token_row;
  std::fill_n(tokens_.data(), 2 * plan_.to_before, kNobody);
  std::vector<float> numbers(static_cast<std::size_t>(p.N));
  for (std::int64_t b = 0; b < p.B; ++b) {
    if (b == 0 || !shared) {
      const auto first = given.begin() + (shared ? 0 : b * p.N);
      std::vector<std::int32_t> distinct(first, first + p.N);
      std::ranges::sort(distinct);
      distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
      for (std::int64_t j = 0; j < p.N; ++j)
        numbers[static_cast<std::size_t>(j)] =
            static_cast<float>(std::ranges::lower_bound(distinct, first[j]) - distinct.begin());
    }
    float *tokens = tokens_.data() + b * plan_.token_row, *before = tokens + plan_.to_before;
    const std::int64_t sinks = plan_.sinks_apart ? std::min(plan_.sink_tokens, p.N) : 0;
    for (std::int64_t j = sinks; j < p.N; ++j) {
      tokens[j] = numbers[static_cast<std::size_t>(j)];
      if (j > 0) before[j] = numbers[static_cast<std::size_t>(j - 1)];
    }
    for (std::int64_t i = 0; i < p.M; ++i) {
      const std::int64_t position = positions_[b * p.M + i];
      query_tokens_[b * p.M + i] =
          position >= 0 && position < p.N ? numbers[static_cast<std::size_t>(position)] : kNobody;
    }
  }
}

void StatisticsRows::finish() const {
  const MutableView& to = wanted_.rows;
  if (lies_in_order(to)) return;
  const float* from = rows_.data();
  for (std::int64_t b = 0; b < to.batch(); ++b)
    for (std::int64_t h = 0; h < to.heads(); ++h)
      for (std::int64_t i = 0; i < to.length(); ++i)
        for (std::int64_t n = 0; n < kRowStatistics; ++n) store(to, b, h, i, n, static_cast<double>(*from++));
}

}  // namespace attend
