// Attention backward on Hopper: an item is a block of keys of one KV head against all queries that see them, some a
// step. Scores are made transposed, 64 keys a warpgroup, so that weights and their gradients come out as the A operands
// of the products they go into. Up to 128 dims two warpgroups share 128 keys; above, they have the same 64.
#pragma once

#include "cuda/backward_group.cuh"

namespace attend::cuda {

template <class Tr>
__device__ __forceinline__ void backward_copy(const BackwardArgs& a, const BackwardMemory<Tr>& mem) {
  BackwardShared<Tr>& sh = *mem.shared;
  const int total = a.key_blocks * a.B * a.Hk;
  // The first item needs no asking.
  const auto ask = [&] { return static_cast<int>(gridDim.x) + atomicAdd(a.counter, 1); };
  int step = 0, next_item = static_cast<int>(blockIdx.x);
  for (int tile = 0;; ++tile) {
    const int t = next_item;
    BackwardItem item{-1, 0, 0, 0, 0};
    if (t < total) item = backward_item(a, t), next_item = ask();
    sh.keys_empty.wait((tile & 1) ^ 1);
    sh.items[tile & 1] = item;
    if (t >= total) {
      if (t == total + static_cast<int>(gridDim.x) - 1) *a.counter = 0;
      sh.keys_full.arrive();
      return;
    }
    sh.keys_full.expect(2 * Tr::key_bytes);
    for (int c = 0; c < Tr::D / 64; ++c) {
      load_box(mem.k + c * Tr::key_chunk, &a.k, &sh.keys_full, c * 64, item.n * Tr::kKeys, item.hk, item.b);
      load_box(mem.v + c * Tr::key_chunk, &a.v, &sh.keys_full, c * 64, item.n * Tr::kKeys, item.hk, item.b);
    }
    for (int g = 0; g < a.G; ++g) {
      const int h = item.hk * a.G + g;
      const std::int64_t rows = (static_cast<std::int64_t>(item.b) * a.H + h) * a.padded;
      const ItemSteps<Tr::kHoles> steps(a, item, h);
      for (int i = steps.last(item); i >= item.first; i = steps.before(i), ++step) {
        const int u = step % Tr::kQueryStages, s = step % Tr::kDoutStages;
        sh.query_empty[u].wait((step / Tr::kQueryStages & 1) ^ 1);
        sh.query_full[u].expect(Tr::query_bytes + Tr::kStep * 12);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.q + u * Tr::query_bytes + c * Tr::query_chunk, &a.q, &sh.query_full[u], c * 64, i * Tr::kStep, h,
                   item.b);
        load_bytes(mem.lse2 + u * Tr::kStep, a.rows.lse2 + rows + i * Tr::kStep, Tr::kStep * 4, &sh.query_full[u]);
        load_bytes(mem.seen + u * Tr::kStep, a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded + i * Tr::kStep,
                   Tr::kStep * 8, &sh.query_full[u]);
        sh.dout_empty[s].wait((step / Tr::kDoutStages & 1) ^ 1);
        sh.dout_full[s].expect(Tr::query_bytes + Tr::kStep * 4);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.dout + s * Tr::query_bytes + c * Tr::query_chunk, &a.dout, &sh.dout_full[s], c * 64,
                   i * Tr::kStep, h, item.b);
        load_bytes(mem.delta + s * Tr::kStep, a.rows.delta + rows + i * Tr::kStep, Tr::kStep * 4, &sh.dout_full[s]);
      }
    }
  }
}

// How many items add to a step's gradients before this one.
template <class Tr>
__device__ __forceinline__ int turn_in(const BackwardArgs& a, const BackwardItem& item, int h, int i) {
  const int first = a.rows.blocks[item.b * a.steps + i].x;
  const MaskBits& bits = a.mask.bits;
  if constexpr (Tr::kHoles)
    if (bits.tiles != nullptr) {
      const MaskTile* const tiles = bits.tiles + item.b * bits.tile_batch_stride + h * bits.tile_head_stride +
                                    static_cast<std::int64_t>(i) * bits.row_tiles;
      return tiles[item.n].before() - tiles[first].before();
    }
  return item.n - first;
}

// A thread that adds gradients of queries to their sums, one of the even steps and one of the odd: the blocks of keys
// in rising order, where an order is asked for. An item waits for earlier items of its head alone, which were handed
// out before it.
template <class Tr>
__device__ __forceinline__ void backward_add(const BackwardArgs& a, const BackwardMemory<Tr>& mem, int odd) {
  BackwardShared<Tr>& sh = *mem.shared;
  const auto turn_of = [](const int* at) {
    int turn;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(turn) : "l"(at) : "memory");
    return turn;
  };
  int step = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem item = sh.items[tile & 1];
    if (item.n < 0) return;
    sh.keys_empty.arrive();  // it has been read
    for (int g = 0; g < a.G; ++g) {
      const int h = item.hk * a.G + g;
      const ItemSteps<Tr::kHoles> steps(a, item, h);
      for (int i = steps.last(item); i >= item.first; i = steps.before(i), ++step) {
        if ((step & 1) != odd) continue;
        const std::int64_t at = (static_cast<std::int64_t>(item.b) * a.H + h) * a.steps + i;
        const int turn = a.turns ? turn_in<Tr>(a, item, h, i) : 0;
        if (turn > 0)
          while (turn_of(a.turns + at) != turn) {
          }
        for (int w = 0; w < 2; ++w) {
          sh.dq_full[w][odd].wait(step >> 1 & 1);
          float* const to = a.dq_sums + (2 * at + w) * (Tr::dq_bytes / 4);
          if (a.turns && turn == 0)
            store_floats(to, mem.dq_place(w, step), Tr::dq_bytes);
          else
            add_floats(to, mem.dq_place(w, step), Tr::dq_bytes);
          commit_stores();
        }
        wait_stores_read();
        if constexpr (Tr::kWide)
          sh.dout_empty[step % Tr::kDoutStages].arrive(), sh.query_empty[step % Tr::kQueryStages].arrive();
        else
          for (int w = 0; w < 2; ++w) sh.dq_empty[w][step % Tr::kDqBuffers].arrive();
        if (a.turns == nullptr) continue;
        wait_stores();
        asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.s32 [%0], %1;" ::"l"(a.turns + at), "r"(turn + 1)
                     : "memory");
      }
    }
  }
}

__device__ __forceinline__ BackwardItem uniform(const BackwardItem& item) {
  return {uniform(item.n), uniform(item.hk), uniform(item.b), uniform(item.first), uniform(item.last)};
}
__device__ __forceinline__ void arrive_warp(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

// The first half of a step: weights and the scores' gradients, packed. With kEarlyValues dV is under way at its end.
template <class Tr>
__device__ __forceinline__ void backward_scores(const BackwardItem& item, BackwardGroup<Tr>& group, int h, int i,
                                                bool holes, int now) {
  BackwardShared<Tr>& sh = *group.mem.shared;
  const int u = now % Tr::kQueryStages, st = now % Tr::kDoutStages;
  sh.query_full[u].wait(now / Tr::kQueryStages & 1);
  group.scores(u);
  sh.dout_full[st].wait(now / Tr::kDoutStages & 1);
  group.weight_gradients(st);
  const bool all = group.sees_all(item.n, u);
  if constexpr (Tr::kHoles)
    if (holes) group.fetch_bits(item, h, i);
  [[maybe_unused]] typename BackwardGroup<Tr>::LightRows rows{};
  if constexpr (Tr::kLight) rows = group.fetch_rows(item, h, i);
  if constexpr (Tr::kStep == 64) group.load_lse(u);  // early, where there are registers
  products_wait<1>();                                // S
  if constexpr (Tr::kStep != 64) group.load_lse(u);
  if constexpr (Tr::kLight)
    group.light_weights(item, h, i, u, all, rows);
  else
    group.weights(item, h, i, u, all, holes);
  if constexpr (Tr::kEarlyValues) {
    if constexpr (!Tr::kLight) group.pack_weights(item, h, i);
    group.value_gradients(st);
    group.load_delta(st);
    products_wait<1>();  // dP
    group.score_gradients(item, h, i);
    return;
  }
  if constexpr (Tr::kStep == 64) group.load_delta(st);
  products_wait<0>();  // dP
  if constexpr (Tr::kStep != 64) group.load_delta(st);
  group.pack_weights(item, h, i);
  group.score_gradients(item, h, i);
}

// Up to 128 dims. dQ of a step is made one step later, when both warpgroups have written dS, and leaves beside dV and
// dK.
template <class Tr>
__device__ __forceinline__ void backward_steps(const BackwardArgs& a, const BackwardItem& item,
                                               BackwardGroup<Tr>& group, int& step) {
  BackwardShared<Tr>& sh = *group.mem.shared;
  const int w = group.w;
  StepWalk<Tr::kHoles> walk(a, item);
  const auto stage_query_gradients = [&](int number) {
    sh.dq_empty[w][number % Tr::kDqBuffers].wait((number / Tr::kDqBuffers & 1) ^ 1);
    group.stage_query_gradients(group.mem.dq_place(w, number));
  };
  for (int x = 0; walk.there(x); ++x, ++step) {
    const int now = uniform(step), last = now - 1;
    backward_scores(item, group, walk.h, walk.i, walk.steps.has_holes(walk.i), now);
    if (x > 0) sh.ds_full[last & 1].wait(last >> 1 & 1);
    group.query_gradients(last & 1);  // of nothing in the first step: a product in a branch would serialise them all
    if constexpr (!Tr::kEarlyValues) group.value_gradients(now % Tr::kDoutStages);
    group.key_gradients(now % Tr::kQueryStages);
    sh.ds_empty[now & 1].wait((now >> 1 & 1) ^ 1);
    group.stage_score_gradients(now & 1);
    products_wait<Tr::kEarlyValues ? 1 : 2>();  // dQ
    if constexpr (Tr::kEarlyValues) arrive_warp(sh.dout_empty[now % Tr::kDoutStages]);
    if (x > 0) {
      arrive_warp(sh.ds_empty[last & 1]);
      stage_query_gradients(last);
    }
    fence_async();
    arrive_warp(sh.ds_full[now & 1]);
    if (x > 0) arrive_warp(sh.dq_full[w][last & 1]);
    if constexpr (!Tr::kEarlyValues) {
      products_wait<1>();  // dV
      arrive_warp(sh.dout_empty[now % Tr::kDoutStages]);
    }
    products_wait<0>();  // dK
    arrive_warp(sh.query_empty[now % Tr::kQueryStages]);
    walk.next();
  }
  const int last = uniform(step - 1);
  sh.ds_full[last & 1].wait(last >> 1 & 1);
  group.query_gradients(last & 1);
  products_wait<0>();
  arrive_warp(sh.ds_empty[last & 1]);
  arrive_warp(sh.keys_empty);
  stage_query_gradients(last);
  fence_async();
  arrive_warp(sh.dq_full[w][last & 1]);
}

// Above 128 dims, with terms. dQ leaves through the memory of the step's queries, once both warpgroups are done with
// them.
template <class Tr>
__device__ __forceinline__ void backward_wide_steps(const BackwardArgs& a, const BackwardItem& item,
                                                    BackwardGroup<Tr>& group, int& step) {
  BackwardShared<Tr>& sh = *group.mem.shared;
  const int w = group.w;
  StepWalk<Tr::kHoles> walk(a, item);
  for (int x = 0; walk.there(x); ++x, ++step) {
    const int now = uniform(step);
    backward_scores(item, group, walk.h, walk.i, walk.steps.has_holes(walk.i), now);
    group.value_gradients(now % Tr::kDoutStages);
    group.stage_score_gradients(0);
    fence_async();
    sync_threads(1 + w, kWarpgroup);
    group.key_gradients(now % Tr::kQueryStages);
    products_wait<1>();  // dV: the registers of its weights are needed
    group.query_gradients(0);
    products_wait<1>();  // dK
    arrive_warp(sh.done);
    products_wait<0>();
    sh.done.wait(now & 1);
    group.stage_query_gradients(group.mem.dq_place(w, now));
    fence_async();
    arrive_warp(sh.dq_full[w][now & 1]);
    walk.next();
  }
  arrive_warp(sh.keys_empty);
}

// Above 128 dims, no terms: one warpgroup makes the weights and has dV, the other their gradients and has dK, so that
// nothing is made twice; dQ is another kernel's (backward_queries.cuh). Each adds to its sums one step later, beside
// the scores of the next.
template <class Tr>
__device__ __forceinline__ void backward_role_steps(const BackwardArgs& a, const BackwardItem& item,
                                                    BackwardGroup<Tr>& group, auto first, int& step) {
  BackwardShared<Tr>& sh = *group.mem.shared;
  constexpr bool kFirst = decltype(first)::value;
  const int count = (item.last - item.first + 1) * a.G;
  const auto wait_queries = [&](int now) { sh.query_full[now % Tr::kQueryStages].wait(now / Tr::kQueryStages & 1); };
  const auto wait_dout = [&](int now) { sh.dout_full[now % Tr::kDoutStages].wait(now / Tr::kDoutStages & 1); };
  const auto leave_queries = [&](int now) { arrive_warp(sh.query_empty[now % Tr::kQueryStages]); };
  const auto leave_dout = [&](int now) { arrive_warp(sh.dout_empty[now % Tr::kDoutStages]); };
  std::uint32_t(&packed)[Tr::kStep / 4] = kFirst ? group.p : group.ds;
#pragma unroll
  for (int n = 0; n < Tr::kStep / 4; ++n) packed[n] = 0;
  int i = item.last, h = item.hk * a.G;
  for (int x = 0; x < count; ++x, ++step) {
    const int now = uniform(step), last = uniform(x == 0 ? step : step - 1);  // nothing is added in the first step
    if constexpr (kFirst) {
      wait_queries(now);
      group.scores(now % Tr::kQueryStages);
      wait_dout(last);
      group.value_gradients(last % Tr::kDoutStages);
      const bool all = group.sees_all(item.n, now % Tr::kQueryStages);
      group.load_lse(now % Tr::kQueryStages);
      products_wait<1>();  // S
      group.weights(item, h, i, now % Tr::kQueryStages, all);
      sh.weights_empty[now & 1].wait((now >> 1 & 1) ^ 1);
      group.leave_weights(now & 1);
      arrive_warp(sh.weights_full[now & 1]);
      leave_queries(now);
      products_wait<0>();  // dV
      if (x > 0) leave_dout(last);
      group.pack_weights(item, h, i);
    } else {
      wait_dout(now);
      group.weight_gradients(now % Tr::kDoutStages);
      wait_queries(last);
      group.key_gradients(last % Tr::kQueryStages);
      group.load_delta(now % Tr::kDoutStages);
      sh.weights_full[now & 1].wait(now >> 1 & 1);
      group.take_weights(now & 1);
      arrive_warp(sh.weights_empty[now & 1]);
      products_wait<1>();  // dP
      leave_dout(now);
      group.multiply_gradients();
      products_wait<0>();  // dK
      if (x > 0) leave_queries(last);
      group.pack_gradients();
    }
    if (--i < item.first) i = item.last, ++h;
  }
  const int last = uniform(step - 1);
  if constexpr (kFirst) {
    wait_dout(last);
    group.value_gradients(last % Tr::kDoutStages);
  } else {
    wait_queries(last);
    group.key_gradients(last % Tr::kQueryStages);
  }
  products_wait<0>();
  if constexpr (kFirst)
    leave_dout(last);
  else
    leave_queries(last);
  arrive_warp(sh.keys_empty);
}

template <class Tr>
__device__ __forceinline__ void backward_role(const BackwardArgs& a, const BackwardMemory<Tr>& mem, auto first) {
  BackwardShared<Tr>& sh = *mem.shared;
  constexpr bool kFirst = decltype(first)::value;
  BackwardGroup<Tr> group(a, mem, kFirst ? 0 : 1);
  float(&sums)[Tr::kDims / 2] = kFirst ? group.dv : group.dk;
  int step = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem item = uniform(sh.items[tile & 1]);
    if (item.n < 0) break;
#pragma unroll
    for (int i = 0; i < Tr::kDims / 2; ++i) sums[i] = 0;
    if (item.last < item.first)  // nobody sees these keys
      arrive_warp(sh.keys_empty);
    else
      backward_role_steps(a, item, group, first, step);
    group.store_rows(item, kFirst ? a.dv : a.dk, sums, kFirst ? 1.0F : a.scale, kFirst ? a.E : a.D);
  }
}

template <class Tr>
__device__ __forceinline__ void backward_multiply(const BackwardArgs& a, const BackwardMemory<Tr>& mem, int w) {
  BackwardShared<Tr>& sh = *mem.shared;
  BackwardGroup<Tr> group(a, mem, w);
  int step = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem item = uniform(sh.items[tile & 1]);
    if (item.n < 0) break;
#pragma unroll
    for (int i = 0; i < Tr::kDims / 2; ++i) group.dk[i] = group.dv[i] = 0;
    if (!StepWalk<Tr::kHoles>(a, item).there(0))  // nobody sees these keys
      arrive_warp(sh.keys_empty);
    else if constexpr (Tr::kWide)
      backward_wide_steps(a, item, group, step);
    else
      backward_steps(a, item, group, step);
    group.store_rows(item, a.dk, group.dk, a.scale, a.D);
    group.store_rows(item, a.dv, group.dv, 1.0F, a.E);
  }
}

template <class Tr>
__device__ __forceinline__ void attention_backward(const BackwardArgs& a) {
  extern __shared__ __align__(1024) char raw[];
  if ((shared_address(raw) & 1023) != 0) __trap();
  const BackwardMemory<Tr> mem(raw);
  BackwardShared<Tr>& sh = *mem.shared;
  static_assert(sizeof(BackwardShared<Tr>) <= 1024);
  if (threadIdx.x == 0) {
    constexpr int kWarps = 8;
    constexpr int kReaders = Tr::kWide && !Tr::kRoles ? 1 : kWarps;  // of queries and dout: dQ may leave through them
    sh.keys_full.init(1), sh.keys_empty.init(Tr::kRoles ? kWarps : kWarps + 2), sh.done.init(kWarps);
    for (int s = 0; s < Tr::kQueryStages; ++s) sh.query_full[s].init(1), sh.query_empty[s].init(kReaders);
    for (int s = 0; s < Tr::kDoutStages; ++s) sh.dout_full[s].init(1), sh.dout_empty[s].init(kReaders);
    for (int s = 0; s < 2; ++s) {
      sh.ds_full[s].init(kWarps), sh.ds_empty[s].init(kWarps);
      sh.weights_full[s].init(kWarps / 2), sh.weights_empty[s].init(kWarps / 2);
      for (int n = 0; n < 2; ++n) sh.dq_full[s][n].init(kWarps / 2), sh.dq_empty[s][n].init(1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_kernel();
  if (threadIdx.x < kWarpgroup) {
    give_registers<Tr::kCopyRegisters>();
    if (threadIdx.x == 0) backward_copy<Tr>(a, mem);
    if (!Tr::kRoles && (threadIdx.x == 32 || threadIdx.x == 64))
      backward_add<Tr>(a, mem, static_cast<int>(threadIdx.x) / 32 - 1);
  } else {
    take_registers<Tr::kRegisters>();
    const int w = uniform(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
    if constexpr (!Tr::kRoles)
      backward_multiply<Tr>(a, mem, w);
    else if (w == 0)
      backward_role<Tr>(a, mem, std::true_type{});
    else
      backward_role<Tr>(a, mem, std::false_type{});
  }
}

}  // namespace attend::cuda
