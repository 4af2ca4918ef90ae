// Where one head looks: its exact attention weights, summed over square cells, in bounded memory.
#pragma once

#include <vector>

#include "inputs.hpp"

namespace attend::cli {

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

// Maps of at most the given numbers of cells, all from one pass over the weights.
std::vector<HeadMap> head_maps(const Problem& problem, const Inputs& inputs, std::int64_t head,
                               const std::vector<std::int64_t>& most_cells);

}  // namespace attend::cli
