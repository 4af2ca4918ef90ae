// Attention for few rows on Hopper: the keys are read once, and that is all the time it may take. An item is a part of
// the keys of one KV head; every warp copies tiles of 16 keys for itself, and asks for those of the next item before it
// is done with this one. Scores are made transposed (16 keys x 8 rows), so that the rows fill the narrow side of a
// product. At the end of an item its warps' results are joined in shared memory.
#pragma once

#include "cuda/decode_args.hpp"
#include "cuda/fold_parts.cuh"

namespace attend::cuda {

template <class Element, DecodeShape S>
struct DecodeTraits {
  using T = Element;
  static constexpr int D = S.D, kWarps = S.warps, kStages = S.stages, kThreads = 32 * kWarps;
  static constexpr int chunk_bytes = kDecodeKeys * 128;  // 64 columns of a tile
  static constexpr int key_bytes = kDecodeKeys * D * 2;  // of a tile; as many of values behind them
  static constexpr int kRowFloats = row_floats(S);
  static constexpr bool kFolds = folds(S);
  static constexpr int shared_bytes = attend::cuda::shared_bytes(S);
  static_assert(shared_bytes <= 227 * 1024);
};

template <class Tr>
struct DecodeMemory {
  char* ring;
  float* sums;   // [warp][row][kRowFloats]
  float2* tops;  // [warp][row]: the exponent of 2 that the weights are against, and their sum
  Barrier* full;

  __device__ __forceinline__ explicit DecodeMemory(char* base)
      : ring(base),
        sums(reinterpret_cast<float*>(base + Tr::kWarps * Tr::kStages * 2 * Tr::key_bytes)),
        tops(reinterpret_cast<float2*>(sums + Tr::kWarps * kDecodeRows * Tr::kRowFloats)),
        full(reinterpret_cast<Barrier*>(tops + Tr::kWarps * kDecodeRows)) {}
};

// The tiles of a warp, item after item.
template <class Tr>
struct DecodeCursor {
  int item, end;   // of the block
  int tile, last;  // none where last < tile
  int b, hk;

  __device__ __forceinline__ void enter(const DecodeArgs& a, int warp) {
    const int head = item / a.parts.count, part = item % a.parts.count;
    b = head / a.Hk, hk = head % a.Hk;
    const int lo = larger(larger(seen_in(a.mask, b, 0).lo, 0), part * a.part_keys);
    const int hi = smaller(smaller(seen_in(a.mask, b, a.M - 1).hi, a.N), (part + 1) * a.part_keys);
    const int first = lo / kDecodeKeys;
    last = lo < hi ? (hi - 1) / kDecodeKeys : -1;
    tile = first + (warp + Tr::kWarps - first % Tr::kWarps) % Tr::kWarps;
  }
  // To the next item that has some, if this one has no more.
  __device__ __forceinline__ void settle(const DecodeArgs& a, int warp) {
    while (tile > last && ++item < end) enter(a, warp);
  }
};

template <class Tr>
struct DecodeWarp {
  using T = typename Tr::T;
  static constexpr int kAtOnce =
      Tr::D / 16 < 8 ? Tr::D / 16 : 8;  // steps of 16 dims whose operands are loaded together
  const DecodeArgs& a;
  const DecodeMemory<Tr>& mem;
  const std::uint64_t hint;
  int warp, lane;
  std::uint32_t q[Tr::D / 8], next_q[Tr::D / 8];
  float s[4], o[Tr::D / 4];  // of two rows, 2 * (lane % 4) and the next: keys lane / 4 and 8 on; dims likewise
  float top[2], sum[2];
  Interval seen[2];
  DecodeCursor<Tr> ahead;  // the next tile to be asked for
  float fold_top, total;   // of a head of which the block has all parts, as is `fold`
  float4 fold;

  __device__ __forceinline__ DecodeWarp(const DecodeArgs& args, const DecodeMemory<Tr>& memory)
      : a(args),
        mem(memory),
        hint(args.once ? evict_first() : evict_normal()),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        ahead{first_item(args), first_item(args) + args.each + (block() < args.more ? 1 : 0), 0, -1, 0, 0} {}
  __device__ __forceinline__ static int block() { return static_cast<int>(blockIdx.x); }
  // A block's items lie one after another.
  __device__ __forceinline__ static int first_item(const DecodeArgs& args) {
    return block() * args.each + smaller(block(), args.more);
  }

  // Asks for the warp's next tile.
  __device__ __forceinline__ void ask(int stage) {
    if (ahead.item >= ahead.end) return;
    if (lane == 0) {
      Barrier* const full = mem.full + warp * Tr::kStages + stage;
      char* const to = mem.ring + (warp * Tr::kStages + stage) * 2 * Tr::key_bytes;
      full->expect(2 * Tr::key_bytes);
      for (int c = 0; c < Tr::D / 64; ++c) {
        load_box_with(hint, to + c * Tr::chunk_bytes, &a.k, full, c * 64, ahead.tile * kDecodeKeys, ahead.hk, ahead.b);
        load_box_with(hint, to + Tr::key_bytes + c * Tr::chunk_bytes, &a.v, full, c * 64, ahead.tile * kDecodeKeys,
                      ahead.hk, ahead.b);
      }
    }
    ahead.tile += Tr::kWarps;
    ahead.settle(a, warp);
  }

  // The queries of an item as the second operand: row lane / 4, of every 16 dims four.
  __device__ __forceinline__ void load_queries(int item) {
    const int row = lane / 4, head = item / a.parts.count, b = head / a.Hk, h = head % a.Hk * a.G + row % a.G;
    const int i = row / a.G;
    const bool there = item < ahead.end && i < a.M;
    const auto* const from =
        static_cast<const T*>(a.q.data) + (there ? b * a.q.batch_stride + h * a.q.head_stride + i * a.q.row_stride : 0);
#pragma unroll
    for (int n = 0; n < Tr::D / 8; ++n) {
      const int d = 8 * n + lane % 4 * 2;
      next_q[n] = 0;
      if (there && d + 1 < a.D)
        next_q[n] = *reinterpret_cast<const std::uint32_t*>(from + d);
      else if (there && d < a.D)
        next_q[n] = *reinterpret_cast<const std::uint16_t*>(from + d);
    }
  }
  __device__ __forceinline__ void begin(int b, int part) {
#pragma unroll
    for (int n = 0; n < Tr::D / 8; ++n) q[n] = next_q[n];
#pragma unroll
    for (int n = 0; n < Tr::D / 4; ++n) o[n] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = (lane % 4 * 2 + r) / a.G;
      top[r] = -INFINITY, sum[r] = 0;
      seen[r] = i < a.M ? seen_in(a.mask, b, i) : Interval{0, 0};
      seen[r].hi = smaller(seen[r].hi, smaller(a.N, (part + 1) * a.part_keys));
      seen[r].lo = larger(seen[r].lo, part * a.part_keys);
    }
  }

  // S^T = K Q^T, in two sums: half the time from one product to the next.
  __device__ __forceinline__ void scores(std::uint32_t keys) {
    float sums[2][4] = {};
    const int row = lane % 16;
#pragma unroll
    for (int first = 0; first < Tr::D / 16; first += kAtOnce) {
      std::uint32_t k[kAtOnce][4];
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n)
        load_matrices(k[n - first],
                      keys + n / 4 * Tr::chunk_bytes + row * 128 + ((n % 4 * 2 + lane / 16) ^ (row & 7)) * 16);
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n) multiply<T>(sums[n % 2], k[n - first], q[2 * n], q[2 * n + 1]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] = sums[0][e] + sums[1][e];
  }
  __device__ __forceinline__ void hide(int tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = tile * kDecodeKeys + lane / 4 + e / 2 * 8;
      if (key < seen[e % 2].lo || key >= seen[e % 2].hi) s[e] = -INFINITY;
    }
  }
  // The largest score so far to what the weights are against. Results so far follow.
  __device__ __forceinline__ void raise() {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(s[r], s[r + 2]);
      for (int n = 4; n < 32; n *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, n));
      most = fmaxf(most, top[r]);
      factor[r] = most == top[r] ? 1.0F : exp2_fast((top[r] - most) * a.scale2);
      top[r] = most, sum[r] *= factor[r];
    }
#pragma unroll
    for (int n = 0; n < Tr::D / 4; ++n) o[n] *= factor[n % 2];
  }
  // Scores to weights. They stay against the same score until one is 2^8 above it: the sums hold it.
  __device__ __forceinline__ void weights() {
    const bool above = (fmaxf(s[0], s[2]) - top[0]) * a.scale2 > 8.0F || (fmaxf(s[1], s[3]) - top[1]) * a.scale2 > 8.0F;
    if (__any_sync(~0U, above)) raise();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = top[r] == -INFINITY ? 0.0F : top[r] * a.scale2;
      s[r] = exp2_fast(fmaf(s[r], a.scale2, -base));
      s[r + 2] = exp2_fast(fmaf(s[r + 2], a.scale2, -base));
      sum[r] += s[r] + s[r + 2];
    }
  }
  __device__ __forceinline__ void load_values(std::uint32_t (&v)[kAtOnce][4], std::uint32_t from, int first) const {
    const int key = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int n = first; n < first + kAtOnce; ++n)
      load_transposed(v[n - first],
                      from + n / 4 * Tr::chunk_bytes + key * 128 + ((n % 4 * 2 + lane / 8 % 2) ^ (key & 7)) * 16);
  }
  // O^T += V^T P^T; the first of the values were loaded before.
  __device__ __forceinline__ void values(std::uint32_t (&v)[kAtOnce][4], std::uint32_t from) {
    const std::uint32_t low = transposed(pack<T>(s[0], s[1])), high = transposed(pack<T>(s[2], s[3]));
#pragma unroll
    for (int first = 0; first < Tr::D / 16; first += kAtOnce) {
      if (first > 0) load_values(v, from, first);
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n)
        multiply<T>(*reinterpret_cast<float(*)[4]>(o + 4 * n), v[n - first], low, high);
    }
  }

  // What the warp has of an item, for the others.
  __device__ __forceinline__ void leave() {
    float* const to = mem.sums + warp * kDecodeRows * Tr::kRowFloats;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int n = 4; n < 32; n *= 2) sum[r] += __shfl_xor_sync(~0U, sum[r], n);
      const int row = lane % 4 * 2 + r;
      if (lane < 4) mem.tops[warp * kDecodeRows + row] = make_float2(top[r] * a.scale2, sum[r]);
#pragma unroll
      for (int n = 0; n < Tr::D / 8; ++n) to[row * Tr::kRowFloats + 8 * n + lane / 4] = o[4 * (n / 2) + n % 2 * 2 + r];
    }
  }
  // Four columns of a row for each thread, of all warps.
  __device__ __forceinline__ void join(const DecodeCursor<Tr>& of, int part) {
    const KeyParts& parts = a.parts;
    const bool mine = Tr::kFolds && has_whole(parts, of.b * a.Hk + of.hk);
    for (int n = static_cast<int>(threadIdx.x); n < a.M * a.G * (Tr::D / 4); n += Tr::kThreads) {
      const int row = n / (Tr::D / 4), column = n % (Tr::D / 4) * 4, i = row / a.G, h = of.hk * a.G + row - i * a.G;
      float2 tops[Tr::kWarps];
      float top2 = -INFINITY;
#pragma unroll
      for (int m = 0; m < Tr::kWarps; ++m) {
        tops[m] = mem.tops[m * kDecodeRows + row];
        top2 = fmaxf(top2, tops[m].x);
      }
      const float base = top2 == -INFINITY ? 0.0F : top2;
      float weights_sum = 0;
      float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int m = 0; m < Tr::kWarps; ++m) {
        const float4 y = *reinterpret_cast<const float4*>(mem.sums + (m * kDecodeRows + row) * Tr::kRowFloats + column);
        const float weight = exp2_fast(tops[m].x - base);
        weights_sum = fmaf(weight, tops[m].y, weights_sum);
        x.x = fmaf(weight, y.x, x.x), x.y = fmaf(weight, y.y, x.y);
        x.z = fmaf(weight, y.z, x.z), x.w = fmaf(weight, y.w, x.w);
      }
      const float inverse = weights_sum == 0 ? 0.0F : __fdividef(1.0F, weights_sum);
      x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
      const float lse = fold_lse(base * kLn2, weights_sum);
      if (mine) {
        fold_part(x, lse, h, part == 0);
        if (part == parts.count - 1) store_folded(of.b, h, i, column);
        continue;
      }
      const std::int64_t at = ((static_cast<std::int64_t>(part) * a.B + of.b) * parts.H + h) * a.M + i;
      // To be read again soon: writing them to memory would cost the reads next to them dearly.
      store_with(evict_last(), reinterpret_cast<float4*>(parts.out + at * Tr::D + column), x);
      if (column == 0) store_with(evict_last(), parts.lse + at, lse);
    }
  }
  // What the next kernel does with parts of different blocks, to the bit.
  __device__ __forceinline__ void fold_part(const float4& x, float lse, int h, bool first) {
    if (first) {
      fold_top = a.parts.sinks.data ? load_float(a.parts.sinks, h * a.parts.sinks.head_stride) : -INFINITY;
      total = fold_total(fold_top), fold = make_float4(0, 0, 0, 0);
    }
    const FoldStep step = fold_step(fold_top, lse);
    fold_top = fmaxf(fold_top, lse), total = folded(total, 1.0F, step);
    fold.x = folded(fold.x, x.x, step), fold.y = folded(fold.y, x.y, step);
    fold.z = folded(fold.z, x.z, step), fold.w = folded(fold.w, x.w, step);
  }
  __device__ __forceinline__ void store_folded(int b, int h, int i, int column) const {
    const KeyParts& parts = a.parts;
    const float inverse = fold_inverse(total), x[4] = {fold.x, fold.y, fold.z, fold.w};
    const std::int64_t to = b * parts.joined.batch_stride + h * parts.joined.head_stride + i * parts.joined.row_stride;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < parts.E) store_float(parts.joined, to + (column + e) * parts.joined.dim_stride, x[e] * inverse);
    if (column == 0 && parts.joined_lse)
      parts.joined_lse[b * parts.lse_batch_stride + h * parts.lse_head_stride + i * parts.lse_row_stride] =
          fold_lse(fold_top, total);
  }
};

template <class Tr>
__device__ __forceinline__ void attention_decode(const DecodeArgs& a) {
  extern __shared__ __align__(1024) char raw[];
  if ((shared_address(raw) & 1023) != 0) __trap();
  const DecodeMemory<Tr> mem(raw);
  DecodeWarp<Tr> group(a, mem);
  const int warp = group.warp, first = group.ahead.item, end = group.ahead.end;
  if (threadIdx.x == 0) prefetch_map(&a.k), prefetch_map(&a.v);
  if (group.lane == 0)
    for (int s = 0; s < Tr::kStages; ++s) mem.full[warp * Tr::kStages + s].init(1);
  fence_barrier_init();
  __syncwarp();
  group.ahead.enter(a, warp);
  group.ahead.settle(a, warp);
  for (int s = 0; s < Tr::kStages; ++s) group.ask(s);
  group.load_queries(first);
  let_next_kernel_begin();
  int step = 0;
  for (int item = first; item < end; ++item) {
    DecodeCursor<Tr> now{item, end, 0, -1, 0, 0};
    now.enter(a, warp);
    const int part = item % a.parts.count;
    group.begin(now.b, part);
    group.load_queries(item + 1);  // early: they come behind all that is asked for
    // Tiles that every row sees whole need no comparison.
    const int whole_from = larger(seen_in(a.mask, now.b, a.M - 1).lo, 0);
    const int whole_to = smaller(seen_in(a.mask, now.b, 0).hi, a.N);
    for (int tile = now.tile; tile <= now.last; tile += Tr::kWarps, ++step) {
      const int stage = step % Tr::kStages;
      const std::uint32_t keys = shared_address(mem.ring) + (warp * Tr::kStages + stage) * 2 * Tr::key_bytes;
      mem.full[warp * Tr::kStages + stage].wait(step / Tr::kStages & 1);
      __syncwarp();
      std::uint32_t v[DecodeWarp<Tr>::kAtOnce][4];
      group.scores(keys);
      group.load_values(v, keys + Tr::key_bytes, 0);
      if (tile * kDecodeKeys < whole_from || (tile + 1) * kDecodeKeys > whole_to) group.hide(tile);
      group.weights();
      group.values(v, keys + Tr::key_bytes);
      __syncwarp();
      group.ask(stage);
    }
    if (item != first) __syncthreads();  // the item before has been joined
    group.leave();
    __syncthreads();
    group.join(now, part);
  }
}

}  // namespace attend::cuda

#define ATTEND_DECODE_KERNEL(NAME, T, D)                                                                      \
  extern "C" __global__ void __launch_bounds__(32 * attend::cuda::kDecode##D.warps, 1)                        \
      decode_##D##_##NAME(const __grid_constant__ attend::cuda::DecodeArgs a) {                               \
    attend::cuda::attention_decode<attend::cuda::DecodeTraits<attend::cuda::T, attend::cuda::kDecode##D>>(a); \
  }
