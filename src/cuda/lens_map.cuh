// Pooled maps of a head's weights from sm_80 on: a second sweep over QK^T, with the LSE known. An item is a tile of
// keys, which warps hold in registers, against a part of the queries, which come step by step (cp.async). A thread adds
// up what its keys get; where a row of cells ends its warp joins the keys of each cell and writes a piece. Nothing is
// added in memory, so bits are the same every time.
#pragma once

#include "cuda/lens_args.hpp"
#include "cuda/plain_scores.cuh"
#include "cuda/plain_tiles.cuh"

namespace attend::cuda {

// Where everything lies in shared memory.
template <class Tr>
struct LensMemory {
  static constexpr int kTiles = lens_tile_bytes(Tr::kShape);
  char* base;

  __device__ __forceinline__ std::uint32_t keys() const { return shared_address(base); }
  __device__ __forceinline__ std::uint32_t queries(int stage) const {
    return shared_address(base) + stage * Tr::kColumns * Tr::D * 2;
  }
  __device__ __forceinline__ float* lse2(int stage) const {
    return reinterpret_cast<float*>(base + kTiles + stage * Tr::kColumns * kColumnBytes);
  }
  __device__ __forceinline__ float* position(int stage) const { return lse2(stage) + Tr::kColumns; }
  __device__ __forceinline__ int2* seen(int stage) const {
    return reinterpret_cast<int2*>(position(stage) + Tr::kColumns);
  }
};

// A warp's keys against the queries of its item.
template <class Tr>
struct LensWarp {
  using T = typename Tr::T;
  static constexpr int kRowTiles = Tr::kRowTiles, kTwo = 2 * kRowTiles, kColumns = Tr::kColumns;
  static_assert(Tr::kWarpRows == kLensKeys);  // a lane for each
  const LensArgs& a;
  const LensMemory<Tr>& mem;
  int lane, col0, key0, part;
  int from, end;       // queries of the item
  int row, piece_end;  // of cells; the first query that is not its, or not the item's
  int before;          // keys of the lane's cell that lanes before it have
  std::int64_t slot;   // of the piece that the lane writes; less than 0: none
  bool used, some;     // the warp has keys of the area; sums to write
  HeldRows<kRowTiles, Tr::D / 16> held;
  float s[kRowTiles][kColumns / 2];
  float mass[kTwo], peak[kTwo];  // of the thread's keys

  __device__ __forceinline__ LensWarp(const LensArgs& args, const LensMemory<Tr>& memory, int tile, int of_part)
      : a(args),
        mem(memory),
        lane(static_cast<int>(threadIdx.x) % 32),
        col0(lane % 4 * 2),
        key0(tile * Tr::kRows + static_cast<int>(threadIdx.x) / 32 * kLensKeys),
        part(of_part),
        some(false) {
    from = larger(a.queries.begin(a.first_row), part * a.part_queries);
    end = smaller(a.queries.begin(a.end_row), (part + 1) * a.part_queries);
    const int first = static_cast<int>(a.keys.first), last = first + static_cast<int>(a.keys.length);
    used = key0 < last && key0 + kLensKeys > first;
    const int key = key0 + lane;
    before = 0, slot = -1;
    if (key >= first && key < last) {
      const int cell = a.keys.cell(key);
      before = key - larger(a.keys.begin(cell), key0);
      if (lane == kLensKeys - 1 || key + 1 == a.keys.begin(cell + 1)) slot = a.key_piece(cell, key0 / kLensKeys);
    }
#pragma unroll
    for (int n = 0; n < kTwo; ++n) mass[n] = peak[n] = 0;
  }
  __device__ __forceinline__ int key(int n) const { return key0 + n / 2 * 16 + n % 2 * 8 + lane / 4; }

  // The row of cells that query i is in.
  __device__ __forceinline__ void enter(int i) {
    row = a.queries.cell(i);
    piece_end = smaller(end, a.queries.begin(row + 1));
  }

  // Scores to weights, where nothing is seen 0.
  __device__ __forceinline__ void weights(int stage, int i0, bool all, bool holes) {
    if constexpr (Tr::kTerms) {
      const auto place = [&](int, int c) { return RowPlace{a.b, a.h, i0 + col0 + c}; };
      const ScoreTerms& terms = a.terms;
      float slope = 0;
      if (terms.alibi.data)
        slope = load_float(terms.alibi, a.b * terms.alibi.batch_stride + a.h * terms.alibi.head_stride);
      add_terms(
          s, terms, a.mask, a.scale, place, [&](int n, int) { return key(n); },
          [&](int, int c) { return RowSlope{slope, mem.position(stage)[col0 + c]}; });
      if (holes)
        each_asked(
            s, [&](int n, int c) { return is_shown(a.mask, place(n, c), key(n)); },
            [](float& x, bool shown) { x = shown ? x : -INFINITY; });
    }
    const float* const lse2 = mem.lse2(stage) + col0;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(lse2 + 8 * i);
      float2 top = make_float2(0, 0);
      if constexpr (Tr::kTerms) top = *reinterpret_cast<const float2*>(a.top + i0 + col0 + 8 * i);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = s[m][4 * i + e];
          const float rest = e % 2 == 0 ? two.x : two.y;
          if constexpr (Tr::kTerms)
            x = exp2_fast(weight_exponent(x, e % 2 == 0 ? top.x : top.y, rest));
          else
            x = exp2_fast(fmaf(x, a.scale2, -rest));
        }
    }
    if (all) return;
    each_score(s, [&](float& x, int n, int c) {
      const int2 seen = mem.seen(stage)[col0 + c];
      if (key(n) < seen.x || key(n) >= seen.y) x = 0;
    });
  }

  // Adds columns [c0, c1) of the weights: a step's sum first, so that long sums have few terms.
  __device__ __forceinline__ void add(int c0, int c1) {
    float sum[kTwo];
#pragma unroll
    for (int n = 0; n < kTwo; ++n) sum[n] = 0;
    if (c0 == 0 && c1 == kColumns)
      each_score(s, [&](float& x, int n, int) { sum[n] += x, peak[n] = fmaxf(peak[n], x); });
    else
      each_score(s, [&](float& x, int n, int c) {
        const float w = col0 + c >= c0 && col0 + c < c1 ? x : 0.0F;
        sum[n] += w, peak[n] = fmaxf(peak[n], w);
      });
#pragma unroll
    for (int n = 0; n < kTwo; ++n) mass[n] += sum[n];
    some = true;
  }
  // The sums of each key, joined to those of the cells and written: lane n has key n.
  __device__ __forceinline__ void write() {
    float m = 0, p = 0;
#pragma unroll
    for (int n = 0; n < kTwo; ++n) {
      float x = mass[n], y = peak[n];
      x += __shfl_xor_sync(~0U, x, 1), y = fmaxf(y, __shfl_xor_sync(~0U, y, 1));
      x += __shfl_xor_sync(~0U, x, 2), y = fmaxf(y, __shfl_xor_sync(~0U, y, 2));
      if (lane % 4 == n) m = x, p = y;
      mass[n] = peak[n] = 0;
    }
    const int holder = lane % 8 * 4 + lane / 8;
    m = __shfl_sync(~0U, m, holder), p = __shfl_sync(~0U, p, holder);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float x = __shfl_up_sync(~0U, m, d), y = __shfl_up_sync(~0U, p, d);
      if (d <= before) m += x, p = fmaxf(p, y);
    }
    if (m != m) p = m;
    if (slot >= 0) a.pieces[a.query_piece(row, part) * a.row_pieces + slot] = make_float2(m, p);
    some = false;
  }
  // The weights of a step to their rows of cells; `seen`: the warp has made some.
  __device__ __forceinline__ void pool(int i0, bool seen) {
    const int last = smaller(end, i0 + kColumns);
    for (int i = larger(from, i0); i < last;) {
      const int to = smaller(last, piece_end);
      if (seen) add(i - i0, to - i0);
      if (to == piece_end) {
        if (some) write();
        if (to < end) enter(to);
      }
      i = to;
    }
  }

  __device__ __forceinline__ void step(int stage, int i0, int holes) {
    if (!used) return;
    const int last = smaller(i0 + kColumns, a.M) - 1 - i0;
    const int2 top = mem.seen(stage)[0], bottom = mem.seen(stage)[last];
    const bool seen = holes != 0 && key0 < bottom.y && key0 + kLensKeys > top.x;
    if (seen) {
      multiply_held<T, kColumns>(s, held, lane_of_columns(mem.queries(stage)));
      weights(stage, i0, bottom.x <= key0 && top.y >= key0 + kLensKeys, holes == 1);
    }
    pool(i0, seen);
  }
};

template <class Tr>
__device__ __forceinline__ void lens_map(const LensArgs& a) {
  extern __shared__ __align__(128) char raw[];
  const LensMemory<Tr> mem{raw};
  const int part = a.first_part + a.parts - 1 - static_cast<int>(blockIdx.x) / a.tiles;
  const int tile = a.first_tile + static_cast<int>(blockIdx.x) % a.tiles, first_key = tile * Tr::kRows;
  LensWarp<Tr> warp(a, mem, tile, part);

  // The first step of those that `is`, which hold from there on.
  const auto first_step = [&](int low, int high, auto&& is) {
    while (low < high) {
      const int middle = (low + high) / 2;
      if (is(middle))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  const int steps = (warp.end + Tr::kColumns - 1) / Tr::kColumns;
  const int first = first_step(warp.from / Tr::kColumns, steps, [&](int x) {
    return seen_in(a.mask, a.b, smaller((x + 1) * Tr::kColumns, a.M) - 1).hi > first_key;
  });
  const int past = first_step(
      first, steps, [&](int x) { return seen_in(a.mask, a.b, x * Tr::kColumns).lo >= first_key + Tr::kRows; });
  if (first >= past) return;

  const RowCopies<Tr::D> keys(a.k_rows, a.b, a.hk, a.N, a.D), queries(a.q_rows, a.b, a.h, a.M, a.D);
  keys.template clear<Tr::kRows>(mem.keys());
  keys.template copy<Tr::kRows>(mem.keys(), first_key);
  commit_copies();
  wait_copies();
  __syncthreads();
  hold_rows<Tr::kRows>(warp.held, lane_of_rows(mem.keys()) + static_cast<int>(threadIdx.x) / 32 * kLensKeys * 128);
  __syncthreads();  // queries lie there from now on
#pragma unroll
  for (int stage = 0; stage < Tr::kStages; ++stage) queries.template clear<Tr::kColumns>(mem.queries(stage));
  const auto copy_step = [&](int x) {
    const int stage = x % Tr::kStages, i = (first + x) * Tr::kColumns, n = static_cast<int>(threadIdx.x);
    queries.template copy<Tr::kColumns>(mem.queries(stage), i);
    constexpr int kFours = Tr::kColumns / 4;
    const void* const numbers = n < kFours       ? static_cast<const void*>(a.lse2 + i + 4 * n)
                                : n < 2 * kFours ? static_cast<const void*>(a.position + i + 4 * (n - kFours))
                                                 : a.seen + i + 2 * (n - 2 * kFours);
    if (n < 4 * kFours) copy_sixteen(shared_address(mem.lse2(stage)) + 16 * n, numbers);
  };
  const auto holes = [&](int x) {  // 0: all is hidden; 2: nothing
    if (!Tr::kTerms || a.mask.bits.words == nullptr) return 2;
    const MaskBits& bits = a.mask.bits;
    const std::int64_t head = a.b * bits.tile_batch_stride + a.h * bits.tile_head_stride;
    return bits.tiles[head + static_cast<std::int64_t>(first + x) * bits.row_tiles + tile].state();
  };
  warp.enter(larger(warp.from, first * Tr::kColumns));
  walk_steps<Tr>(past - first, copy_step,
                 [&](int x) { warp.step(x % Tr::kStages, (first + x) * Tr::kColumns, holes(x)); });
  if (warp.some) warp.write();
}

}  // namespace attend::cuda

// Terms take more registers.
#define ATTEND_LENS_KERNEL(NAME, T, D, TERMS)                                                                          \
  extern "C" __global__ void __launch_bounds__(attend::cuda::kPlainThreads, TERMS ? 2 : attend::cuda::kLens##D.blocks) \
      NAME(const __grid_constant__ attend::cuda::LensArgs a) {                                                         \
    attend::cuda::lens_map<attend::cuda::PlainTraits<attend::cuda::T, attend::cuda::kLens##D, TERMS>>(a);              \
  }
#define ATTEND_LENS_KERNELS(NAME, T, D)                  \
  ATTEND_LENS_KERNEL(lens_map_##D##_##NAME, T, D, false) \
  ATTEND_LENS_KERNEL(lens_map_terms_##D##_##NAME, T, D, true)
