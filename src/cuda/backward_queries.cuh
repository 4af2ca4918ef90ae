// The gradient of the queries above 128 dims: an item is 128 queries of a head, 64 a warpgroup, against the keys they
// see, 64 a step. Scores and the weights' gradients are made again, as they are for the gradients of keys and values:
// adding dQ up in memory, 256 floats a query for every 64 keys, takes longer than that. No order, no sums, always the
// same bits.
#pragma once

#include "cuda/backward_group.cuh"

namespace attend::cuda {

template <class Element>
struct QueriesTraits {
  using T = Element;
  static constexpr int D = 256, kKeys = 64, kRows = 64, kGroups = 2, kThreads = 3 * kWarpgroup;
  static constexpr int tile_bytes = 64 * D * 2;  // of keys, values, a warpgroup's queries or dout
  static constexpr int chunk = 64 * 128;         // 64 columns of a tile
  static constexpr int shared_bytes = kQueriesShared;
  static_assert(7 * tile_bytes + 256 <= shared_bytes && shared_bytes <= 227 * 1024);
};

struct QueriesItem {
  int m, h, b;      // m < 0: no more
  int first, last;  // blocks of keys
};
struct QueriesShared {
  Barrier rows_full, rows_empty;  // queries and dout
  Barrier key_full[2], key_empty[2], value_full, value_empty;
  QueriesItem items[2];
};
struct QueriesMemory {
  char *q, *dout, *k, *v;
  QueriesShared* shared;
};

__device__ __forceinline__ QueriesItem queries_item(const BackwardArgs& a, int t) {
  const int tiles = (a.steps + 1) / 2, heads = a.B * a.H, section = t / (tiles * a.query_section);
  const int r = t % (tiles * a.query_section), width = smaller(a.query_section, heads - section * a.query_section);
  const int head = section * a.query_section + r % width, m = tiles - 1 - r / width, b = head / a.H;
  const int2* const blocks = a.rows.blocks + b * a.steps;
  return {m, head % a.H, b, blocks[2 * m].x, blocks[smaller(2 * m + 1, a.steps - 1)].y};
}

// The copying thread.
template <class Tr>
__device__ __forceinline__ void queries_copy(const BackwardArgs& a, const QueriesMemory& mem) {
  QueriesShared& sh = *mem.shared;
  const int total = (a.steps + 1) / 2 * a.B * a.H;
  const auto ask = [&] { return static_cast<int>(gridDim.x) + atomicAdd(a.counter, 1); };
  int step = 0, next_item = static_cast<int>(blockIdx.x);
  for (int tile = 0;; ++tile) {
    const int t = next_item;
    QueriesItem item{-1, 0, 0, 0, 0};
    if (t < total) item = queries_item(a, t), next_item = ask();
    sh.rows_empty.wait((tile & 1) ^ 1);
    sh.items[tile & 1] = item;
    if (t >= total) {
      if (t == total + static_cast<int>(gridDim.x) - 1) *a.counter = 0;
      sh.rows_full.arrive();
      return;
    }
    sh.rows_full.expect(2 * Tr::kGroups * Tr::tile_bytes);
    for (int g = 0; g < Tr::kGroups; ++g)
      for (int c = 0; c < Tr::D / 64; ++c) {
        const int row = (item.m * Tr::kGroups + g) * Tr::kRows;
        load_box(mem.q + g * Tr::tile_bytes + c * Tr::chunk, &a.q, &sh.rows_full, c * 64, row, item.h, item.b);
        load_box(mem.dout + g * Tr::tile_bytes + c * Tr::chunk, &a.dout, &sh.rows_full, c * 64, row, item.h, item.b);
      }
    const int hk = item.h / a.G;
    for (int j = item.last; j >= item.first; --j, ++step) {
      const int s = step & 1;
      sh.key_empty[s].wait((step >> 1 & 1) ^ 1);
      sh.key_full[s].expect(Tr::tile_bytes);
      for (int c = 0; c < Tr::D / 64; ++c)
        load_box(mem.k + s * Tr::tile_bytes + c * Tr::chunk, &a.k, &sh.key_full[s], c * 64, j * Tr::kKeys, hk, item.b);
      sh.value_empty.wait((step & 1) ^ 1);
      sh.value_full.expect(Tr::tile_bytes);
      for (int c = 0; c < Tr::D / 64; ++c)
        load_box(mem.v + c * Tr::chunk, &a.v, &sh.value_full, c * 64, j * Tr::kKeys, hk, item.b);
    }
  }
}

// A warpgroup's 64 queries.
template <class Tr>
struct QueriesGroup {
  using T = typename Tr::T;
  const BackwardArgs& a;
  int warp, lane;
  SharedOperand q, dout, k, v, k_rows;
  float dq[Tr::D / 2], s[Tr::kKeys / 2], dp[Tr::kKeys / 2];
  std::uint32_t ds[Tr::kKeys / 4];  // packed
  float lse2[2], delta[2];
  int2 seen[2], whole;  // of this thread's rows; the keys that all of the warpgroup's rows see

  __device__ __forceinline__ QueriesGroup(const BackwardArgs& args, const QueriesMemory& mem, int w)
      : a(args),
        warp(static_cast<int>(threadIdx.x) % kWarpgroup / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        q(mem.q + w * Tr::tile_bytes, 16),
        dout(mem.dout + w * Tr::tile_bytes, 16),
        k(mem.k, 16),
        v(mem.v, 16),
        k_rows(mem.k, Tr::chunk) {}

  __device__ __forceinline__ void begin(const QueriesItem& item, int w) {
#pragma unroll
    for (int n = 0; n < Tr::D / 2; ++n) dq[n] = 0;
#pragma unroll
    for (int n = 0; n < Tr::kKeys / 4; ++n) ds[n] = 0;
    const int first = (item.m * Tr::kGroups + w) * Tr::kRows;
    const int2* const of_batch = a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded;
    const std::int64_t head = (static_cast<std::int64_t>(item.b) * a.H + item.h) * a.padded;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + warp * 16 + lane / 4 + 8 * r;
      const bool there = i < a.padded;
      lse2[r] = there ? a.rows.lse2[head + i] : INFINITY;
      delta[r] = there ? a.rows.delta[head + i] : 0.0F;
      seen[r] = there ? of_batch[i] : make_int2(0, 0);
    }
    whole = make_int2(0, 0);
    if (first < a.padded) {
      const int2 top = of_batch[first], bottom = of_batch[first + Tr::kRows - 1];
      whole = make_int2(bottom.x, smaller(top.y, bottom.y));  // neither end ever falls, but for rows that are not there
    }
  }
  // S = Q K^T
  __device__ __forceinline__ void scores(int stage) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kKeys>::template ss<0, 0>(s, q.at(n / 4 * Tr::chunk + n % 4 * 32),
                                               k.at(stage * Tr::tile_bytes + n / 4 * Tr::chunk + n % 4 * 32), n != 0);
    products_commit();
  }
  // dP = dO V^T
  __device__ __forceinline__ void weight_gradients() {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kKeys>::template ss<0, 0>(dp, dout.at(n / 4 * Tr::chunk + n % 4 * 32),
                                               v.at(n / 4 * Tr::chunk + n % 4 * 32), n != 0);
    products_commit();
  }
  // dQ += dS K
  __device__ __forceinline__ void add(int stage) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::kKeys / 16; ++n)
      Product<T, Tr::D>::template rs<1>(dq, ds + 4 * n, k_rows.at(stage * Tr::tile_bytes + n * 2048), 1);
    products_commit();
  }
  // P from S, in place.
  __device__ __forceinline__ void weights(int block) {
#pragma unroll
    for (int e = 0; e < Tr::kKeys / 2; ++e) s[e] = exp2_fast(fmaf(s[e], a.scale2, -lse2[e / 2 & 1]));
    if (block * Tr::kKeys >= whole.x && (block + 1) * Tr::kKeys <= whole.y) return;
#pragma unroll
    for (int e = 0; e < Tr::kKeys / 2; ++e) {
      const int key = block * Tr::kKeys + e / 4 * 8 + lane % 4 * 2 + (e & 1), r = e / 2 & 1;
      if (key < seen[r].x || key >= seen[r].y) s[e] = 0;
    }
  }
  // dS = P (dP - delta), packed.
  __device__ __forceinline__ void score_gradients() {
#pragma unroll
    for (int e = 0; e < Tr::kKeys / 2; ++e) s[e] *= dp[e] - delta[e / 2 & 1];
#pragma unroll
    for (int n = 0; n < Tr::kKeys / 4; ++n) ds[n] = pack<T>(s[2 * n], s[2 * n + 1]);
  }
  __device__ __forceinline__ void store(const QueriesItem& item, int w) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = (item.m * Tr::kGroups + w) * Tr::kRows + warp * 16 + lane / 4 + 8 * r;
      if (i < a.M)
        store_row<T, Tr::D>(a.dq, item.b * a.dq.batch_stride + item.h * a.dq.head_stride + i * a.dq.row_stride,
                            lane % 4 * 2, dq + 2 * r, a.scale, a.D);
    }
  }
};

template <class Tr>
__device__ __forceinline__ void queries_multiply(const BackwardArgs& a, const QueriesMemory& mem, int w) {
  constexpr int kTurn = 2;  // named barriers: whose turn it is to issue products
  QueriesShared& sh = *mem.shared;
  QueriesGroup<Tr> group(a, mem, w);
  const auto arrive = [&](Barrier& barrier) {
    __syncwarp();
    if (group.lane == 0) barrier.arrive();
  };
  if (w == 1) arrive_threads(kTurn, 2 * kWarpgroup);
  int step = 0;
  for (int tile = 0;; ++tile) {
    sh.rows_full.wait(tile & 1);
    const QueriesItem given = sh.items[tile & 1];
    const QueriesItem item{uniform(given.m), uniform(given.h), uniform(given.b), uniform(given.first),
                           uniform(given.last)};
    if (item.m < 0) break;
    group.begin(item, w);
    for (int j = item.last; j >= item.first; --j, ++step) {
      const int now = uniform(step), last = uniform(j == item.last ? step : step - 1);  // nothing is added at first
      sh.key_full[now & 1].wait(now >> 1 & 1);
      sync_threads(kTurn + w, 2 * kWarpgroup);
      group.add(last & 1);
      group.scores(now & 1);
      sh.value_full.wait(now & 1);
      group.weight_gradients();
      arrive_threads(kTurn + (w ^ 1), 2 * kWarpgroup);
      products_wait<2>();  // dQ
      if (j != item.last) arrive(sh.key_empty[last & 1]);
      products_wait<1>();  // S
      group.weights(j);
      products_wait<0>();  // dP
      arrive(sh.value_empty);
      group.score_gradients();
    }
    const int last = uniform(step - 1);
    group.add(last & 1);
    products_wait<0>();
    arrive(sh.key_empty[last & 1]);
    arrive(sh.rows_empty);
    group.store(item, w);
  }
}

template <class Tr>
__device__ __forceinline__ void backward_queries(const BackwardArgs& a) {
  extern __shared__ __align__(1024) char raw[];
  if ((shared_address(raw) & 1023) != 0) __trap();
  const QueriesMemory mem{raw, raw + 2 * Tr::tile_bytes, raw + 4 * Tr::tile_bytes, raw + 6 * Tr::tile_bytes,
                          reinterpret_cast<QueriesShared*>(raw + 7 * Tr::tile_bytes)};
  QueriesShared& sh = *mem.shared;
  static_assert(sizeof(QueriesShared) <= 256);
  if (threadIdx.x == 0) {
    constexpr int kWarps = 8;
    sh.rows_full.init(1), sh.rows_empty.init(kWarps);
    for (int s = 0; s < 2; ++s) sh.key_full[s].init(1), sh.key_empty[s].init(kWarps);
    sh.value_full.init(1), sh.value_empty.init(kWarps);
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_kernel();
  if (threadIdx.x < kWarpgroup) {
    give_registers<24>();
    if (threadIdx.x == 0) queries_copy<Tr>(a, mem);
  } else {
    take_registers<240>();
    queries_multiply<Tr>(a, mem, uniform(static_cast<int>(threadIdx.x) / kWarpgroup - 1));
  }
}

}  // namespace attend::cuda

#define ATTEND_QUERIES_KERNEL(NAME, T)                                                    \
  extern "C" __global__ void __launch_bounds__(3 * attend::cuda::kWarpgroup, 1)           \
      backward_queries_256_##NAME(const __grid_constant__ attend::cuda::BackwardArgs a) { \
    attend::cuda::backward_queries<attend::cuda::QueriesTraits<attend::cuda::T>>(a);      \
  }
