// Where the decoding kernel's items and tiles lie when all sequences have one length: known before the launch.
#pragma once

#include "cuda/decode_args.hpp"
#include "cuda/fold_parts.cuh"

namespace attend::cuda {

// For the copy engine: the first key of a tile, in its page.
struct TilePlace {
  int key, page;
};

// The tiles of a warp, item after item.
template <int kWarps>
struct DecodeCursor {
  using Args = DecodeArgs;
  static constexpr bool kCached = false;
  int item, end;   // of the block: they lie one after another
  int tile, last;  // none where last < tile
  int b, hk, part;

  __device__ __forceinline__ DecodeCursor(const DecodeArgs& a, int block)
      : item(block * a.each + smaller(block, a.more)),
        end(item + a.each + (block < a.more ? 1 : 0)),
        tile(0),
        last(-1) {}
  __device__ __forceinline__ void find(const DecodeArgs& a) {
    const int head = item / a.parts.count;
    part = item % a.parts.count;
    b = head / a.Hk, hk = head % a.Hk;
  }
  __device__ __forceinline__ void enter(const DecodeArgs& a, int warp) {
    find(a);
    const int lo = larger(larger(seen_in(a.mask, b, 0).lo, 0), part * a.part_keys);
    const int hi = smaller(smaller(seen_in(a.mask, b, a.M - 1).hi, a.N), (part + 1) * a.part_keys);
    const int first = lo / kDecodeKeys;
    last = lo < hi ? (hi - 1) / kDecodeKeys : -1;
    tile = first + (warp + kWarps - first % kWarps) % kWarps;
  }
  // To the next item that has some, if this one has no more.
  __device__ __forceinline__ void settle(const DecodeArgs& a, int warp) {
    while (tile > last && ++item < end) enter(a, warp);
  }
  __device__ __forceinline__ void to_next(const DecodeArgs&) { ++item; }
  __device__ __forceinline__ DecodeCursor next(const DecodeArgs& a) const {
    DecodeCursor result = *this;
    ++result.item;
    result.find(a);
    return result;
  }
  // The head of the item before this one: queries may stay.
  __device__ __forceinline__ bool has_head_of(const DecodeCursor& before) const {
    return b == before.b && hk == before.hk;
  }
  __device__ __forceinline__ TilePlace place(const DecodeArgs&, int) const { return {tile * kDecodeKeys, b}; }
  __device__ __forceinline__ int part_count(const DecodeArgs& a) const { return a.parts.count; }
  __device__ __forceinline__ int number(const DecodeArgs& a) const { return b * a.Hk + hk; }  // of the head
  __device__ __forceinline__ int first_row() const { return 0; }
  __device__ __forceinline__ int rows(const DecodeArgs& a) const { return a.M * a.G; }
  __device__ __forceinline__ Interval seen(const DecodeArgs& a, int i) const { return seen_in(a.mask, b, i); }
  __device__ __forceinline__ void clip(const DecodeArgs& a, Interval& keys) const {
    keys.hi = smaller(keys.hi, smaller(a.N, (part + 1) * a.part_keys));
    keys.lo = larger(keys.lo, part * a.part_keys);
  }
  // Keys that every row sees.
  __device__ __forceinline__ Interval whole(const DecodeArgs& a) const {
    return {larger(seen_in(a.mask, b, a.M - 1).lo, 0), smaller(seen_in(a.mask, b, 0).hi, a.N)};
  }
  __device__ __forceinline__ bool has_whole_head(const DecodeArgs& a) const {
    return has_whole(a.parts, b * a.Hk + hk);
  }
};

}  // namespace attend::cuda
