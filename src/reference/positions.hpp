// Positions by their formulas, in double, over views of any dtype.
#pragma once

#include "attend/positions.hpp"

namespace attend::reference {

void sinusoidal(const MutableView& out, const SinusoidalOptions& options);
void add_positions(const View& x, const View& table, const MutableView& y, std::int64_t first_position);
void add_positions_backward(const View& dy, const MutableView& dtable, std::int64_t first_position);
void t5_bias(const View& table, const MutableView& out, std::int64_t first_distance, const T5Buckets& buckets);
void t5_bias_backward(const View& dout, const MutableView& dtable, std::int64_t first_distance,
                      const T5Buckets& buckets);

// One value of a row of sinusoids.
double sinusoid(std::int64_t position, std::int64_t d, std::int64_t dim, double theta);

}  // namespace attend::reference
