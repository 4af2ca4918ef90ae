// What the lens must show of a problem: from the dense weights of the truth, with bounds for each number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attend/row_statistics.hpp"
#include "support/naive.hpp"

namespace attend::test {

// Tokens of few kinds, so that many keys share one: [B, N].
std::vector<std::int32_t> drawn_tokens(const Case& c);

// "" or the first statistic of any row beyond its bound. `rows` are contiguous, [B, H, M, kRowStatistics] in f32.
std::string compare_statistics(const Problem& problem, const Truth& truth, const RowStatisticsOptions& options,
                               const Tensor& rows);

}  // namespace attend::test
