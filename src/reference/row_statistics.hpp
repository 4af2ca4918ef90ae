// The statistics of a row of weights as their formulas say them, in double.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "attend/row_statistics.hpp"

namespace attend::reference {

// Of one row's weights, [N], in batch b, whose query stands at key `position`. Arguments must have been checked.
std::array<double, kRowStatistics> row_statistics(std::span<const double> weights, std::int64_t position,
                                                  std::int64_t b, const RowStatisticsOptions& options);

}  // namespace attend::reference
