// Numbers in rows and columns.
#include "draw/grid.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attend/error.hpp"

namespace attend::draw {

Grid grid_of(std::int64_t rows, std::int64_t cols, double value) {
  return {rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), value)};
}

Grid grid_of(const float* values, std::int64_t rows, std::int64_t cols, bool causal) {
  Grid grid = grid_of(rows, cols, kMasked);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t seen = causal ? std::clamp<std::int64_t>(cols - rows + row + 1, 0, cols) : cols;
    for (std::int64_t col = 0; col < seen; ++col) grid.at(row, col) = static_cast<double>(values[row * cols + col]);
  }
  return grid;
}

void check_grid(const Grid& grid, std::int64_t most) {
  if (grid.rows < 1 || grid.cols < 1 || grid.rows > most || grid.cols > most)
    throw InvalidArgument(
        fmt::format("picture: a grid of {} x {} cells, expected 1 to {} along a side", grid.rows, grid.cols, most));
  if (std::ssize(grid.values) != grid.rows * grid.cols)
    throw InvalidArgument(
        fmt::format("picture: {} values in a grid of {} x {} cells", grid.values.size(), grid.rows, grid.cols));
}

}  // namespace attend::draw
