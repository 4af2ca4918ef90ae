// Numbers in rows and columns, as pictures show them: weights, differences, statistics of heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace attend::draw {

// What a cell holds besides a number. Both are drawn unlike each other and unlike zero.
inline constexpr double kMasked = std::numeric_limits<double>::quiet_NaN();   // the mask hides it
inline constexpr double kEvicted = -std::numeric_limits<double>::infinity();  // the cache has forgotten it

struct Grid {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;  // [rows, cols]

  double at(std::int64_t row, std::int64_t col) const { return values[static_cast<std::size_t>(row * cols + col)]; }
  double& at(std::int64_t row, std::int64_t col) { return values[static_cast<std::size_t>(row * cols + col)]; }
  bool empty() const { return values.empty(); }
};

// All cells the same.
Grid grid_of(std::int64_t rows, std::int64_t cols, double value);
// As a matrix of floats stands in memory; with `causal`, what lies right of the diagonal is kMasked. Queries may be the
// last `rows` of `cols` tokens.
Grid grid_of(const float* values, std::int64_t rows, std::int64_t cols, bool causal);

// Throws InvalidArgument unless there are rows * cols values and no more than `most` of either.
void check_grid(const Grid& grid, std::int64_t most);

}  // namespace attend::draw
