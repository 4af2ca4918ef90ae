// What the backward kernels share: which queries an item of keys meets.
#pragma once

#include "cuda/backward_args.hpp"

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

}  // namespace attend::cuda
