// Attention forward on Hopper: one warp copies, two or three warpgroups of 64 rows multiply alternately.
#pragma once

#include "cuda/forward_group.cuh"

namespace attend::cuda {

template <class Tr>
struct ForwardShared {
  Barrier query_full[Tr::kQueryStages], query_empty[Tr::kQueryStages];
  Barrier key_full[Tr::kStages], key_empty[Tr::kStages], value_full[Tr::kStages], value_empty[Tr::kStages];
  ForwardItem items[Tr::kQueryStages + 1];  // one more: a result is stored while the next queries come
  int2 blocks[Tr::kStages];                 // with bits: which block, and kLastBlock, kHasHoles
};

__device__ __forceinline__ ForwardItem forward_item(const ForwardArgs& a, int t) {
  const int split = t % a.splits, heads = a.B * a.H;
  t /= a.splits;
  const int section = t / (a.row_tiles * a.section), r = t % (a.row_tiles * a.section);
  const int width = smaller(a.section, heads - section * a.section), head = section * a.section + r % width;
  return {a.row_tiles - 1 - r / width, head % a.H, head / a.H, split};
}

// The copying thread.
template <class Tr>
__device__ __forceinline__ void forward_copy(const ForwardArgs& a, ForwardShared<Tr>& sh, char* sq, char* sk,
                                             char* sv) {
  const int tokens = 64 / a.packed, total = a.row_tiles * a.B * a.H * a.splits;
  // The first item needs no asking.
  const auto ask = [&] { return static_cast<int>(gridDim.x) + atomicAdd(a.counter, 1); };
  int step = 0, next_item = static_cast<int>(blockIdx.x);
  for (int tile = 0;; ++tile) {
    const int t = next_item;
    const int qs = tile % Tr::kQueryStages;
    ForwardItem& place = sh.items[tile % (Tr::kQueryStages + 1)];
    sh.query_empty[qs].wait((tile / Tr::kQueryStages & 1) ^ 1);
    if (t >= total) {
      if (t == total + static_cast<int>(gridDim.x) - 1) *a.counter = 0;  // the last to ask leaves it as it was
      place.m = -1;
      sh.query_full[qs].arrive();
      return;
    }
    const ForwardItem item = forward_item(a, t);
    place = item;
    next_item = ask();  // asked for a tile ahead: the answer takes as long as a short tile
    // A box of packed heads may be shorter than 64 rows.
    sh.query_full[qs].expect(Tr::kGroups * (Tr::D / 64) * tokens * a.packed * 128);
    for (int g = 0; g < Tr::kGroups; ++g)
      for (int c = 0; c < Tr::D / 64; ++c)
        load_box(sq + (qs * Tr::kGroups + g) * Tr::query_bytes + c * 8192, &a.q, &sh.query_full[qs], c * 64, 0,
                 (item.m * Tr::kGroups + g) * tokens, item.h, item.b);
    const int i0 = item.m * tokens * Tr::kGroups, i1 = smaller(a.M, i0 + tokens * Tr::kGroups) - 1;
    const BlockRange range = visited<Tr>(a, item, seen_by(a.mask, item.b, i0).lo, seen_by(a.mask, item.b, i1).hi);
    const int hk = item.h / a.group;
    int next = range.last;
    [[maybe_unused]] const MaskBits& bits = a.mask.bits;
    [[maybe_unused]] const MaskTile* const tiles = bits.tiles + item.b * bits.tile_batch_stride +
                                                   item.h * bits.tile_head_stride +
                                                   static_cast<std::int64_t>(item.m) * bits.row_tiles;
    if constexpr (Tr::kBits)
      if (tiles[next].state() == 0) next = larger(range.first, tiles[next].before());
    for (int j = next; j >= range.first; ++step) {
      [[maybe_unused]] MaskTile here{};
      if constexpr (Tr::kBits) here = tiles[j];
      const int s = step % Tr::kStages, parity = (step / Tr::kStages & 1) ^ 1;
      sh.key_empty[s].wait(parity);
      next = j - 1;
      if constexpr (Tr::kBits) {
        next = here.before();
        sh.blocks[s] = make_int2(j, (next < range.first ? kLastBlock : 0) | (here.state() != 2 ? kHasHoles : 0));
      }
      sh.key_full[s].expect(Tr::key_bytes);
      for (int c = 0; c < Tr::D / 64; ++c)
        load_box(sk + s * Tr::key_bytes + c * Tr::kKeys * 128, &a.k, &sh.key_full[s], c * 64, j * Tr::kKeys, hk,
                 item.b);
      sh.value_empty[s].wait(parity);
      sh.value_full[s].expect(Tr::value_bytes);
      for (int c = 0; c < Tr::E / 64; ++c)
        load_box(sv + s * Tr::value_bytes + c * Tr::kKeys * 128, &a.v, &sh.value_full[s], c * 64, j * Tr::kKeys, hk,
                 item.b);
      j = next;
    }
  }
}

// Blocks whose keys the statistics of some queries count by their place.
struct NearBlocks {
  int from, to, front;  // front: those before it

  __device__ __forceinline__ bool has(int block) const { return (block >= from && block <= to) || block < front; }
};
template <class Tr>
__device__ __forceinline__ NearBlocks near_blocks(const ForwardArgs& a, const ForwardItem& item, int w, int tokens) {
  const StatisticsArgs& s = a.statistics;
  const int i0 = (item.m * Tr::kGroups + w) * tokens, i1 = smaller(a.M, i0 + tokens) - 1;
  const int front = (s.sink_tokens + Tr::kKeys - 1) / Tr::kKeys;
  if (a.mask.segments != 0) return {0, kFarKey, front};  // positions may fall from one to the next
  const int offset = position_offset(a.mask, s.offsets, s.last_key, item.b, {0, a.M, 0, a.N});
  const int reach = larger(larger(s.local_width, s.recent_width), 1);
  return {larger(0, i0 + offset - reach) / Tr::kKeys, larger(-1, i1 + offset + reach) / Tr::kKeys, front};
}

// A multiplying warpgroup.
template <class Tr>
__device__ __forceinline__ void forward_multiply(const ForwardArgs& a, ForwardShared<Tr>& sh, char* sq, char* sk,
                                                 char* sv, char* so, int w) {
  constexpr int kTurn = 2, kOwn = 8;  // named barriers: whose turn it is to issue products; one of each warpgroup's own
  const int thread = threadIdx.x % kWarpgroup, tokens = 64 / a.packed;
  ForwardGroup<Tr> group(a, thread);
  group.constants = reinterpret_cast<const char*>(&sh) + 1024;
  const auto arrive = [&](Barrier& barrier) {
    __syncwarp();
    if (group.lane == 0) barrier.arrive();
  };
  const auto take_turn = [&] {
    if constexpr (Tr::kGroups > 1) sync_threads(kTurn + w, 2 * kWarpgroup);
  };
  const auto give_turn = [&] {
    if constexpr (Tr::kGroups > 1) arrive_threads(kTurn + (w + 1) % Tr::kGroups, 2 * kWarpgroup);
  };
  if constexpr (Tr::kGroups > 1)
    if (w == Tr::kGroups - 1) arrive_threads(kTurn, 2 * kWarpgroup);
  int step = 0;
  for (int tile = 0;; ++tile) {
    const int qs = tile % Tr::kQueryStages;
    char* const my_q = sq + (qs * Tr::kGroups + w) * Tr::query_bytes;
    sh.query_full[qs].wait(tile / Tr::kQueryStages & 1);
    const ForwardItem& item = sh.items[tile % (Tr::kQueryStages + 1)];
    if (item.m < 0) break;
    if constexpr (Tr::kHoldQuery) {
      group.hold_query(my_q);
      arrive(sh.query_empty[qs]);
    }
    group.begin();

    int st = step % Tr::kStages, add = 0;
    sh.key_full[st].wait(step / Tr::kStages & 1);
    take_turn();
    group.scores(my_q, sk + st * Tr::key_bytes);
    give_turn();
    const auto [range, whole] = group.see(item, w);
    int j = range.last, flags = 0;
    const auto take_block = [&, whole = whole](int stage, int& block) {
      block = sh.blocks[stage].x, flags = sh.blocks[stage].y;
      if (block > whole.last || block < whole.first) flags |= kHasEnds;
      group.fetch_bits(block, flags);
    };
    if constexpr (Tr::kBits) take_block(st, j);
    products_wait<0>();
    arrive(sh.key_empty[st]);
    group.template weights<true>(item, w, j, flags);
    group.pack_weights();
    int before = j;
    NearBlocks near{0, -1, 0};  // with keys that statistics count by their place
    if constexpr (Tr::kWatch) near = near_blocks<Tr>(a, item, w, tokens);
    group.see_some(item, j, near.has(j));

    const auto visit = [&](auto hide, int block) {
      const int next = step + 1, st2 = next % Tr::kStages;
      sh.key_full[st2].wait(next / Tr::kStages & 1);
      if constexpr (Tr::kBits) take_block(st2, block);
      take_turn();
      group.scores(my_q, sk + st2 * Tr::key_bytes);
      sh.value_full[st].wait(step / Tr::kStages & 1);
      group.values(sv + st * Tr::value_bytes, add);
      give_turn();
      group.find_highest(before);
      products_wait<1>();
      arrive(sh.key_empty[st2]);
      group.template weights<decltype(hide)::value>(item, w, block, flags);
      group.weights_before_products();
      products_wait<0>();
      arrive(sh.value_empty[st]);
      group.add_seen(before);
      group.rescale();
      group.pack_weights();
      group.see_some(item, block, near.has(block));
      step = next, st = st2, add = 1, before = block;
    };
    if constexpr (Tr::kBits) {
      while ((flags & kLastBlock) == 0) visit(std::true_type{}, 0);
    } else {
      // Blocks that every row of this warpgroup sees whole need no comparison.
      --j;
      while (j >= range.first) {
        for (; j >= range.first && (j > whole.last || j < whole.first); --j) visit(std::true_type{}, j);
        for (; j >= range.first && j >= whole.first; --j) visit(std::false_type{}, j);
      }
    }
    if constexpr (!Tr::kHoldQuery && Tr::kOutApart) arrive(sh.query_empty[qs]);
    sh.value_full[st].wait(step / Tr::kStages & 1);
    group.values(sv + st * Tr::value_bytes, add);
    group.find_highest(before);
    products_wait<0>();
    arrive(sh.value_empty[st]);
    group.add_seen(before);
    ++step;

    const float2 lse = group.finish(item, w);
    group.store_rows(item, w, lse);
    if constexpr (Tr::kParts) {
      arrive(sh.query_empty[qs]);
      continue;
    }
    char* const my_o = Tr::kOutApart ? so + w * Tr::out_bytes : my_q;
    if (thread == 0) wait_stores_read();
    sync_threads(kOwn + w, kWarpgroup);
    group.stage(my_o);
    fence_async();
    sync_threads(kOwn + w, kWarpgroup);
    if (thread == 0) {
      for (int c = 0; c < Tr::E / 64; ++c)
        store_box(&a.out, my_o + c * 8192, c * 64, 0, (item.m * Tr::kGroups + w) * tokens, item.h, item.b);
      commit_stores();
    }
    if constexpr (!Tr::kOutApart) {
      if (thread == 0) wait_stores_read();
      arrive(sh.query_empty[qs]);
    }
  }
  if (thread == 0) wait_stores();
}

template <class Tr>
__device__ __forceinline__ void attention_forward(const ForwardArgs& a) {
  // Dynamic shared memory begins on a multiple of 1,024 bytes, which the swizzle counts from.
  extern __shared__ __align__(1024) char sq[];
  if ((shared_address(sq) & 1023) != 0) __trap();
  char* const sk = sq + Tr::kQueryStages * Tr::kGroups * Tr::query_bytes;
  char* const sv = sk + Tr::kStages * Tr::key_bytes;
  char* const so = sv + Tr::kStages * Tr::value_bytes;
  auto& sh = *reinterpret_cast<ForwardShared<Tr>*>(so + (Tr::kOutApart ? Tr::kGroups * Tr::out_bytes : 0));
  static_assert(sizeof(ForwardShared<Tr>) <= 1024);
  if constexpr (Tr::kWatch) {
    WatchOf<Tr>::make_constants(reinterpret_cast<typename Tr::T*>(reinterpret_cast<char*>(&sh) + 1024),
                                static_cast<int>(threadIdx.x), Tr::kThreads);
    fence_async();
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tr::kQueryStages; ++s) sh.query_full[s].init(1), sh.query_empty[s].init(4 * Tr::kGroups);
    for (int s = 0; s < Tr::kStages; ++s) {
      sh.key_full[s].init(1), sh.key_empty[s].init(4 * Tr::kGroups);
      sh.value_full[s].init(1), sh.value_empty[s].init(4 * Tr::kGroups);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    if constexpr (Tr::kGroups == 2) give_registers<24>();
    if constexpr (Tr::kGroups == 3) give_registers<32>();
    if (threadIdx.x == 0) forward_copy<Tr>(a, sh, sq, sk, sv);
  } else {
    if constexpr (Tr::kGroups == 2) take_registers<240>();
    if constexpr (Tr::kGroups == 3) take_registers<160>();
    // That all lanes of a warp have the same helps where statistics are made, and costs 3 % elsewhere.
    const int w = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    forward_multiply<Tr>(a, sh, sq, sk, sv, so, Tr::kWatch ? uniform(w) : w);
  }
}

}  // namespace attend::cuda
