// What a lens shows of dense weights, in double, a row at a time: the definition of maps, top keys and histograms.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attend/attention.hpp"

namespace attend::reference {

// Calls f(i, weights, visible) for queries [first, first + count) of head h in batch b; both spans are [N].
using WeightRow = std::function<void(std::int64_t, std::span<const double>, std::span<const char>)>;
void for_weight_rows(const View& q, const View& k, const AttentionOptions& options, std::int64_t b, std::int64_t h,
                     std::int64_t first, std::int64_t count, const WeightRow& f);

// Adds the weights of the keys of an area to their `cells` cells: sums and maxima.
void pool_row(std::span<const double> weights, std::int64_t cells, double* mass, double* peak);
// The `count` largest weights above 0, of equal ones the lower key first; the rest -1 and 0. Keys count from `first`.
void top_row(std::span<const double> weights, std::int64_t first, std::int64_t count, std::int64_t* keys,
             double* largest);
// Adds to counts, [bins + 1]: weights in [2^-(n + 1), 2^-n), 1 in the first, and the visible ones that are smaller.
void count_row(std::span<const double> weights, std::span<const char> visible, std::int64_t bins, std::int64_t* counts);

}  // namespace attend::reference
