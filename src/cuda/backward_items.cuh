// What the backward kernels share: which queries an item of keys meets, and how a row of a gradient is written.
#pragma once

#include "cuda/backward_args.hpp"
#include "cuda/score_terms.cuh"

namespace attend::cuda {

struct BackwardItem {
  int n, hk, b;     // n < 0: no more
  int first, last;  // steps of queries
};

// Which steps an item has: those whose queries see its keys. Neither end of what a step sees ever falls.
__device__ __forceinline__ BackwardItem backward_item(const BackwardArgs& a, int t) {
  const int heads = a.B * a.Hk, section = t / (a.key_blocks * a.section), r = t % (a.key_blocks * a.section);
  const int width = smaller(a.section, heads - section * a.section);
  const int n = r / width, head = section * a.section + r % width, b = head / a.Hk;
  const int2* blocks = a.rows.blocks + b * a.steps;
  int low = 0, high = a.steps;  // the first step that sees block n or a later one
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks[middle].y < n)
      low = middle + 1;
    else
      high = middle;
  }
  const int first = low;
  high = a.steps;  // the first step that sees none up to block n
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks[middle].x <= n)
      low = middle + 1;
    else
      high = middle;
  }
  return {n, head % a.Hk, b, first, low - 1};
}

// A row of an accumulator, of which a thread has two of every eight columns from `first` on.
template <class T, int kColumns>
__device__ __forceinline__ void store_row(const DeviceOperand& to, std::int64_t row, int first, const float* sums,
                                          float factor, int dims) {
  if (to.pairs) {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(static_cast<T*>(const_cast<void*>(to.data)) + row + first);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      if (8 * j + first < dims) pairs[4 * j] = pack<T>(sums[4 * j] * factor, sums[4 * j + 1] * factor);
    return;
  }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 8 * j + first + e;
      if (column < dims) store_float(to, row + column * to.dim_stride, sums[4 * j + e] * factor);
    }
}

}  // namespace attend::cuda
