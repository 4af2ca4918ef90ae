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

// The steps of an item's head, from the last to the first: all, or where a mask has holes those that see some of its
// keys.
template <bool kHoles>
struct ItemSteps {
  const MaskTile* tiles = nullptr;  // null: no holes

  __device__ __forceinline__ ItemSteps(const BackwardArgs& a, const BackwardItem& item, int h) {
    const KeyBits& bits = a.key_bits;
    if constexpr (kHoles)
      if (bits.tiles != nullptr)
        tiles = bits.tiles + item.b * bits.tile_batch_stride + h * bits.tile_head_stride +
                static_cast<std::int64_t>(item.n) * a.steps;
  }
  __device__ __forceinline__ int last(const BackwardItem& item) const {
    if constexpr (kHoles)
      if (tiles != nullptr && item.last >= item.first && tiles[item.last].state() == 0) return tiles[item.last].before();
    return item.last;
  }
  __device__ __forceinline__ int before(int i) const {
    if constexpr (kHoles)
      if (tiles != nullptr) return tiles[i].before();
    return i - 1;
  }
  __device__ __forceinline__ bool has_holes(int i) const {
    if constexpr (kHoles)
      if (tiles != nullptr) return tiles[i].state() != 2;
    return false;
  }
};

// All of an item's steps, head after head.
template <bool kHoles>
struct StepWalk {
  const BackwardArgs& a;
  const BackwardItem& item;
  int h, i, count;  // count: of steps, where there are no holes
  ItemSteps<kHoles> steps;

  __device__ __forceinline__ StepWalk(const BackwardArgs& args, const BackwardItem& of)
      : a(args), item(of), h(of.hk * a.G), i(of.last), count((of.last - of.first + 1) * a.G), steps(a, of, h) {
    if constexpr (kHoles) {
      i = steps.last(item);
      find_head();
    }
  }
  // Whether there is one, after n others.
  __device__ __forceinline__ bool there(int n) const { return kHoles ? i >= item.first : n < count; }
  __device__ __forceinline__ void next() {
    if constexpr (kHoles) {
      i = steps.before(i);
      find_head();
    } else {
      if (--i < item.first) i = item.last, ++h;
    }
  }
  __device__ __forceinline__ void find_head() {
    while (i < item.first && h + 1 < (item.hk + 1) * a.G) {
      steps = ItemSteps<kHoles>(a, item, ++h);
      i = steps.last(item);
    }
  }
};

}  // namespace attend::cuda
