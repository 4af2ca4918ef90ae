// Attention forward from sm_80 on: an item is a tile of queries of one head, by a block of four warps, each with rows
// of its own. While scores are made the values come (cp.async), while those are multiplied the next keys.
#pragma once

#include "cuda/plain_scores.cuh"
#include "cuda/plain_tiles.cuh"

namespace attend::cuda {

struct PlainItem {
  int m, h, b, split;
};

// Longest first within a section of heads.
__device__ __forceinline__ PlainItem plain_item(int t, int tiles, int heads, int each_batch, int section) {
  const int at = t / (tiles * section), r = t % (tiles * section), width = smaller(section, heads - at * section);
  const int head = at * section + r % width;
  return {tiles - 1 - r / width, head % each_batch, head / each_batch, 0};
}

// A warp's view of its work.
template <class Tr>
struct PlainForward {
  using T = typename Tr::T;
  static constexpr int kRowTiles = Tr::kRowTiles, kTwo = 2 * kRowTiles;  // rows of a thread
  const ForwardArgs& a;
  PlainItem item;
  int lane, warp, col0;
  unsigned inverse;                     // of a.packed, times 2^16: exact for the rows of a tile
  std::uint32_t queries, keys, values;  // lanes' places in the tiles
  float s[kRowTiles][Tr::kColumns / 2], o[kRowTiles][Tr::D / 2];
  std::uint32_t p[kRowTiles][Tr::kColumns / 4];
  Interval seen[kTwo], some, whole;  // of each row; keys that some and that all of the warp's rows see
  RowSlope slopes[Tr::kTerms ? kTwo : 1];
  float top[kTwo], sum[kTwo];

  __device__ __forceinline__ PlainForward(const ForwardArgs& args, const PlainItem& of, std::uint32_t memory)
      : a(args),
        item(of),
        lane(static_cast<int>(threadIdx.x) % 32),
        // Few rows are those of the first warp, which is another one in the next block.
        warp(static_cast<int>(threadIdx.x / 32 + blockIdx.x) % kPlainWarps),
        col0(lane % 4 * 2),
        inverse(65536U / static_cast<unsigned>(args.packed) + 1),
        queries(lane_of_rows(memory) + warp * Tr::kWarpRows * 128),
        keys(lane_of_columns(memory + Tr::kRows * Tr::D * 2)),
        values(lane_of_rows(memory + (Tr::kRows + Tr::kColumns) * Tr::D * 2)) {}

  // The query of row n of the tile: packed heads lie one after another within a token.
  __device__ __forceinline__ RowPlace place_in_tile(int n) const {
    const int token = token_of(n), tokens = token_of(Tr::kRows), i = item.m * tokens + token;
    return {item.b, item.h * a.packed + n - token * a.packed, token < tokens && i < a.M ? i : a.M};
  }
  __device__ __forceinline__ int token_of(int n) const {
    return static_cast<int>(static_cast<unsigned>(n) * inverse >> 16);
  }
  __device__ __forceinline__ RowPlace place(int n) const {
    return place_in_tile(warp * Tr::kWarpRows + n / 2 * 16 + n % 2 * 8 + lane / 4);
  }
  // What query i sees of this item's part of the keys.
  __device__ __forceinline__ Interval seen_in_part(int i) const {
    Interval x = seen_in(a.mask, item.b, i);
    x.lo = larger(x.lo, item.split * a.split_keys);
    x.hi = smaller(x.hi, a.splits > 1 ? smaller(a.N, (item.split + 1) * a.split_keys) : a.N);
    return x;
  }

  // The tile of queries, by the whole block.
  __device__ __forceinline__ void copy_queries(std::uint32_t tile) const {
    constexpr int kSixteens = Tr::D / 8, kPass = kPlainThreads / kSixteens;
    const int c = static_cast<int>(threadIdx.x) % kSixteens;
    const T* const q = static_cast<const T*>(a.q_rows.data);
#pragma unroll 4
    for (int n = static_cast<int>(threadIdx.x) / kSixteens; n < Tr::kRows; n += kPass) {
      const RowPlace row = place_in_tile(n);
      const bool there = row.i < a.M && 8 * c < a.D;
      const std::int64_t at =
          row.b * a.q_rows.batch_stride + row.h * a.q_rows.head_stride + row.i * a.q_rows.row_stride + 8 * c;
      copy_sixteen_if(there, tile + tile_place<Tr::kRows>(n, c), there ? q + at : q);
    }
  }

  __device__ __forceinline__ void begin() {
    const int tokens = token_of(Tr::kRows), first = item.m * tokens + token_of(warp * Tr::kWarpRows);
    const int end = item.m * tokens + smaller(tokens, token_of((warp + 1) * Tr::kWarpRows - 1) + 1);
    some = whole = {0, 0};
    if (first < smaller(end, a.M)) {
      const Interval top_row = seen_in_part(first), bottom_row = seen_in_part(smaller(end, a.M) - 1);
      some = {top_row.lo, bottom_row.hi}, whole = {bottom_row.lo, top_row.hi};
    }
#pragma unroll
    for (int n = 0; n < kTwo; ++n) {
      const RowPlace row = place(n);
      seen[n] = row.i < a.M ? seen_in_part(row.i) : Interval{0, 0};
      if constexpr (Tr::kTerms) slopes[n] = row_slope(a.mask, a.terms, row);
      top[n] = -INFINITY, sum[n] = 0;
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < Tr::D / 2; ++e) o[m][e] = 0;
  }
  __device__ __forceinline__ bool sees_some(int j) const {
    return j * Tr::kColumns < some.hi && (j + 1) * Tr::kColumns > some.lo;
  }
  __device__ __forceinline__ bool sees_all(int j) const {
    return j * Tr::kColumns >= whole.lo && (j + 1) * Tr::kColumns <= whole.hi;
  }

  // S = Q K^T
  __device__ __forceinline__ void scores() { multiply_rows<T, Tr::D, Tr::kRows, Tr::kColumns>(s, queries, keys); }
  // O += P V
  __device__ __forceinline__ void add_values() { add_products<T, Tr::kColumns>(o, p, values); }

  // Logits, where nothing is seen -inf.
  __device__ __forceinline__ void logits(int j, bool holes) {
    const int col = j * Tr::kColumns + col0;
    const auto key = [&](int, int c) { return col + c; };
    if constexpr (Tr::kTerms)
      add_terms(
          s, a.terms, a.mask, a.scale, [&](int n, int) { return place(n); }, key,
          [&](int n, int) { return slopes[n]; });
    if (!sees_all(j))
      each_score(s, [&](float& x, int n, int c) {
        if (col + c < seen[n].lo || col + c >= seen[n].hi) x = -INFINITY;
      });
    if constexpr (Tr::kTerms)
      if (holes)
        each_asked(
            s, [&](int n, int c) { return is_shown(a.mask, place(n), col + c); },
            [](float& x, bool shown) { x = shown ? x : -INFINITY; });
  }
  // The exponent of 2 of a score, or of a logit where there are terms: as in forward_group.cuh.
  __device__ __forceinline__ float exponent_of(float x, float base) const {
    return Tr::kTerms ? (x - base) * kLog2E : fmaf(x, a.scale2, -base);
  }
  // Logits to weights, against the largest so far. It stays while none is 2^8 above it: the sums hold that.
  __device__ __forceinline__ void weights(int j) {
    float factor[kTwo];
    bool changed = false;
#pragma unroll
    for (int n = 0; n < kTwo; ++n) {
      float(&row)[Tr::kColumns / 2] = s[n / 2];
      constexpr int kEights = Tr::kColumns / 8;
      float most = top[n];
#pragma unroll
      for (int i = 0; i < kEights; ++i) most = fmaxf(most, fmaxf(row[4 * i + n % 2 * 2], row[4 * i + n % 2 * 2 + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
      if ((most - top[n]) * a.scale2 <= 8.0F) most = top[n];
      const float base = most == -INFINITY ? 0.0F : Tr::kTerms ? most : most * a.scale2;
      factor[n] = most == top[n] ? 1.0F : exp2_fast(exponent_of(top[n], base));
      changed = changed || factor[n] != 1.0F;
      top[n] = most;
      float of_tile = 0;
#pragma unroll
      for (int i = 0; i < kEights; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = row[4 * i + n % 2 * 2 + e];
          x = exp2_fast(exponent_of(x, base));
          of_tile += x;
        }
      sum[n] = fmaf(sum[n], factor[n], of_tile);
    }
    if (__any_sync(~0U, changed))
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int e = 0; e < Tr::D / 2; ++e) o[m][e] *= factor[2 * m + (e >> 1 & 1)];
    if constexpr (Tr::kTerms)
      if (a.terms.dropout_threshold != 0)
        each_asked(
            s, [&](int n, int c) { return is_kept(a.terms, place(n), j * Tr::kColumns + col0 + c); },
            [&](float& x, bool kept) { x = kept ? x * a.terms.dropout_scale : 0.0F; });
    pack_rows<T>(p, s);
  }

  // Divides by the sums, the sink's weight among them, and writes the rows.
  __device__ __forceinline__ void finish(std::uint32_t memory) {
#pragma unroll
    for (int n = 0; n < kTwo; ++n) {
      const RowPlace row = place(n);
      float total = sum[n];
      total += __shfl_xor_sync(~0U, total, 1);
      total += __shfl_xor_sync(~0U, total, 2);
      // Of logits in their own unit, of scores as exponents of 2.
      constexpr float kUnit = Tr::kTerms ? kLog2E : 1.0F;
      float high = Tr::kTerms ? top[n] : top[n] * a.scale2, factor = 1.0F;
      if (top[n] == -INFINITY) high = -INFINITY, total = 0;
      if (a.splits == 1 && a.sinks.data) {
        const float sink = load_float(a.sinks, row.h * a.sinks.head_stride) * (kLog2E / kUnit);
        const float both = fmaxf(fmaxf(high, sink), -kLargestFloat);
        factor = exp2_fast((high - both) * kUnit);
        total = fmaf(total, factor, exp2_fast((sink - both) * kUnit));
        high = both;
      }
      const float inverse = total > 0 ? __fdividef(factor, total) : 0.0F;
      const float own = Tr::kTerms ? fmaf(__log2f(total), kLn2, high) : (high + __log2f(total)) * kLn2;
      float lse = total > 0 ? own : -INFINITY;
      if (total != total) lse = total;
#pragma unroll
      for (int i = 0; i < Tr::D / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) o[n / 2][4 * i + n % 2 * 2 + e] *= total != total ? total : inverse;
      if (row.i < a.M) store_numbers(row, n, lse, Tr::kTerms ? lse_rest(high, total, lse) : 0.0F);
    }
    if (a.splits == 1) store_rows(memory);
  }
  // A row's LSE, and all of it where it is a part's, as floats.
  __device__ __forceinline__ void store_numbers(const RowPlace& row, int n, float lse, float rest) const {
    if (a.splits == 1) {
      if (lane % 4 == 0 && a.lse)
        a.lse[row.b * a.lse_batch_stride + row.h * a.lse_head_stride + row.i * a.lse_row_stride] = lse;
      return;
    }
    const KeyParts& parts = a.parts;
    const std::int64_t at =
        ((static_cast<std::int64_t>(item.split) * parts.B + row.b) * parts.H + row.h) * parts.M + row.i;
    if (lane % 4 == 0) {
      parts.lse[at] = lse;
      if constexpr (Tr::kTerms) parts.rest()[at] = rest;
    }
    float* const to = parts.out + at * Tr::D + col0;
#pragma unroll
    for (int i = 0; i < Tr::D / 8; ++i)
      *reinterpret_cast<float2*>(to + 8 * i) =
          make_float2(o[n / 2][4 * i + n % 2 * 2], o[n / 2][4 * i + n % 2 * 2 + 1]);
  }
  // Through the memory of the warp's queries, so that rows leave in sixteens of bytes.
  __device__ __forceinline__ void store_rows(std::uint32_t memory) const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kTwo; ++n)
#pragma unroll
      for (int i = 0; i < Tr::D / 8; ++i)
        store_shared(
            memory + tile_place<Tr::kRows>(warp * Tr::kWarpRows + n / 2 * 16 + n % 2 * 8 + lane / 4, i) + col0 * 2,
            pack<T>(o[n / 2][4 * i + n % 2 * 2], o[n / 2][4 * i + n % 2 * 2 + 1]));
    __syncwarp();
    constexpr int kSixteens = Tr::D / 8;
#pragma unroll 4
    for (int n = lane; n < Tr::kWarpRows * kSixteens; n += 32) {
      const int row = warp * Tr::kWarpRows + n / kSixteens, c = n % kSixteens;
      const RowPlace to = place_in_tile(row);
      if (to.i >= a.M || 8 * c >= a.E) continue;
      const uint4 eight = load_shared(memory + tile_place<Tr::kRows>(row, c));
      T* const at = static_cast<T*>(const_cast<void*>(a.out_rows.data)) + to.b * a.out_rows.batch_stride +
                    to.h * a.out_rows.head_stride + to.i * a.out_rows.row_stride + 8 * c;
      *reinterpret_cast<uint4*>(at) = eight;
    }
  }
};

template <class Tr>
__device__ __forceinline__ void attention_plain(const ForwardArgs& a) {
  extern __shared__ __align__(128) char raw[];
  const std::uint32_t memory = shared_address(raw);
  PlainItem item = plain_item(static_cast<int>(blockIdx.x) / a.splits, a.row_tiles, a.B * a.H, a.H, a.section);
  item.split = static_cast<int>(blockIdx.x) % a.splits;
  PlainForward<Tr> group(a, item, memory);

  const std::uint32_t key_tile = memory + Tr::kRows * Tr::D * 2, value_tile = key_tile + Tr::kColumns * Tr::D * 2;
  const RowCopies<Tr::D> keys(a.k_rows, item.b, item.h / a.group, a.N, a.D);
  const RowCopies<Tr::D> values(a.v_rows, item.b, item.h / a.group, a.N, a.E);
  const auto copy_keys = [&](int j) {
    keys.template copy<Tr::kColumns>(key_tile, j * Tr::kColumns);
    commit_copies();
  };
  const auto copy_values = [&](int j) {
    values.template copy<Tr::kColumns>(value_tile, j * Tr::kColumns);
    commit_copies();
  };

  // The blocks of keys that some query sees, from the last to the first.
  const int tokens = group.token_of(Tr::kRows), i0 = item.m * tokens, i1 = smaller(a.M, i0 + tokens) - 1;
  const int lo = larger(group.seen_in_part(i0).lo, 0), hi = group.seen_in_part(i1).hi;
  const int first = lo / Tr::kColumns, last = (hi + Tr::kColumns - 1) / Tr::kColumns - 1;
  const MaskBits& bits = a.mask.bits;
  const auto tile = [&](int j) {  // of blocks with holes
    if (!Tr::kTerms || bits.words == nullptr) return MaskTile::of(2, j - 1);
    return bits.tiles[item.b * bits.tile_batch_stride + item.h * bits.tile_head_stride +
                      static_cast<std::int64_t>(item.m) * bits.row_tiles + j];
  };

  int j = last;
  if (j >= first && tile(j).state() == 0) j = tile(j).before();
  if (j >= first) {
    group.copy_queries(memory);
    copy_keys(j);
    keys.template clear<Tr::kColumns>(key_tile);
    values.template clear<Tr::kColumns>(value_tile);
  }
  group.begin();
  while (j >= first) {
    const bool some = group.sees_some(j);
    wait_copies();
    __syncthreads();  // the keys are there, and nobody needs the values before
    copy_values(j);
    if (some) group.scores();
    const int next = tile(j).before();
    if (some) group.logits(j, tile(j).state() != 2);
    wait_copies();
    __syncthreads();  // the values are there, and nobody needs the keys
    if (next >= first) copy_keys(next);
    if (some) {
      group.weights(j);
      group.add_values();
    }
    j = next;
  }
  group.finish(memory);
}

}  // namespace attend::cuda

#define ATTEND_PLAIN_KERNEL(NAME, ...)                                                            \
  extern "C" __global__ void __launch_bounds__(attend::cuda::kPlainThreads,                       \
                                               (attend::cuda::PlainTraits<__VA_ARGS__>::kBlocks)) \
      NAME(const __grid_constant__ attend::cuda::ForwardArgs a) {                                 \
    attend::cuda::attention_plain<attend::cuda::PlainTraits<__VA_ARGS__>>(a);                     \
  }
#define ATTEND_PLAIN_KERNELS(NAME, T, D)                                                                  \
  ATTEND_PLAIN_KERNEL(plain_forward_##D##_##NAME, attend::cuda::T, attend::cuda::kPlainForward##D, false) \
  ATTEND_PLAIN_KERNEL(plain_forward_terms_##D##_##NAME, attend::cuda::T, attend::cuda::kPlainForward##D, true)
