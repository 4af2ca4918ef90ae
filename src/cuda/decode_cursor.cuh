// Where the decoding kernel's items and tiles lie when all sequences have one length: known before the launch.
#pragma once

#include "cuda/decode_args.hpp"
#include "cuda/fold_parts.cuh"

namespace attend::cuda {

// For the copy engine: the first key of a tile, in its page.
struct TilePlace {
  int key, page;
};

// Which query a row of a KV head is: rows are its query heads, query after query.
template <class Args>
__device__ __forceinline__ int query_of(const Args& a, int row) {
  return a.M == 1 ? (row < a.G ? 0 : 1) : row / a.G;
}

// The tiles of a warp, item after item.
template <int kWarps>
struct DecodeCursor {
  using Args = DecodeArgs;
  static constexpr bool kCached = false;
  int first, item, end;  // of the block: they lie one after another
  int tile, last;        // none where last < tile
  int b, hk, part;
  Interval any;  // keys that a row of the head sees

  __device__ __forceinline__ DecodeCursor(const DecodeArgs& a, int block)
      : first(block * a.each + smaller(block, a.more)),
        item(first),
        end(item + a.each + (block < a.more ? 1 : 0)),
        tile(0),
        last(-1) {
    const int head = item / a.parts.count;
    part = item - head * a.parts.count, b = head / a.Hk, hk = head - b * a.Hk;
    find(a);
  }
  // What the parts of a head share.
  __device__ __forceinline__ void find(const DecodeArgs& a) {
    any = {larger(seen_in(a.mask, b, 0).lo, 0), smaller(seen_in(a.mask, b, a.M - 1).hi, a.N)};
  }
  __device__ __forceinline__ void enter(const DecodeArgs& a, int warp) {
    const int lo = larger(any.lo, part * a.part_keys), hi = smaller(any.hi, (part + 1) * a.part_keys);
    const int first_tile = lo / kDecodeKeys;
    last = lo < hi ? (hi - 1) / kDecodeKeys : -1;
    tile = first_tile + (warp + kWarps - first_tile % kWarps) % kWarps;
  }
  // To the next item that has some, if this one has no more.
  __device__ __forceinline__ void settle(const DecodeArgs& a, int warp) {
    while (tile > last) {
      to_next(a);
      if (item >= end) return;
      enter(a, warp);
    }
  }
  __device__ __forceinline__ void to_next(const DecodeArgs& a) {
    ++item;
    if (++part < a.parts.count) return;
    part = 0;
    if (++hk == a.Hk) hk = 0, ++b;
    if (item < end) find(a);
  }
  __device__ __forceinline__ TilePlace place(const DecodeArgs&, int) const { return {tile * kDecodeKeys, b}; }
  __device__ __forceinline__ int part_count(const DecodeArgs& a) const { return a.parts.count; }
  __device__ __forceinline__ int first_row() const { return 0; }
  __device__ __forceinline__ int rows(const DecodeArgs& a) const { return a.M * a.G; }
  __device__ __forceinline__ Interval seen(const DecodeArgs& a, int i) const {
    const Interval keys = seen_in(a.mask, b, i);
    return {keys.lo, smaller(keys.hi, a.N)};
  }
  // Keys that every row sees.
  __device__ __forceinline__ Interval whole(const DecodeArgs& a) const {
    return {larger(seen_in(a.mask, b, a.M - 1).lo, 0), smaller(seen_in(a.mask, b, 0).hi, a.N)};
  }
  // What has_whole says of it.
  __device__ __forceinline__ bool has_whole_head(const DecodeArgs& a) const {
    return item - part >= first && item - part + a.parts.count <= end;
  }
};

}  // namespace attend::cuda
