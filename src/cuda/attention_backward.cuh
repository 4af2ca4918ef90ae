// Attention backward on Hopper: an item is 128 keys of one KV head, two warpgroups of 64, against all queries that see
// them, 64 a step. Scores are made transposed, so that weights and their gradients come out as the A operands of the
// products they go into.
#pragma once

#include "cuda/backward_args.hpp"
#include "cuda/score_terms.cuh"
#include "cuda/wgmma.cuh"

namespace attend::cuda {

template <class Element, int kD, int kQueryStages_, bool kTerms_>
struct BackwardTraits {
  using T = Element;
  static constexpr int D = kD, kQueryStages = kQueryStages_, kDoutStages = 2;
  static constexpr bool kTerms = kTerms_;
  static constexpr int kThreads = 3 * kWarpgroup;
  static constexpr int kRegisters = D == 64 ? 208 : 240, kCopyRegisters = D == 64 ? 88 : 24;  // 504 for one of each
  static constexpr int key_bytes = kBlockKeys * D * 2, query_bytes = kStepQueries * D * 2;
  static constexpr int ds_bytes = kBlockKeys * kStepQueries * 2, dq_bytes = kStepQueries * D * 4;
  static constexpr int row_bytes = kQueryStages * kStepQueries * 12 + kDoutStages * kStepQueries * 4;
  static constexpr int shared_bytes =
      2 * key_bytes + (kQueryStages + kDoutStages) * query_bytes + 2 * ds_bytes + dq_bytes + row_bytes + 1024;
  static_assert(shared_bytes <= 227 * 1024);
};

struct BackwardItem {
  int n, hk, b;     // n < 0: no more
  int first, last;  // steps of queries
};

template <class Tr>
struct BackwardShared {
  Barrier keys_full, keys_empty;
  Barrier query_full[Tr::kQueryStages], query_empty[Tr::kQueryStages];
  Barrier dout_full[Tr::kDoutStages], dout_empty[Tr::kDoutStages];
  Barrier ds_full[2], ds_empty[2];
  Barrier dq_full, dq_empty;
  BackwardItem items[2];
};

// Where everything lies in shared memory.
template <class Tr>
struct BackwardMemory {
  char *k, *v, *q, *dout, *ds, *dq;
  float* lse2;   // of each stage of queries
  int2* seen;    // likewise
  float* delta;  // of each stage of dout
  BackwardShared<Tr>* shared;

  __device__ __forceinline__ explicit BackwardMemory(char* base)
      : k(base),
        v(k + Tr::key_bytes),
        q(v + Tr::key_bytes),
        dout(q + Tr::kQueryStages * Tr::query_bytes),
        ds(dout + Tr::kDoutStages * Tr::query_bytes),
        dq(ds + 2 * Tr::ds_bytes),
        lse2(reinterpret_cast<float*>(dq + Tr::dq_bytes)),
        seen(reinterpret_cast<int2*>(lse2 + Tr::kQueryStages * kStepQueries)),
        delta(reinterpret_cast<float*>(seen + Tr::kQueryStages * kStepQueries)),
        shared(reinterpret_cast<BackwardShared<Tr>*>(delta + Tr::kDoutStages * kStepQueries)) {}
};

// Which steps an item has: those whose queries see its keys. Neither end of what a step sees ever falls.
__device__ __forceinline__ BackwardItem backward_item(const BackwardArgs& a, int t) {
  const int heads = a.B * a.Hk, n = t / heads, head = t % heads, b = head / a.Hk;
  const int2* blocks = a.rows.blocks + b * a.steps;
  int low = 0, high = a.steps;  // the first step that sees block n or a later one
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks[middle].y < n)
      low = middle + 1;
    else
      high = middle;
  }
  const int first = low;
  high = a.steps;  // the first step that sees none up to block n
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks[middle].x <= n)
      low = middle + 1;
    else
      high = middle;
  }
  return {n, head % a.Hk, b, first, low - 1};
}

template <class Tr>
__device__ __forceinline__ void backward_copy(const BackwardArgs& a, const BackwardMemory<Tr>& mem) {
  BackwardShared<Tr>& sh = *mem.shared;
  const int total = a.key_blocks * a.B * a.Hk;
  int step = 0, next_item = atomicAdd(a.counter, 1);
  for (int tile = 0;; ++tile) {
    const int t = next_item;
    BackwardItem item{-1, 0, 0, 0, 0};
    if (t < total) item = backward_item(a, t), next_item = atomicAdd(a.counter, 1);
    sh.keys_empty.wait((tile & 1) ^ 1);
    sh.items[tile & 1] = item;
    if (t >= total) {
      if (t == total + static_cast<int>(gridDim.x) - 1) *a.counter = 0;
      sh.keys_full.arrive();
      return;
    }
    sh.keys_full.expect(2 * Tr::key_bytes);
    for (int c = 0; c < Tr::D / 64; ++c) {
      load_box(mem.k + c * kBlockKeys * 128, &a.k, &sh.keys_full, c * 64, item.n * kBlockKeys, item.hk, item.b);
      load_box(mem.v + c * kBlockKeys * 128, &a.v, &sh.keys_full, c * 64, item.n * kBlockKeys, item.hk, item.b);
    }
    for (int g = 0; g < a.G; ++g) {
      const int h = item.hk * a.G + g;
      const std::int64_t rows = (static_cast<std::int64_t>(item.b) * a.H + h) * a.padded;
      for (int i = item.last; i >= item.first; --i, ++step) {
        const int u = step % Tr::kQueryStages, s = step % Tr::kDoutStages;
        sh.query_empty[u].wait((step / Tr::kQueryStages & 1) ^ 1);
        sh.query_full[u].expect(Tr::query_bytes + kStepQueries * 12);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.q + u * Tr::query_bytes + c * 8192, &a.q, &sh.query_full[u], c * 64, i * kStepQueries, h,
                   item.b);
        load_bytes(mem.lse2 + u * kStepQueries, a.rows.lse2 + rows + i * kStepQueries, kStepQueries * 4,
                   &sh.query_full[u]);
        load_bytes(mem.seen + u * kStepQueries,
                   a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded + i * kStepQueries, kStepQueries * 8,
                   &sh.query_full[u]);
        sh.dout_empty[s].wait((step / Tr::kDoutStages & 1) ^ 1);
        sh.dout_full[s].expect(Tr::query_bytes + kStepQueries * 4);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.dout + s * Tr::query_bytes + c * 8192, &a.dout, &sh.dout_full[s], c * 64, i * kStepQueries, h,
                   item.b);
        load_bytes(mem.delta + s * kStepQueries, a.rows.delta + rows + i * kStepQueries, kStepQueries * 4,
                   &sh.dout_full[s]);
      }
    }
  }
}

// The thread that adds the gradients of queries to their sums: the blocks of keys in rising order, where an order is
// asked for. An item waits for earlier items of its head alone, which were handed out before it.
template <class Tr>
__device__ __forceinline__ void backward_add(const BackwardArgs& a, const BackwardMemory<Tr>& mem) {
  BackwardShared<Tr>& sh = *mem.shared;
  int parity = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem item = sh.items[tile & 1];
    if (item.n < 0) return;
    sh.keys_empty.arrive();  // it has been read
    for (int g = 0; g < a.G; ++g)
      for (int i = item.last; i >= item.first; --i) {
        const std::int64_t at = (static_cast<std::int64_t>(item.b) * a.H + item.hk * a.G + g) * a.steps + i;
        const int turn = a.turns ? item.n - a.rows.blocks[item.b * a.steps + i].x : 0;
        if (a.turns && turn > 0) {
          int done;
          do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(a.turns + at) : "memory");
          while (done != turn);
        }
        sh.dq_full.wait(parity);
        parity ^= 1;
        float* const to = a.dq_sums + at * kStepQueries * Tr::D;
        if (a.turns && turn == 0)
          store_floats(to, mem.dq, Tr::dq_bytes);
        else
          add_floats(to, mem.dq, Tr::dq_bytes);
        commit_stores();
        wait_stores_read();
        sh.dq_empty.arrive();
        if (a.turns) {
          wait_stores();
          asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.s32 [%0], %1;" ::"l"(a.turns + at), "r"(turn + 1)
                       : "memory");
        }
      }
  }
}

// A warpgroup's 64 keys.
template <class Tr>
struct BackwardGroup {
  using T = typename Tr::T;
  const BackwardArgs& a;
  const BackwardMemory<Tr>& mem;
  int w, thread, warp, lane;
  float dk[Tr::D / 2], dv[Tr::D / 2];
  float s[32], dp[32], dq[Tr::D / 4];
  std::uint32_t p[16];

  __device__ __forceinline__ BackwardGroup(const BackwardArgs& args, const BackwardMemory<Tr>& memory, int group)
      : a(args), mem(memory), w(group), thread(threadIdx.x % kWarpgroup), warp(thread / 32), lane(thread % 32) {}

  // S^T = K Q^T
  __device__ __forceinline__ void scores(int u) {
    products_begin();
#pragma unroll
    for (int k = 0; k < Tr::D / 16; ++k)
      Product<T, 64>::template ss<0, 0>(
          s, descriptor(shared_address(mem.k) + k / 4 * kBlockKeys * 128 + w * 8192 + k % 4 * 32, 16, 1024),
          descriptor(shared_address(mem.q) + u * Tr::query_bytes + k / 4 * 8192 + k % 4 * 32, 16, 1024), k != 0);
    products_commit();
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void weight_gradients(int st) {
    products_begin();
#pragma unroll
    for (int k = 0; k < Tr::D / 16; ++k)
      Product<T, 64>::template ss<0, 0>(
          dp, descriptor(shared_address(mem.v) + k / 4 * kBlockKeys * 128 + w * 8192 + k % 4 * 32, 16, 1024),
          descriptor(shared_address(mem.dout) + st * Tr::query_bytes + k / 4 * 8192 + k % 4 * 32, 16, 1024), k != 0);
    products_commit();
  }
  // dV += P^T dO; dK += dS^T Q
  __device__ __forceinline__ void value_gradients(int st) {
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      Product<T, Tr::D>::template rs<1>(
          dv, p + 4 * k, descriptor(shared_address(mem.dout) + st * Tr::query_bytes + k * 2048, 8192, 1024), 1);
    products_commit();
  }
  __device__ __forceinline__ void key_gradients(int u, int buffer) {
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      Product<T, Tr::D>::template ss<0, 1>(
          dk, descriptor(shared_address(mem.ds) + buffer * Tr::ds_bytes + w * 8192 + k * 32, 16, 1024),
          descriptor(shared_address(mem.q) + u * Tr::query_bytes + k * 2048, 8192, 1024), 1);
    products_commit();
  }
  // dQ = dS K, half of the columns
  __device__ __forceinline__ void query_gradients(int buffer) {
    const std::uint32_t columns = Tr::D == 64 ? static_cast<std::uint32_t>(w) * 64
                                              : static_cast<std::uint32_t>(w) * (Tr::D / 128) * kBlockKeys * 128;
    products_begin();
#pragma unroll
    for (int k = 0; k < kBlockKeys / 16; ++k)
      Product<T, Tr::D / 2>::template ss<1, 1>(
          dq, descriptor(shared_address(mem.ds) + buffer * Tr::ds_bytes + k * 2048, 8192, 1024),
          descriptor(shared_address(mem.k) + columns + k * 2048, kBlockKeys * 128, 1024), k != 0);
    products_commit();
  }

  __device__ __forceinline__ int key_of(int n, int e) const {
    return n * kBlockKeys + w * 64 + warp * 16 + lane / 4 + (e >> 1) * 8;
  }
  __device__ __forceinline__ int query_of(int j, int e) const { return 8 * j + lane % 4 * 2 + (e & 1); }

  // Logits of terms, and what their gradient is multiplied by, in dp's place until it is needed.
  __device__ __forceinline__ float term_logit(const BackwardItem& item, int h, int i, int j, int e, float x) const {
    const ScoreTerms& terms = a.terms;
    const int query = i * kStepQueries + query_of(j, e), key = key_of(item.n, e);
    x *= a.scale;
    if (terms.softcap > 0) x = capped(x, terms.softcap);
    if (terms.bias.data) x += bias_of(terms, a.mask, {item.b, h, query}, key);
    if (terms.alibi.data)
      x -= load_float(terms.alibi, item.b * terms.alibi.batch_stride + h * terms.alibi.head_stride) *
           fabsf(a.rows.position[static_cast<std::int64_t>(item.b) * a.padded + query] - static_cast<float>(key));
    if (a.mask.bits.words && query < a.M && key < a.N) {
      const MaskBits& bits = a.mask.bits;
      const std::uint32_t word = bits.words[item.b * bits.batch_stride + h * bits.head_stride +
                                            static_cast<std::int64_t>(query) * bits.row_words + key / 32];
      if ((word >> (key % 32) & 1) == 0) x = -INFINITY;
    }
    return x;
  }
  __device__ __forceinline__ float kept(const BackwardItem& item, int h, int i, int j, int e) const {
    const int query = i * kStepQueries + query_of(j, e), key = key_of(item.n, e);
    const int pair = kept_pair(a.terms, {item.b, h, query}, key & ~1);
    return (pair >> (key & 1) & 1) ? a.terms.dropout_scale : 0.0F;
  }

  // P^T from S^T: s becomes the weights, p the packed ones.
  template <bool kHide>
  __device__ __forceinline__ void weights(const BackwardItem& item, int h, int i, int u) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(mem.lse2 + u * kStepQueries + 8 * j + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = s[4 * j + e];
        if constexpr (Tr::kTerms) x = term_logit(item, h, i, j, e, x);
        s[4 * j + e] = exp2_fast(fmaf(x, a.scale2, (e & 1) ? -l.y : -l.x));
      }
      if constexpr (kHide) {
        const int4 seen = *reinterpret_cast<const int4*>(mem.seen + u * kStepQueries + 8 * j + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = key_of(item.n, e);
          if (key < ((e & 1) ? seen.z : seen.x) || key >= ((e & 1) ? seen.w : seen.y)) s[4 * j + e] = 0.0F;
        }
      }
    }
    pack_weights(item, h, i);
  }
  __device__ __forceinline__ void pack_weights(const BackwardItem& item, int h, int i) {
    if constexpr (Tr::kTerms) {
      if (a.terms.dropout_threshold != 0) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            p[2 * j + r] = pack<T>(s[4 * j + 2 * r] * kept(item, h, i, j, 2 * r),
                                   s[4 * j + 2 * r + 1] * kept(item, h, i, j, 2 * r + 1));
        return;
      }
    }
#pragma unroll
    for (int x = 0; x < 16; ++x) p[x] = pack<T>(s[2 * x], s[2 * x + 1]);
  }
  // dS^T = P^T (dP^T - delta) to p and to shared memory, where dQ's product reads it transposed.
  __device__ __forceinline__ void score_gradients(const BackwardItem& item, int h, int i, int st, int buffer,
                                                  const float* tanh_factor) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 l = *reinterpret_cast<const float2*>(mem.delta + st * kStepQueries + 8 * j + lane % 4 * 2);
      float g[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float gradient = dp[4 * j + e];
        if constexpr (Tr::kTerms)
          if (a.terms.dropout_threshold != 0) gradient *= kept(item, h, i, j, e);
        g[e] = s[4 * j + e] * (gradient - ((e & 1) ? l.y : l.x));
        if constexpr (Tr::kTerms) {
          if (a.dbias.data) add_bias_gradient(item, h, i, j, e, g[e]);
          if (a.terms.softcap > 0) g[e] *= tanh_factor[4 * j + e];
        }
      }
      p[2 * j] = pack<T>(g[0], g[1]), p[2 * j + 1] = pack<T>(g[2], g[3]);
    }
    char* const to = mem.ds + buffer * Tr::ds_bytes;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = w * 64 + warp * 16 + lane / 4 + r * 8;
        *reinterpret_cast<std::uint32_t*>(to + row * 128 + ((j ^ (row & 7)) * 16) + lane % 4 * 4) = p[2 * j + r];
      }
  }
  // Each score's own element of a bias that repeats nothing.
  __device__ __forceinline__ void add_bias_gradient(const BackwardItem& item, int h, int i, int j, int e,
                                                    float g) const {
    const int query = i * kStepQueries + query_of(j, e), key = key_of(item.n, e);
    if (query >= a.M || key >= a.N) return;
    static_cast<float*>(const_cast<void*>(a.dbias.data))[item.b * a.dbias.batch_stride + h * a.dbias.head_stride +
                                                         query * a.dbias.row_stride + key * a.dbias.dim_stride] = g;
  }
  __device__ __forceinline__ void store_query_gradients() {
    auto* const to = reinterpret_cast<float4*>(mem.dq + w * (Tr::dq_bytes / 2));
#pragma unroll
    for (int x = 0; x < Tr::D / 16; ++x)
      to[x * kWarpgroup + thread] = make_float4(dq[4 * x], dq[4 * x + 1], dq[4 * x + 2], dq[4 * x + 3]);
  }
  // A row of keys at the end of an item.
  __device__ __forceinline__ void store_rows(const BackwardItem& item, const DeviceOperand& to, const float* sums,
                                             float factor, int dims) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(item.n, 2 * r);
      if (key >= a.N) continue;
      const std::int64_t row = item.b * to.batch_stride + item.hk * to.head_stride + key * to.row_stride;
      if (to.pairs) {
        auto* const pairs =
            reinterpret_cast<std::uint32_t*>(static_cast<T*>(const_cast<void*>(to.data)) + row + lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < Tr::D / 8; ++j)
          if (8 * j + lane % 4 * 2 < dims)
            pairs[4 * j] = pack<T>(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor);
        continue;
      }
#pragma unroll
      for (int j = 0; j < Tr::D / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + lane % 4 * 2 + e;
          if (column >= dims) continue;
          const float x = sums[4 * j + 2 * r + e] * factor;
          const std::int64_t at = row + column * to.dim_stride;
          if (to.dtype == 0)
            static_cast<float*>(const_cast<void*>(to.data))[at] = x;
          else
            static_cast<T*>(const_cast<void*>(to.data))[at] = static_cast<T>(x);
        }
    }
  }
};

template <class Tr>
__device__ __forceinline__ void backward_multiply(const BackwardArgs& a, const BackwardMemory<Tr>& mem, int w) {
  BackwardShared<Tr>& sh = *mem.shared;
  BackwardGroup<Tr> group(a, mem, w);
  const auto arrive = [&](Barrier& barrier) {
    __syncwarp();
    if (group.lane == 0) barrier.arrive();
  };
  int step = 0, written = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem& item = sh.items[tile & 1];
    if (item.n < 0) break;
#pragma unroll
    for (int i = 0; i < Tr::D / 2; ++i) group.dk[i] = group.dv[i] = 0;
    const int each = item.last - item.first + 1, count = each * a.G;
    if (count <= 0) {  // nobody sees these keys
      arrive(sh.keys_empty);
      group.store_rows(item, a.dk, group.dk, 0.0F, a.D);
      group.store_rows(item, a.dv, group.dv, 0.0F, a.E);
      continue;
    }
    // dQ of a step is made one step later: by then both warpgroups have written their part of dS.
    const auto give_query_gradients = [&](int number) {
      arrive(sh.ds_empty[number & 1]);
      sh.dq_empty.wait((written & 1) ^ 1);
      ++written;
      group.store_query_gradients();
      fence_async();
      arrive(sh.dq_full);
    };
    sh.query_full[step % Tr::kQueryStages].wait(step / Tr::kQueryStages & 1);
    group.scores(step % Tr::kQueryStages);
    products_wait<0>();
    int i = item.last, h = item.hk * a.G;
    for (int x = 0; x < count; ++x, ++step) {
      const int u = step % Tr::kQueryStages, st = step % Tr::kDoutStages, buffer = step & 1;
      sh.dout_full[st].wait(step / Tr::kDoutStages & 1);
      group.weight_gradients(st);
      float tanh_factor[Tr::kTerms ? 32 : 1];
      if constexpr (Tr::kTerms) {
        if (a.terms.softcap > 0)
#pragma unroll
          for (int e = 0; e < 32; ++e) {
            const float t = tanh_exact(__fdividef(group.s[e] * a.scale, a.terms.softcap));
            tanh_factor[e] = 1.0F - t * t;
          }
      }
      const int2 first = mem.seen[u * kStepQueries], last = mem.seen[u * kStepQueries + kStepQueries - 1];
      if (last.x <= item.n * kBlockKeys && first.y >= (item.n + 1) * kBlockKeys && last.y >= first.y)
        group.template weights<false>(item, h, i, u);
      else
        group.template weights<true>(item, h, i, u);
      group.value_gradients(st);
      products_wait<1>();  // dP
      sh.ds_empty[buffer].wait((step >> 1 & 1) ^ 1);
      group.score_gradients(item, h, i, st, buffer, tanh_factor);
      fence_async();
      sync_threads(1 + w, kWarpgroup);
      if (group.thread == 0) sh.ds_full[buffer].arrive();
      // After the last step once more, unused: a product in a branch would make the compiler serialise them all.
      const int ahead = x + 1 < count ? step + 1 : step;
      sh.query_full[ahead % Tr::kQueryStages].wait(ahead / Tr::kQueryStages & 1);
      group.scores(ahead % Tr::kQueryStages);
      if (x > 0) sh.ds_full[buffer ^ 1].wait((step - 1) >> 1 & 1);
      group.query_gradients(buffer ^ 1);  // of the step before; of nothing in the first
      group.key_gradients(u, buffer);
      products_wait<3>();  // dV
      arrive(sh.dout_empty[st]);
      products_wait<1>();  // dQ
      if (x > 0) give_query_gradients(step - 1);
      products_wait<0>();
      arrive(sh.query_empty[u]);
      if (--i < item.first) i = item.last, ++h;
    }
    sh.ds_full[(step - 1) & 1].wait((step - 1) >> 1 & 1);
    group.query_gradients((step - 1) & 1);
    products_wait<0>();
    arrive(sh.keys_empty);
    give_query_gradients(step - 1);
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
    sh.keys_full.init(1), sh.keys_empty.init(kWarps + 1);
    for (int s = 0; s < Tr::kQueryStages; ++s) sh.query_full[s].init(1), sh.query_empty[s].init(kWarps);
    for (int s = 0; s < Tr::kDoutStages; ++s) sh.dout_full[s].init(1), sh.dout_empty[s].init(kWarps);
    for (int s = 0; s < 2; ++s) sh.ds_full[s].init(2), sh.ds_empty[s].init(kWarps);
    sh.dq_full.init(kWarps), sh.dq_empty.init(1);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<Tr::kCopyRegisters>();
    if (threadIdx.x == 0) backward_copy<Tr>(a, mem);
    if (threadIdx.x == 32) backward_add<Tr>(a, mem);
  } else {
    take_registers<Tr::kRegisters>();
    backward_multiply<Tr>(a, mem, static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  }
}

}  // namespace attend::cuda
