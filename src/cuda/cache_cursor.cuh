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

template <int kWarps, int kTile>
struct CacheCursor {
  using Args = CacheArgs;
  static constexpr bool kCached = true;
  int first, item, end;  // of the block: they lie one after another
  int tile, last;        // none where last < tile
  int b, head, hk, part;
  int length, part_keys, count;  // of sequence b: `count` parts
  int group;                     // of rows
  Interval any;                  // keys that one of them sees
  // Of the warp's tiles from `paged` on lane n has the n-th 16 keys: their page, as the table says, and where they
  // begin.
  static constexpr int kHalves = kTile / kDecodeKeys;
  int pages, inside, paged;

  __device__ __forceinline__ CacheCursor(const CacheArgs& a, int block) : tile(0), last(-1) {
    const auto blocks = static_cast<unsigned>(gridDim.x);
    const Costs costs(a, 0);
    std::uint32_t all = costs.all(a);
    for (int b0 = 32; b0 < a.B; b0 += 32) all += Costs(a, b0).all(a);
    const std::uint32_t each = all / blocks, rest = all % blocks;
    const auto start = [&](unsigned n) { return each * n + (rest * n + blocks - 1) / blocks; };
#pragma unroll 1
    for (int n = 1; n >= 0; --n) {  // where the next block begins, and this one
      find_item(a, start(block + n), costs);
      if (n == 1) end = item;
    }
    first = item;
    find(a);
  }

  __device__ __forceinline__ static int heads(const CacheArgs& a) { return a.Hk * a.lengths.groups; }
  // Of all parts of one head of a sequence.
  __device__ __forceinline__ static std::uint32_t cost_of(const CacheArgs& a, int length) {
    const int tiles = (length + kDecodeKeys - 1) / kDecodeKeys;
    return static_cast<std::uint32_t>((tiles >> a.cost_shift) + kItemCost * cache_part_count(length));
  }
  // A lane has one of 32 sequences: its length, what its heads cost and how many items they are, and the same with all
  // lanes' before it.
  struct Costs {
    int length = 0, items = 0, items_upto;
    std::uint32_t own = 0, upto;

    __device__ __forceinline__ Costs(const CacheArgs& a, int b0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      if (b0 + lane < a.B) {
        length = cached_length(a.lengths, b0 + lane);
        items = cache_part_count(length) * heads(a), own = cost_of(a, length) * heads(a);
      }
      upto = own, items_upto = items;
      for (int n = 1; n < smaller(a.B, 32); n *= 2) {
        const std::uint32_t cost = __shfl_up_sync(~0U, upto, n);
        const int count = __shfl_up_sync(~0U, items_upto, n);
        if (lane >= n) upto += cost, items_upto += count;
      }
    }
    // Lanes behind the last sequence have not been added up.
    __device__ __forceinline__ static int last_lane(const CacheArgs& a) { return smaller(a.B, 32) - 1; }
    __device__ __forceinline__ std::uint32_t all(const CacheArgs& a) const {
      return __shfl_sync(~0U, upto, last_lane(a));
    }
  };
  // The first item that begins at `place` or later, in the order of their costs. `costs`: of the first 32 sequences.
  __device__ __forceinline__ void find_item(const CacheArgs& a, std::uint32_t place, Costs costs) {
    std::uint32_t before = 0;
    int items = 0;
    for (int b0 = 0; b0 < a.B; b0 += 32) {
      if (b0 > 0) costs = Costs(a, b0);
      const unsigned holds = __ballot_sync(~0U, place < before + costs.upto);  // lanes of no sequence come last
      if (holds != 0) {
        const int at = __ffs(static_cast<int>(holds)) - 1;
        b = b0 + at;
        measure(__shfl_sync(~0U, costs.length, at));
        const std::uint32_t of_head = cost_of(a, length);
        const std::uint32_t of_part = static_cast<std::uint32_t>(part_keys / kDecodeKeys >> a.cost_shift) + kItemCost;
        const std::uint32_t rest = place - before - __shfl_sync(~0U, costs.upto - costs.own, at);
        head = static_cast<int>(rest / of_head);
        part = static_cast<int>((rest % of_head + of_part - 1) / of_part);
        item = items + __shfl_sync(~0U, costs.items_upto - costs.items, at) + head * count + part;
        if (part == count) --item, --part, to_next(a);  // behind the last of its head
        return;
      }
      before += costs.all(a), items += __shfl_sync(~0U, costs.items_upto, Costs::last_lane(a));
    }
    item = items, b = a.B, head = part = 0;
    measure(0);
  }
  __device__ __forceinline__ void measure(int its_length) {
    length = its_length, part_keys = decode_part_keys(length), count = cache_part_count(length);
  }

  // What the parts of a head share.
  __device__ __forceinline__ void find(const CacheArgs& a) {
    hk = head, group = 0;
    if (a.lengths.groups > 1) hk = head / a.lengths.groups, group = head % a.lengths.groups;
    any = {seen(a, query_of(a, first_row())).lo, seen(a, query_of(a, first_row() + rows(a) - 1)).hi};
  }
  __device__ __forceinline__ void enter(const CacheArgs& a, int warp) {
    const int lo = larger(any.lo, part * part_keys), hi = smaller(any.hi, (part + 1) * part_keys);
    const int first_tile = lo / kTile;
    last = lo < hi ? (hi - 1) / kTile : -1;
    tile = first_tile + (warp + kWarps - first_tile % kWarps) % kWarps;
    find_pages(a);
  }
  // Of this tile and the next ones of the warp, as many as there are lanes for. What is loaded is not looked at before
  // a tile is asked for.
  __device__ __forceinline__ void find_pages(const CacheArgs& a) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int wanted = (tile + lane / kHalves * kWarps) * kHalves + lane % kHalves;
    pages = b, inside = wanted * kDecodeKeys, paged = tile;
    if (!a.table) return;
    pages = -1;
    if (inside >= length) return;
    const int page = a.page_bits >= 0 ? wanted >> a.page_bits : wanted / a.page_tiles;
    // Of a tile of two pages the first may lie wholly before what the rows see, and hold anything.
    if (kHalves > 1 && (page + 1) * a.page_tokens <= any.lo) return;
    inside = (wanted - page * a.page_tiles) * kDecodeKeys;
    pages = __ldg(a.table + b * a.table_stride + page);
  }
  // To the next tile, of the next item that has some if this one has no more.
  __device__ __forceinline__ void settle(const CacheArgs& a, int warp) {
    if (tile <= last && tile == paged + 32 / kHalves * kWarps) find_pages(a);
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
    if (++head == heads(a)) {
      head = 0;
      if (++b < a.B) measure(cached_length(a.lengths, b));
    }
    find(a);
  }
  // Of one half of the tile, another one for each lane if need be. The copy engine reads nothing in page -1.
  __device__ __forceinline__ TilePlace place(const CacheArgs& a, int half) const {
    const int from = (tile - paged) / kWarps * kHalves + half, page = __shfl_sync(~0U, pages, from);
    return {__shfl_sync(~0U, inside, from), page < a.pages ? larger(page, -1) : -1};
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
  // Keys that every row sees.
  __device__ __forceinline__ Interval whole(const CacheArgs& a) const {
    return {seen(a, query_of(a, first_row() + rows(a) - 1)).lo, seen(a, query_of(a, first_row())).hi};
  }
  __device__ __forceinline__ bool has_whole_head(const CacheArgs&) const {
    return item - part >= first && item - part + count <= end;
  }
};

}  // namespace attend::cuda
