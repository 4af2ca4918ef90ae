// Where one head looks: its attention weights summed over square cells, as pictures show them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attend::draw {

// share(r, c) is the part of their attention that the queries of row r give to the keys of column c, on average:
// a row adds up to 1. NaN where the mask hides the whole cell.
struct HeadMap {
  std::int64_t length = 0;  // tokens
  std::int64_t cell = 1;    // tokens along a side of a cell; the last may be smaller
  std::int64_t cells = 0;   // along a side
  std::vector<double> shares;

  double share(std::int64_t row, std::int64_t col) const { return shares[static_cast<std::size_t>(row * cells + col)]; }
  // The share that gets the brightest colour, a round number: about one visible cell in 200 has more.
  double brightest() const;
};

}  // namespace attend::draw
