// What a sweep over the weights of one head is to make of them: plain pointers, as the kernels take them.
#pragma once

#include <cstdint>

#include "core/attention_problem.hpp"

namespace attend {

// Cells that an axis of `length` places from `first` on is cut into, none empty: cell n begins at first + n * length /
// cells. always_inline: an out-of-line copy in an object built for an instruction set could serve the others too.
struct CellAxis {
  std::int64_t first, length, cells;

  [[gnu::always_inline]] std::int64_t begin(std::int64_t cell) const { return first + cell * length / cells; }
  [[gnu::always_inline]] std::int64_t cell(std::int64_t place) const {
    return ((place - first + 1) * cells - 1) / length;
  }
};

struct LensSweep {
  const SoftmaxRow* softmax;        // [M], of the head
  std::int64_t first_key, end_key;  // what is looked at
  enum class Into { cells, weights, top, histogram } into;

  // cells: sums and maxima of those from first_row on, [rows, key_axis.cells]
  CellAxis query_axis, key_axis;
  std::int64_t first_row;
  double* mass;
  float* peak;
  // weights: of query i and key j at weights[(i - first_query) * stride + j - first_key]
  std::int64_t first_query;
  float* weights;
  std::int64_t stride;
  // top: [queries from first_query on, count], the largest first, of equal ones the lower key first; filled with
  // weight 0 and key -1 before
  std::int64_t count;
  std::int64_t* keys;
  float* top;
  // histogram: [bins + 1]: weights in [2^-(n + 1), 2^-n), and all that are smaller and not hidden
  std::int64_t bins;
  std::int64_t* counts;
};

}  // namespace attend
