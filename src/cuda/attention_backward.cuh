// Attention backward on Hopper: an item is a block of keys of one KV head against all queries that see them, some a
// step. Scores are made transposed, 64 keys a warpgroup, so that weights and their gradients come out as the A operands
// of the products they go into. Up to 128 dims two warpgroups share 128 keys; above, 64 keys, each holding half the dims.
#pragma once

#include "cuda/backward_args.hpp"
#include "cuda/backward_shapes.hpp"
#include "cuda/score_terms.cuh"
#include "cuda/wgmma.cuh"

namespace attend::cuda {

template <class Element, BackwardShape S, bool kTerms_>
struct BackwardTraits {
  using T = Element;
  static constexpr int D = S.D, kKeys = S.keys, kStep = S.queries;
  static constexpr int kQueryStages = S.query_stages, kDoutStages = S.dout_stages;
  static constexpr bool kTerms = kTerms_;
  static constexpr bool kSplitDims = splits_dims(S);  // both warpgroups have the same keys, each half of their dims
  static constexpr int kDims = kSplitDims ? D / 2 : D;         // of dK and dV, a warpgroup's
  static constexpr int kDqColumns = kStep == 128 ? D : D / 2;  // of dQ, a warpgroup's 64 rows
  static constexpr bool kTurns = false;
  static constexpr int kThreads = 3 * kWarpgroup;
  static constexpr int kRegisters = 240, kCopyRegisters = 24;  // 504 for one of each
  static constexpr int key_bytes = kKeys * D * 2, query_bytes = kStep * D * 2;
  static constexpr int key_chunk = kKeys * 128, query_chunk = kStep * 128;  // 64 columns of a tile
  static constexpr int kDsRows = kSplitDims ? 64 : kKeys, ds_bytes = kDsRows * kStep * 2;
  static constexpr int dq_bytes = 64 * kDqColumns * 4;  // a warpgroup's
  static constexpr int kDqBuffers = S.dq_buffers;
  static constexpr int shared_bytes = attend::cuda::shared_bytes(S);
  static_assert(shared_bytes <= 227 * 1024);
  static_assert(!kSplitDims || (dq_bytes == query_bytes && kDqBuffers == 0));
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
  Barrier ds_full[2], ds_empty[2];  // where the warpgroups share dS
  Barrier done;                     // with a step's queries, where dQ takes their place
  Barrier dq_full[2][2], dq_empty[2][2];  // of each warpgroup; of even and odd steps, of each buffer
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
        lse2(reinterpret_cast<float*>(dq + Tr::kDqBuffers * 2 * Tr::dq_bytes)),
        seen(reinterpret_cast<int2*>(lse2 + Tr::kQueryStages * Tr::kStep)),
        delta(reinterpret_cast<float*>(seen + Tr::kQueryStages * Tr::kStep)),
        shared(reinterpret_cast<BackwardShared<Tr>*>(delta + Tr::kDoutStages * Tr::kStep)) {}

  // Where warpgroup w leaves its part of a step's dQ.
  __device__ __forceinline__ char* dq_place(int w, int step) const {
    if constexpr (Tr::kSplitDims)
      return w == 0 ? dout + step % Tr::kDoutStages * Tr::query_bytes : q + step % Tr::kQueryStages * Tr::query_bytes;
    else
      return dq + (step % Tr::kDqBuffers * 2 + w) * Tr::dq_bytes;
  }
};

// Which steps an item has: those whose queries see its keys. Neither end of what a step sees ever falls.
__device__ __forceinline__ BackwardItem backward_item(const BackwardArgs& a, int t) {
  const int heads = a.B * a.Hk, section = t / (a.key_blocks * a.section), r = t % (a.key_blocks * a.section);
  const int width = smaller(a.section, heads - section * a.section);
  const int n = r / width, head = section * a.section + r % width, b = head / a.Hk;
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
      for (int i = item.last; i >= item.first; --i, ++step) {
        const int u = step % Tr::kQueryStages, s = step % Tr::kDoutStages;
        sh.query_empty[u].wait((step / Tr::kQueryStages & 1) ^ 1);
        sh.query_full[u].expect(Tr::query_bytes + Tr::kStep * 12);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.q + u * Tr::query_bytes + c * Tr::query_chunk, &a.q, &sh.query_full[u], c * 64, i * Tr::kStep, h,
                   item.b);
        load_bytes(mem.lse2 + u * Tr::kStep, a.rows.lse2 + rows + i * Tr::kStep, Tr::kStep * 4,
                   &sh.query_full[u]);
        load_bytes(mem.seen + u * Tr::kStep,
                   a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded + i * Tr::kStep, Tr::kStep * 8,
                   &sh.query_full[u]);
        sh.dout_empty[s].wait((step / Tr::kDoutStages & 1) ^ 1);
        sh.dout_full[s].expect(Tr::query_bytes + Tr::kStep * 4);
        for (int c = 0; c < Tr::D / 64; ++c)
          load_box(mem.dout + s * Tr::query_bytes + c * Tr::query_chunk, &a.dout, &sh.dout_full[s], c * 64, i * Tr::kStep, h,
                   item.b);
        load_bytes(mem.delta + s * Tr::kStep, a.rows.delta + rows + i * Tr::kStep, Tr::kStep * 4,
                   &sh.dout_full[s]);
      }
    }
  }
}

// A thread that adds gradients of queries to their sums, one of the even steps and one of the odd: the blocks of keys in
// rising order, where an order is asked for. An item waits for earlier items of its head alone, which were handed out
// before it.
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
    for (int g = 0; g < a.G; ++g)
      for (int i = item.last; i >= item.first; --i, ++step) {
        if ((step & 1) != odd) continue;
        const std::int64_t at = (static_cast<std::int64_t>(item.b) * a.H + item.hk * a.G + g) * a.steps + i;
        const int turn = a.turns ? item.n - a.rows.blocks[item.b * a.steps + i].x : 0;
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
        if constexpr (Tr::kSplitDims)
          sh.dout_empty[step % Tr::kDoutStages].arrive(), sh.query_empty[step % Tr::kQueryStages].arrive();
        else
          for (int w = 0; w < 2; ++w) sh.dq_empty[w][step % Tr::kDqBuffers].arrive();
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
  static constexpr int kScores = Tr::kStep / 2;  // of a thread
  const BackwardArgs& a;
  const BackwardMemory<Tr>& mem;
  int w, thread, warp, lane;
  // Keys and values with their dims summed over; queries and dout likewise and as rows; keys as rows; dS transposed.
  SharedOperand k, v, q, dout, q_rows, dout_rows, k_rows, ds_columns;
  float dk[Tr::kDims / 2], dv[Tr::kDims / 2];
  float s[kScores], dp[kScores], dq[Tr::kDqColumns / 2];
  std::uint32_t p[kScores / 2], ds[kScores / 2];  // packed
  float2 lse[Tr::kStep / 8], delta[Tr::kStep / 8];

  __device__ __forceinline__ BackwardGroup(const BackwardArgs& args, const BackwardMemory<Tr>& memory, int group)
      : a(args),
        mem(memory),
        w(group),
        thread(threadIdx.x % kWarpgroup),
        warp(thread / 32),
        lane(thread % 32),
        k(mem.k + first_key() * 128, 16),
        v(mem.v + first_key() * 128, 16),
        q(mem.q, 16),
        dout(mem.dout, 16),
        q_rows(mem.q + first_dim() / 64 * Tr::query_chunk, Tr::query_chunk),
        dout_rows(mem.dout + first_dim() / 64 * Tr::query_chunk, Tr::query_chunk),
        k_rows(mem.k + (Tr::kStep == 128 ? 0
                        : Tr::D == 64    ? w * 64
                                         : w * (Tr::D / 128) * Tr::key_chunk),
               Tr::key_chunk),
        ds_columns(my_ds() + (Tr::kStep == 128 ? w * Tr::kDsRows * 128 : 0), 8192) {}
  __device__ __forceinline__ char* my_ds() const {
    return mem.ds + (Tr::kSplitDims ? w * Tr::ds_bytes : 0);
  }
  __device__ __forceinline__ int first_key() const { return Tr::kSplitDims ? 0 : w * 64; }
  __device__ __forceinline__ int first_dim() const { return Tr::kSplitDims ? w * Tr::kDims : 0; }

  // S^T = K Q^T
  __device__ __forceinline__ void scores(int u) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kStep>::template ss<0, 0>(s, k.at(n / 4 * Tr::key_chunk + n % 4 * 32),
                                               q.at(u * Tr::query_bytes + n / 4 * Tr::query_chunk + n % 4 * 32), n != 0);
    products_commit();
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void weight_gradients(int st) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kStep>::template ss<0, 0>(
          dp, v.at(n / 4 * Tr::key_chunk + n % 4 * 32),
          dout.at(st * Tr::query_bytes + n / 4 * Tr::query_chunk + n % 4 * 32), n != 0);
    products_commit();
  }
  // dV += P^T dO; dK += dS^T Q
  __device__ __forceinline__ void value_gradients(int st) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::kStep / 16; ++n)
      Product<T, Tr::kDims>::template rs<1>(dv, p + 4 * n, dout_rows.at(st * Tr::query_bytes + n * 2048), 1);
    products_commit();
  }
  __device__ __forceinline__ void key_gradients(int u) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::kStep / 16; ++n)
      Product<T, Tr::kDims>::template rs<1>(dk, ds + 4 * n, q_rows.at(u * Tr::query_bytes + n * 2048), 1);
    products_commit();
  }
  // dQ = dS K: half of the queries, or of the columns
  __device__ __forceinline__ void query_gradients(int buffer) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::kDsRows / 16; ++n)
      Product<T, Tr::kDqColumns>::template ss<1, 1>(dq, ds_columns.at(buffer * Tr::ds_bytes + n * 2048),
                                                    k_rows.at(n * 2048), n != 0);
    products_commit();
  }

  __device__ __forceinline__ int key_of(int n, int e) const {
    return n * Tr::kKeys + first_key() + warp * 16 + lane / 4 + (e >> 1) * 8;
  }
  __device__ __forceinline__ int query_of(int j, int e) const { return 8 * j + lane % 4 * 2 + (e & 1); }

  // Logits of terms, and what their gradient is multiplied by, in dp's place until it is needed.
  __device__ __forceinline__ float term_logit(const BackwardItem& item, int h, int i, int j, int e, float x) const {
    const ScoreTerms& terms = a.terms;
    const int query = i * Tr::kStep + query_of(j, e), key = key_of(item.n, e);
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
    const int query = i * Tr::kStep + query_of(j, e), key = key_of(item.n, e);
    const int pair = kept_pair(a.terms, {item.b, h, query}, key & ~1);
    return (pair >> (key & 1) & 1) ? a.terms.dropout_scale : 0.0F;
  }

  // Whether a step's queries see all of an item's keys.
  __device__ __forceinline__ bool sees_all(int n, int u) const {
    const int2 first = mem.seen[u * Tr::kStep], last = mem.seen[u * Tr::kStep + Tr::kStep - 1];
    return last.x <= n * Tr::kKeys && first.y >= (n + 1) * Tr::kKeys && last.y >= first.y;
  }
  __device__ __forceinline__ void load_lse(int u) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j)
      lse[j] = *reinterpret_cast<const float2*>(mem.lse2 + u * Tr::kStep + 8 * j + lane % 4 * 2);
  }
  __device__ __forceinline__ void load_delta(int st) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j)
      delta[j] = *reinterpret_cast<const float2*>(mem.delta + st * Tr::kStep + 8 * j + lane % 4 * 2);
  }
  // P^T from S^T, in place.
  template <bool kHide>
  __device__ __forceinline__ void weights(const BackwardItem& item, int h, int i, int u) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = s[4 * j + e];
        if constexpr (Tr::kTerms) x = term_logit(item, h, i, j, e, x);
        s[4 * j + e] = exp2_fast(fmaf(x, a.scale2, (e & 1) ? -lse[j].y : -lse[j].x));
      }
      if constexpr (kHide) {
        const int4 seen = *reinterpret_cast<const int4*>(mem.seen + u * Tr::kStep + 8 * j + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = key_of(item.n, e);
          if (key < ((e & 1) ? seen.z : seen.x) || key >= ((e & 1) ? seen.w : seen.y)) s[4 * j + e] = 0.0F;
        }
      }
    }
  }
  __device__ __forceinline__ void pack_weights(const BackwardItem& item, int h, int i) {
    if constexpr (Tr::kTerms) {
      if (a.terms.dropout_threshold != 0) {
#pragma unroll
        for (int x = 0; x < kScores / 2; ++x)
          p[x] = pack<T>(s[2 * x] * kept(item, h, i, x / 2, x % 2 * 2),
                         s[2 * x + 1] * kept(item, h, i, x / 2, x % 2 * 2 + 1));
        return;
      }
    }
#pragma unroll
    for (int x = 0; x < kScores / 2; ++x) p[x] = pack<T>(s[2 * x], s[2 * x + 1]);
  }
  // dS^T = P^T (dP^T - delta), packed.
  __device__ __forceinline__ void score_gradients(const BackwardItem& item, int h, int i, const float* tanh_factor) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j) {
      float g[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float gradient = dp[4 * j + e];
        if constexpr (Tr::kTerms)
          if (a.terms.dropout_threshold != 0) gradient *= kept(item, h, i, j, e);
        g[e] = s[4 * j + e] * (gradient - ((e & 1) ? delta[j].y : delta[j].x));
        if constexpr (Tr::kTerms) {
          if (a.dbias.data) add_bias_gradient(item, h, i, j, e, g[e]);
          if (a.terms.softcap > 0) g[e] *= tanh_factor[4 * j + e];
        }
      }
      ds[2 * j] = pack<T>(g[0], g[1]), ds[2 * j + 1] = pack<T>(g[2], g[3]);
    }
  }
  // dS^T to shared memory, where dQ's product reads it transposed: rows of keys, 64 queries each, swizzled.
  __device__ __forceinline__ void stage_score_gradients(int buffer) const {
    const int row = first_key() + warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; j += 2)
      store_matrices(shared_address(my_ds()) + buffer * Tr::ds_bytes + j / 8 * Tr::kDsRows * 128 + row * 128 +
                         ((j % 8 + lane / 16) ^ (row & 7)) * 16,
                     ds[2 * j], ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3]);
  }
  // Each score's own element of a bias that repeats nothing.
  __device__ __forceinline__ void add_bias_gradient(const BackwardItem& item, int h, int i, int j, int e,
                                                    float g) const {
    const int query = i * Tr::kStep + query_of(j, e), key = key_of(item.n, e);
    if (query >= a.M || key >= a.N) return;
    static_cast<float*>(const_cast<void*>(a.dbias.data))[item.b * a.dbias.batch_stride + h * a.dbias.head_stride +
                                                         query * a.dbias.row_stride + key * a.dbias.dim_stride] = g;
  }
  __device__ __forceinline__ void stage_query_gradients(char* place) const {
    auto* const to = reinterpret_cast<float4*>(place);
#pragma unroll
    for (int x = 0; x < Tr::kDqColumns / 8; ++x)
      to[x * kWarpgroup + thread] = make_float4(dq[4 * x], dq[4 * x + 1], dq[4 * x + 2], dq[4 * x + 3]);
  }
  // A row of keys at the end of an item.
  __device__ __forceinline__ void store_rows(const BackwardItem& item, const DeviceOperand& to, const float* sums,
                                             float factor, int dims) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(item.n, 2 * r), first = first_dim() + lane % 4 * 2;
      if (key >= a.N) continue;
      const std::int64_t row = item.b * to.batch_stride + item.hk * to.head_stride + key * to.row_stride;
      if (to.pairs) {
        auto* const pairs =
            reinterpret_cast<std::uint32_t*>(static_cast<T*>(const_cast<void*>(to.data)) + row + first);
#pragma unroll
        for (int j = 0; j < Tr::kDims / 8; ++j)
          if (8 * j + first < dims)
            pairs[4 * j] = pack<T>(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor);
        continue;
      }
#pragma unroll
      for (int j = 0; j < Tr::kDims / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + first + e;
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
  // One warpgroup's products run while the other makes weights of scores.
  constexpr int kTurn = 3;
  const auto take_turn = [&] {
    if constexpr (Tr::kTurns) sync_threads(kTurn + w, 2 * kWarpgroup);
  };
  const auto give_turn = [&] {
    if constexpr (Tr::kTurns) arrive_threads(kTurn + (w ^ 1), 2 * kWarpgroup);
  };
  if (w == 1) give_turn();
  int step = 0;
  for (int tile = 0;; ++tile) {
    sh.keys_full.wait(tile & 1);
    const BackwardItem& given = sh.items[tile & 1];
    const BackwardItem item{uniform(given.n), uniform(given.hk), uniform(given.b), uniform(given.first),
                            uniform(given.last)};
    if (item.n < 0) break;
#pragma unroll
    for (int i = 0; i < Tr::kDims / 2; ++i) group.dk[i] = group.dv[i] = 0;
    const int each = item.last - item.first + 1, count = each * a.G;
    if (count <= 0) {  // nobody sees these keys
      arrive(sh.keys_empty);
      group.store_rows(item, a.dk, group.dk, 0.0F, a.D);
      group.store_rows(item, a.dv, group.dv, 0.0F, a.E);
      continue;
    }
    int i = item.last, h = item.hk * a.G;
    take_turn();
    for (int x = 0; x < count; ++x, ++step) {
      const int now = uniform(step), u = now % Tr::kQueryStages, st = now % Tr::kDoutStages;
      sh.query_full[u].wait(now / Tr::kQueryStages & 1);
      group.scores(u);
      sh.dout_full[st].wait(now / Tr::kDoutStages & 1);
      group.weight_gradients(st);
      give_turn();
      const bool all = group.sees_all(item.n, u);
      if constexpr (Tr::kStep == 64) group.load_lse(u);  // early, where there are registers
      products_wait<1>();                                // S
      if constexpr (Tr::kStep != 64) group.load_lse(u);
      float tanh_factor[Tr::kTerms ? Tr::kStep / 2 : 1];
      if constexpr (Tr::kTerms) {
        if (a.terms.softcap > 0)
#pragma unroll
          for (int e = 0; e < Tr::kStep / 2; ++e) {
            const float t = tanh_exact(__fdividef(group.s[e] * a.scale, a.terms.softcap));
            tanh_factor[e] = 1.0F - t * t;
          }
      }
      if (all)
        group.template weights<false>(item, h, i, u);
      else
        group.template weights<true>(item, h, i, u);
      if constexpr (Tr::kStep == 64) group.load_delta(st);
      products_wait<0>();  // dP
      if constexpr (Tr::kStep != 64) group.load_delta(st);
      group.pack_weights(item, h, i);
      group.score_gradients(item, h, i, tanh_factor);
      take_turn();
      if constexpr (Tr::kSplitDims) {
        group.value_gradients(st);
        group.stage_score_gradients(0);
        fence_async();
        sync_threads(1 + w, kWarpgroup);
        group.key_gradients(u);
        products_wait<1>();  // dV: the registers of its weights are needed
        group.query_gradients(0);
        products_wait<1>();  // dK
        arrive(sh.done);
        products_wait<0>();
        sh.done.wait(now & 1);
        group.stage_query_gradients(mem.dq_place(w, now));
        fence_async();
        arrive(sh.dq_full[w][now & 1]);
      } else {
        // dQ of a step is made one step later, when both warpgroups have written dS, and leaves beside dV and dK.
        if (x > 0) sh.ds_full[(now - 1) & 1].wait((now - 1) >> 1 & 1);
        group.query_gradients((now - 1) & 1);  // of nothing in the first step
        group.value_gradients(st);
        group.key_gradients(u);
        sh.ds_empty[now & 1].wait((now >> 1 & 1) ^ 1);
        group.stage_score_gradients(now & 1);
        products_wait<2>();  // dQ
        if (x > 0) {
          arrive(sh.ds_empty[(now - 1) & 1]);
          sh.dq_empty[w][(now - 1) % Tr::kDqBuffers].wait(((now - 1) / Tr::kDqBuffers & 1) ^ 1);
          group.stage_query_gradients(mem.dq_place(w, now - 1));
        }
        fence_async();
        arrive(sh.ds_full[now & 1]);
        if (x > 0) arrive(sh.dq_full[w][(now - 1) & 1]);
        products_wait<1>();  // dV
        arrive(sh.dout_empty[st]);
        products_wait<0>();  // dK
        arrive(sh.query_empty[u]);
      }
      if (--i < item.first) i = item.last, ++h;
    }
    give_turn();
    if constexpr (!Tr::kSplitDims) {
      const int last = uniform(step - 1);
      sh.ds_full[last & 1].wait(last >> 1 & 1);
      group.query_gradients(last & 1);
      products_wait<0>();
      arrive(sh.ds_empty[last & 1]);
      arrive(sh.keys_empty);
      sh.dq_empty[w][last % Tr::kDqBuffers].wait((last / Tr::kDqBuffers & 1) ^ 1);
      group.stage_query_gradients(mem.dq_place(w, last));
      fence_async();
      arrive(sh.dq_full[w][last & 1]);
    } else {
      arrive(sh.keys_empty);
    }
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
    constexpr int kReaders = Tr::kSplitDims ? 1 : kWarps;  // of queries and dout: dQ leaves through their memory
    sh.keys_full.init(1), sh.keys_empty.init(kWarps + 2), sh.done.init(kWarps);
    for (int s = 0; s < Tr::kQueryStages; ++s) sh.query_full[s].init(1), sh.query_empty[s].init(kReaders);
    for (int s = 0; s < Tr::kDoutStages; ++s) sh.dout_full[s].init(1), sh.dout_empty[s].init(kReaders);
    for (int s = 0; s < 2; ++s) {
      sh.ds_full[s].init(kWarps), sh.ds_empty[s].init(kWarps);
      for (int n = 0; n < 2; ++n) sh.dq_full[s][n].init(kWarps / 2), sh.dq_empty[s][n].init(1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<Tr::kCopyRegisters>();
    if (threadIdx.x == 0) backward_copy<Tr>(a, mem);
    if (threadIdx.x == 32 || threadIdx.x == 64) backward_add<Tr>(a, mem, static_cast<int>(threadIdx.x) / 32 - 1);
  } else {
    take_registers<Tr::kRegisters>();
    backward_multiply<Tr>(a, mem, uniform(static_cast<int>(threadIdx.x) / kWarpgroup - 1));
  }
}

}  // namespace attend::cuda
