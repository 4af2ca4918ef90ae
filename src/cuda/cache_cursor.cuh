// Where the decoding kernel's items and tiles lie in a cache: lengths and pages are read when the kernel runs. Blocks
// share the work by what there is then: each computes which items are its own.
#pragma once

#include "cuda/decode_cursor.cuh"

namespace attend::cuda {

__device__ __forceinline__ int cached_length(const CacheLengths& lengths, int b) {
  return lengths.data ? smaller(larger(__ldg(lengths.data + b), 0), lengths.most) : lengths.most;
}

// What beginning and joining an item take, in the time of so many tiles.
constexpr int kItemCost = 4;

template <int kWarps>
struct CacheCursor {
  using Args = CacheArgs;
  static constexpr bool kCached = true;
  int first, item, end;  // of the block: they lie one after another
  int tile, last;        // none where last < tile
  int b, head, hk, part;
  int length, part_keys, count;  // of sequence b: `count` parts
  int group;                     // of rows
  int pages, paged;              // lane n has the page of the warp's n-th tile from `paged` on
  int page_tiles;                // 0: no table

  __device__ __forceinline__ CacheCursor(const CacheArgs& a, int block)
      : tile(0), last(-1), page_tiles(a.table ? a.page_tiles : 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto blocks = static_cast<unsigned>(gridDim.x);
    std::uint32_t all = 0;
    for (int n = lane; n < a.B; n += 32) all += cost_of(a, cached_length(a.lengths, n)) * heads(a);
    for (int n = 16; n > 0; n /= 2) all += __shfl_xor_sync(~0U, all, n);
    const auto start = [&](unsigned n) {
      return static_cast<std::uint32_t>((std::uint64_t{all} * n + blocks - 1) / blocks);
    };
    const std::uint32_t from = start(block), to = start(block + 1);
    CacheCursor at_end = *this;
    at_end.find_item(a, to, lane);
    find_item(a, from, lane);
    first = item, end = at_end.item;
  }

  __device__ __forceinline__ static int heads(const CacheArgs& a) { return a.Hk * a.lengths.groups; }
  // Of all parts of one head of a sequence.
  __device__ __forceinline__ static std::uint32_t cost_of(const CacheArgs& a, int length) {
    const int tiles = (length + kDecodeKeys - 1) / kDecodeKeys;
    return static_cast<std::uint32_t>((tiles >> a.cost_shift) + kItemCost * cache_part_count(length));
  }
  // The first item that begins at `place` or later, in the order of their costs.
  __device__ __forceinline__ void find_item(const CacheArgs& a, std::uint32_t place, int lane) {
    std::uint32_t before = 0;
    int items = 0;
    for (int b0 = 0; b0 < a.B; b0 += 32) {
      const bool there = b0 + lane < a.B;
      const int mine = there ? cached_length(a.lengths, b0 + lane) : 0;
      const int own_items = there ? cache_part_count(mine) * heads(a) : 0;
      const std::uint32_t own_cost = there ? cost_of(a, mine) * heads(a) : 0;
      std::uint32_t costs = own_cost;  // of this sequence and those before it
      int upto = own_items;
      for (int n = 1; n < 32; n *= 2) {
        const std::uint32_t other = __shfl_up_sync(~0U, costs, n);
        const int others = __shfl_up_sync(~0U, upto, n);
        if (lane >= n) costs += other, upto += others;
      }
      const unsigned holds = __ballot_sync(~0U, there && place < before + costs);
      if (holds != 0) {
        const int at = __ffs(static_cast<int>(holds)) - 1;
        b = b0 + at;
        measure(__shfl_sync(~0U, mine, at));
        const std::uint32_t of_head = cost_of(a, length);
        const std::uint32_t of_part = static_cast<std::uint32_t>(part_keys / kDecodeKeys >> a.cost_shift) + kItemCost;
        const std::uint32_t rest = place - before - __shfl_sync(~0U, costs - own_cost, at);
        head = static_cast<int>(rest / of_head);
        part = static_cast<int>((rest % of_head + of_part - 1) / of_part);
        item = items + __shfl_sync(~0U, upto - own_items, at) + head * count + part;
        if (part == count) --item, --part, to_next(a);  // behind the last of its head
        return;
      }
      before += __shfl_sync(~0U, costs, 31), items += __shfl_sync(~0U, upto, 31);
    }
    item = items, b = a.B, head = part = 0;
    measure(0);
  }
  __device__ __forceinline__ void measure(int its_length) {
    length = its_length, part_keys = decode_part_keys(length), count = cache_part_count(length);
  }

  __device__ __forceinline__ void find(const CacheArgs& a) {
    hk = head / a.lengths.groups, group = head % a.lengths.groups;
  }
  __device__ __forceinline__ void enter(const CacheArgs& a, int warp) {
    find(a);
    const int final_row = smaller(first_row() + kDecodeRows, a.M * a.G) - 1;
    const int lo = larger(seen(a, first_row() / a.G).lo, part * part_keys);
    const int hi = smaller(seen(a, final_row / a.G).hi, (part + 1) * part_keys);
    const int first_tile = lo / kDecodeKeys;
    last = lo < hi ? (hi - 1) / kDecodeKeys : -1;
    tile = first_tile + (warp + kWarps - first_tile % kWarps) % kWarps;
    find_pages(a);
  }
  // Of this tile and the next 31 of the warp.
  __device__ __forceinline__ void find_pages(const CacheArgs& a) {
    const int wanted = tile + static_cast<int>(threadIdx.x) % 32 * kWarps;
    pages = b, paged = tile;
    if (page_tiles == 0 || wanted > last) return;
    pages = __ldg(a.table + b * a.table_stride + wanted / page_tiles);
    if (pages < 0 || pages >= a.pages) pages = -1;  // the copy engine reads nothing there
  }
  // To the next tile, of the next item that has some if this one has no more.
  __device__ __forceinline__ void settle(const CacheArgs& a, int warp) {
    if (tile <= last && tile == paged + 32 * kWarps) find_pages(a);
    while (tile > last) {
      to_next(a);
      if (item >= end) return;
      enter(a, warp);
    }
  }
  __device__ __forceinline__ void to_next(const CacheArgs& a) {
    ++item;
    if (++part < count) return;
    part = 0;
    if (++head < heads(a)) return;
    head = 0;
    if (++b < a.B) measure(cached_length(a.lengths, b));
  }
  __device__ __forceinline__ CacheCursor next(const CacheArgs& a) const {
    CacheCursor result = *this;
    result.to_next(a);
    result.find(a);
    return result;
  }
  __device__ __forceinline__ TilePlace place() const {
    if (page_tiles == 0) return {tile * kDecodeKeys, b};
    return {tile % page_tiles * kDecodeKeys, __shfl_sync(~0U, pages, (tile - paged) / kWarps)};
  }
  __device__ __forceinline__ int part_count(const CacheArgs&) const { return count; }
  __device__ __forceinline__ int first_row() const { return group * kDecodeRows; }
  __device__ __forceinline__ int rows(const CacheArgs& a) const {
    return smaller(kDecodeRows, a.M * a.G - first_row());
  }
  // The last query stands at the last key.
  __device__ __forceinline__ Interval seen(const CacheArgs& a, int i) const {
    const int p = length - a.M + i;
    return {larger(p - a.left, 0), smaller(p + a.right + 1, length)};
  }
  __device__ __forceinline__ void clip(const CacheArgs&, Interval& keys) const {
    keys.hi = smaller(keys.hi, (part + 1) * part_keys);
    keys.lo = larger(keys.lo, part * part_keys);
  }
  // Keys that every row sees.
  __device__ __forceinline__ Interval whole(const CacheArgs& a) const {
    const int final_row = smaller(first_row() + kDecodeRows, a.M * a.G) - 1;
    return {seen(a, final_row / a.G).lo, seen(a, first_row() / a.G).hi};
  }
  __device__ __forceinline__ bool has_whole_head(const CacheArgs&) const {
    return item - part >= first && item - part + count <= end;
  }
};

}  // namespace attend::cuda
