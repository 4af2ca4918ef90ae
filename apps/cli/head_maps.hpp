// Where one head of the demo looks: its exact attention weights, summed over square cells, in bounded memory.
#pragma once

#include <cstdint>
#include <vector>

#include "draw/picture.hpp"
#include "inputs.hpp"

namespace attend::cli {

// Maps of at most the given numbers of cells, all from one pass over the weights. A cell is the part of their attention
// that its queries give to its keys, on average: a row adds up to 1.
std::vector<draw::HeatMap> head_maps(const Problem& problem, const Inputs& inputs, std::int64_t head,
                                     const std::vector<std::int64_t>& most_cells);

}  // namespace attend::cli
