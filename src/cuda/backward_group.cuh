// What a warpgroup of attention backward holds and does: its part of the products, of the weights and of the gradients.
#pragma once

#include "cuda/backward_items.cuh"
#include "cuda/backward_shapes.hpp"
#include "cuda/score_terms.cuh"
#include "cuda/wgmma.cuh"

namespace attend::cuda {

template <class Element, BackwardShape S, BackwardTerms kTerm, bool kBits_>
struct BackwardTraits {
  using T = Element;
  static constexpr int D = S.D, kKeys = S.keys, kStep = S.queries;
  static constexpr int kQueryStages = S.query_stages, kDoutStages = S.dout_stages;
  static constexpr bool kTerms = kTerm == BackwardTerms::all;
  static constexpr bool kHoles = kTerms || kBits_;  // a mask may have some
  static constexpr bool kAlibi = kTerm == BackwardTerms::alibi, kCap = kTerm == BackwardTerms::cap;
  static constexpr bool kLight = kAlibi || kCap;  // one of them alone
  static constexpr bool kWide = shares_dims(S);
  static constexpr bool kRoles = kWide && !kTerms;                        // one warpgroup has dV, the other dK
  static constexpr int kDims = kWide && !kRoles ? D / 2 : D;              // of dK and dV, a warpgroup's
  static constexpr int kDqColumns = kStep == 128 ? D : D / 2;             // of dQ, a warpgroup's 64 rows
  static constexpr bool kEarlyValues = kStep == 64 && !kTerms && !kWide;  // dV runs beside dS, where registers suffice
  static constexpr int kThreads = 3 * kWarpgroup;
  static constexpr int kRegisters = 240, kCopyRegisters = 24;  // 504 for one of each
  static constexpr int key_bytes = kKeys * D * 2, query_bytes = kStep * D * 2;
  static constexpr int key_chunk = kKeys * 128, query_chunk = kStep * 128;  // 64 columns of a tile
  static constexpr int kDsRows = kWide ? 64 : kKeys, ds_bytes = kDsRows * kStep * 2;
  static constexpr int dq_bytes = 64 * kDqColumns * 4;  // a warpgroup's
  static constexpr int kDqBuffers = S.dq_buffers;
  static constexpr int weight_bytes = kKeys * kStep * 4;  // of one role for the other, in two buffers
  static constexpr int between_bytes = kRoles ? 2 * weight_bytes : 2 * ds_bytes;
  static constexpr int shared_bytes = attend::cuda::shared_bytes(S);
  static_assert(shared_bytes <= 227 * 1024);
  static_assert(!kWide || (dq_bytes == query_bytes && kDqBuffers == 0));
};

template <class Tr>
struct BackwardShared {
  Barrier keys_full, keys_empty;
  Barrier query_full[Tr::kQueryStages], query_empty[Tr::kQueryStages];
  Barrier dout_full[Tr::kDoutStages], dout_empty[Tr::kDoutStages];
  Barrier ds_full[2], ds_empty[2];            // where the warpgroups share dS
  Barrier dq_full[2][2], dq_empty[2][2];      // of each warpgroup; of even and odd steps, of each buffer
  Barrier done;                               // with a step's queries, where dQ takes their place
  Barrier weights_full[2], weights_empty[2];  // from one role to the other
  BackwardItem items[2];
};

// Where everything lies in shared memory.
template <class Tr>
struct BackwardMemory {
  char *k, *v, *q, *dout, *ds, *weights, *dq;  // weights: where there are roles, in the place of ds
  float* lse2;                                 // of each stage of queries
  int2* seen;                                  // likewise
  float* delta;                                // of each stage of dout
  BackwardShared<Tr>* shared;

  __device__ __forceinline__ explicit BackwardMemory(char* base)
      : k(base),
        v(k + Tr::key_bytes),
        q(v + Tr::key_bytes),
        dout(q + Tr::kQueryStages * Tr::query_bytes),
        ds(dout + Tr::kDoutStages * Tr::query_bytes),
        weights(ds),
        dq(ds + Tr::between_bytes),
        lse2(reinterpret_cast<float*>(dq + Tr::kDqBuffers * 2 * Tr::dq_bytes)),
        seen(reinterpret_cast<int2*>(lse2 + Tr::kQueryStages * Tr::kStep)),
        delta(reinterpret_cast<float*>(seen + Tr::kQueryStages * Tr::kStep)),
        shared(reinterpret_cast<BackwardShared<Tr>*>(delta + Tr::kDoutStages * Tr::kStep)) {}

  // Where warpgroup w leaves its part of a step's dQ.
  __device__ __forceinline__ char* dq_place(int w, int step) const {
    if constexpr (Tr::kWide)
      return w == 0 ? dout + step % Tr::kDoutStages * Tr::query_bytes : q + step % Tr::kQueryStages * Tr::query_bytes;
    else
      return dq + (step % Tr::kDqBuffers * 2 + w) * Tr::dq_bytes;
  }
};

// A row of an accumulator, of which a thread has two of every eight columns from `first` on.
template <class T, int kColumns>
__device__ __forceinline__ void store_row(const DeviceOperand& to, std::int64_t row, int first, const float* sums,
                                          float factor, int dims) {
  if (to.pairs) {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(static_cast<T*>(const_cast<void*>(to.data)) + row + first);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      if (8 * j + first < dims) pairs[4 * j] = pack<T>(sums[4 * j] * factor, sums[4 * j + 1] * factor);
    return;
  }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 8 * j + first + e;
      if (column < dims) store_float(to, row + column * to.dim_stride, sums[4 * j + e] * factor);
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
  std::uint32_t ds_to;  // where this thread's rows of dS go
  // Keys and values with their dims summed over; queries and dout likewise and as rows; keys as rows; dS transposed.
  SharedOperand k, v, q, dout, q_rows, dout_rows, k_rows, ds_columns;
  float dk[Tr::kDims / 2], dv[Tr::kDims / 2];
  float s[kScores], dp[kScores], dq[Tr::kDqColumns / 2];
  std::uint32_t p[kScores / 2], ds[kScores / 2];  // packed
  float slope[Tr::kTerms ? kScores : 1];          // of the soft cap
  float2 lse[Tr::kStep / 8], delta[Tr::kStep / 8];
  static constexpr int kWords = Tr::kStep / 32;
  std::uint32_t shown[2][Tr::kHoles ? kWords : 1];  // where a mask has holes: of this thread's two keys

  __device__ __forceinline__ BackwardGroup(const BackwardArgs& args, const BackwardMemory<Tr>& memory, int group)
      : a(args),
        mem(memory),
        w(group),
        thread(threadIdx.x % kWarpgroup),
        warp(thread / 32),
        lane(thread % 32),
        ds_to(0),
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
        ds_columns(my_ds() + (Tr::kStep == 128 ? w * Tr::kDsRows * 128 : 0), 8192) {
    const int row = first_key() + warp * 16 + lane % 16;
    ds_to = __shfl_sync(~0U, shared_address(my_ds()) + row * 128 + (lane / 16 ^ (row & 7)) * 16, lane);
  }
  __device__ __forceinline__ char* my_ds() const { return mem.ds + (Tr::kWide ? w * Tr::ds_bytes : 0); }
  __device__ __forceinline__ int first_key() const { return Tr::kWide ? 0 : w * 64; }
  __device__ __forceinline__ int first_dim() const { return Tr::kDims < Tr::D ? w * Tr::kDims : 0; }

  // S^T = K Q^T
  __device__ __forceinline__ void scores(int u) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kStep>::template ss<0, 0>(s, k.at(n / 4 * Tr::key_chunk + n % 4 * 32),
                                               q.at(u * Tr::query_bytes + n / 4 * Tr::query_chunk + n % 4 * 32),
                                               n != 0);
    products_commit();
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void weight_gradients(int st) {
    products_begin();
#pragma unroll
    for (int n = 0; n < Tr::D / 16; ++n)
      Product<T, Tr::kStep>::template ss<0, 0>(dp, v.at(n / 4 * Tr::key_chunk + n % 4 * 32),
                                               dout.at(st * Tr::query_bytes + n / 4 * Tr::query_chunk + n % 4 * 32),
                                               n != 0);
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
  // dQ = dS K: half of the queries, or of the columns.
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

  // Scores to logits. What is asked of a call is asked once, not for each score: loads of several are then under way.
  __device__ __forceinline__ void add_terms(const BackwardItem& item, int h, int i) {
    const ScoreTerms& terms = a.terms;
    if (terms.softcap > 0) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        const float x = s[e] * a.scale;
        slope[e] = cap_slope(x, terms.softcap);
        s[e] = capped(x, terms.softcap);
      }
    } else {
#pragma unroll
      for (int e = 0; e < kScores; ++e) s[e] *= a.scale;
    }
    if (terms.bias.data) {
#pragma unroll
      for (int e = 0; e < kScores; ++e)
        s[e] += bias_of(terms, a.mask, {item.b, h, i * Tr::kStep + query_of(e / 4, e)}, key_of(item.n, e % 4));
    }
    if (terms.alibi.data) {
      const float slope_of_head =
          load_float(terms.alibi, item.b * terms.alibi.batch_stride + h * terms.alibi.head_stride);
      const float* const positions = a.rows.position + static_cast<std::int64_t>(item.b) * a.padded + i * Tr::kStep;
#pragma unroll
      for (int j = 0; j < Tr::kStep / 8; ++j) {
        const float2 position = *reinterpret_cast<const float2*>(positions + query_of(j, 0));
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[4 * j + e] =
              fmaf(-slope_of_head, fabsf(((e & 1) ? position.y : position.x) - static_cast<float>(key_of(item.n, e))),
                   s[4 * j + e]);
      }
    }
  }
  // Of two queries.
  __device__ __forceinline__ float2 tops_of(const BackwardItem& item, int h, int i, int j) const {
    const std::int64_t head = static_cast<std::int64_t>(item.b) * a.H + h;
    return *reinterpret_cast<const float2*>(a.tops + head * a.padded + i * Tr::kStep + query_of(j, 0));
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
      lse[j] = *reinterpret_cast<const float2*>(mem.lse2 + u * Tr::kStep + query_of(j, 0));
  }
  __device__ __forceinline__ void load_delta(int st) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j)
      delta[j] = *reinterpret_cast<const float2*>(mem.delta + st * Tr::kStep + query_of(j, 0));
  }
  // Asked for before the scores are there.
  __device__ __forceinline__ void fetch_bits(const BackwardItem& item, int h, int i) {
    const KeyBits& bits = a.key_bits;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t* const words =
          bits.words + item.b * bits.batch_stride + h * bits.head_stride +
          static_cast<std::int64_t>(smaller(key_of(item.n, 2 * r), a.N - 1)) * bits.row_words + i * kWords;
#pragma unroll
      for (int n = 0; n < kWords; n += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(words + n);
        shown[r][n] = two.x, shown[r][n + 1] = two.y;
      }
    }
  }
  __device__ __forceinline__ void hide_bits() {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kWords; ++n) {
        const std::uint32_t bits = shown[r][n] >> (lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((bits >> (8 * j + e) & 1) == 0) s[16 * n + 4 * j + 2 * r + e] = 0.0F;
      }
  }
  // P^T from S^T, in place.
  __device__ __forceinline__ void weights(const BackwardItem& item, int h, int i, int u, bool all, bool holes = false) {
    if constexpr (Tr::kTerms) add_terms(item, h, i);
    if (all)
      exponentials<false>(item, h, i, u);
    else
      exponentials<true>(item, h, i, u);
    if constexpr (Tr::kHoles)
      if (holes) hide_bits();
  }
  template <bool kHide>
  __device__ __forceinline__ void exponentials(const BackwardItem& item, int h, int i, int u) {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j) {
      float2 top{};
      if constexpr (Tr::kTerms) top = tops_of(item, h, i, j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[4 * j + e];
        const float rest = (e & 1) ? lse[j].y : lse[j].x;
        x = exp2_fast(Tr::kTerms ? weight_exponent(x, (e & 1) ? top.y : top.x, rest) : fmaf(x, a.scale2, -rest));
      }
      if constexpr (kHide) {
        const int4 seen = *reinterpret_cast<const int4*>(mem.seen + u * Tr::kStep + query_of(j, 0));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = key_of(item.n, e);
          if (key < ((e & 1) ? seen.z : seen.x) || key >= ((e & 1) ? seen.w : seen.y)) s[4 * j + e] = 0.0F;
        }
      }
    }
  }
  // With ALiBi or a soft-cap alone. A lane's two queries of a step: asked for before the scores are there.
  struct LightRows {
    float2 top, position;
  };
  __device__ __forceinline__ LightRows fetch_rows(const BackwardItem& item, int h, int i) const {
    static_assert(Tr::kStep == 64);
    LightRows rows{};
    const std::int64_t head = static_cast<std::int64_t>(item.b) * a.H + h;
    rows.top = *reinterpret_cast<const float2*>(a.tops + head * a.padded + i * Tr::kStep + 2 * lane);
    if constexpr (Tr::kAlibi)
      rows.position = *reinterpret_cast<const float2*>(a.rows.position + static_cast<std::int64_t>(item.b) * a.padded +
                                                       i * Tr::kStep + 2 * lane);
    return rows;
  }
  // P^T from S^T, packed, and in place times the cap's slope, which is how the scores' gradients have it.
  __device__ __forceinline__ void light_weights(const BackwardItem& item, int h, int i, int u, bool all,
                                                const LightRows& rows) {
    // Seldom: rows whose LSE does not suffice, or queries of several documents, whose positions are no sequence.
    bool plain = rows.top.x == 0.0F && rows.top.y == 0.0F;
    float slope = 0, first = 0;
    if constexpr (Tr::kAlibi) {
      const ScoreTerms& terms = a.terms;
      slope = load_float(terms.alibi, item.b * terms.alibi.batch_stride + h * terms.alibi.head_stride);
      first = __shfl_sync(~0U, rows.position.x, 0);
      const float mine = first + static_cast<float>(2 * lane);
      plain = plain && rows.position.x == mine && rows.position.y == mine + 1.0F;
    }
    if (!__all_sync(~0U, plain))
      light_exponentials<true, true>(item, h, i, u, slope, first);
    else if (all)
      light_exponentials<false, false>(item, h, i, u, slope, first);
    else
      light_exponentials<true, false>(item, h, i, u, slope, first);
  }
  // The logit of a score and the slope of the cap there. Each score decides for itself, so that its bits follow from it
  // alone.
  struct Capped {
    float logit, slope;
  };
  __device__ __forceinline__ Capped small_cap(float x) const {
    const float logit = a.cap(x), part = logit * a.inverse_cap;
    return {logit, fmaf(-part, part, 1.0F)};
  }
  __device__ __forceinline__ Capped any_cap(float x) const {
    if (fabsf(x) * fabsf(a.cap.ratio) <= a.cap.angle) return small_cap(x);
    const float z = exp2_fast(-fabsf(a.cap.power * x)), inverse = inverse_fast(1.0F + z);
    return {fmaf(a.cap.twice, inverse_fast(1.0F + exp2_fast(a.cap.power * x)), a.cap.cap),
            4.0F * z * inverse * inverse};
  }
  template <bool kHide, bool kSeldom>
  __device__ __forceinline__ void light_exponentials(const BackwardItem& item, int h, int i, int u, float slope,
                                                     float first) {
    bool small = true;  // none needs an exponential for its cap
    if constexpr (Tr::kCap) {
      float most = 0;
#pragma unroll
      for (int e = 0; e < kScores; ++e) most = fmaxf(most, fabsf(s[e]));
      small = __all_sync(~0U, most * fabsf(a.cap.ratio) <= a.cap.angle);
    }
    if (small)
      light_exponentials<kHide, kSeldom, true>(item, h, i, u, slope, first);
    else
      light_exponentials<kHide, kSeldom, false>(item, h, i, u, slope, first);
  }
  template <bool kHide, bool kSeldom, bool kSmall>
  __device__ __forceinline__ void light_exponentials(const BackwardItem& item, int h, int i, int u, float slope,
                                                     float first) {
    const float slope2 = slope * kLog2E;
    const float distance = first + static_cast<float>(query_of(0, 0)) - static_cast<float>(key_of(item.n, 0));
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; ++j) {
      float2 top{}, position{};
      int4 seen{};
      if constexpr (kSeldom) top = tops_of(item, h, i, j);
      if constexpr (kSeldom && Tr::kAlibi)
        position = *reinterpret_cast<const float2*>(a.rows.position + static_cast<std::int64_t>(item.b) * a.padded +
                                                    i * Tr::kStep + query_of(j, 0));
      if constexpr (kHide) seen = *reinterpret_cast<const int4*>(mem.seen + u * Tr::kStep + query_of(j, 0));
      float weight[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[4 * j + e];
        const int key = key_of(item.n, e);
        const float rest = (e & 1) ? lse[j].y : lse[j].x;
        Capped score{x, 1.0F};
        if constexpr (Tr::kCap) score = kSmall ? small_cap(x) : any_cap(x);
        float far = distance + static_cast<float>(8 * j + (e & 1) - (e >> 1) * 8);
        if constexpr (kSeldom && Tr::kAlibi) far = ((e & 1) ? position.y : position.x) - static_cast<float>(key);
        float exponent = fmaf(score.logit, a.scale2, -rest);
        if constexpr (Tr::kAlibi) exponent = fmaf(-slope2, fabsf(far), exponent);
        exponent = smaller_or_nan(exponent, 0.0F);
        if constexpr (kSeldom) {
          const float my_top = (e & 1) ? top.y : top.x;
          const float logit = Tr::kCap ? score.logit : fmaf(-slope, fabsf(far), score.logit * a.scale);
          if (my_top != 0.0F) exponent = weight_exponent(logit, my_top, rest);
        }
        weight[e] = exp2_fast(exponent);
        if (kHide && (key < ((e & 1) ? seen.z : seen.x) || key >= ((e & 1) ? seen.w : seen.y)))
          weight[e] = score.slope = 0.0F;
        x = weight[e] * score.slope;
      }
      p[2 * j] = pack<T>(weight[0], weight[1]), p[2 * j + 1] = pack<T>(weight[2], weight[3]);
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
  __device__ __forceinline__ void score_gradients(const BackwardItem& item, int h, int i) {
    if constexpr (Tr::kTerms) {
      if (a.terms.dropout_threshold != 0) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) dp[e] *= kept(item, h, i, e / 4, e % 4);
      }
      multiply_gradients();
      if (a.dbias.data) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) add_bias_gradient(item, h, i, e / 4, e % 4, s[e]);
      }
      if (a.terms.softcap > 0) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) s[e] *= slope[e];
      }
      pack_gradients();
    } else {
#pragma unroll
      for (int j = 0; j < Tr::kStep / 8; ++j) {
        float g[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) g[e] = s[4 * j + e] * (dp[4 * j + e] - ((e & 1) ? delta[j].y : delta[j].x));
        ds[2 * j] = pack<T>(g[0], g[1]), ds[2 * j + 1] = pack<T>(g[2], g[3]);
      }
    }
  }
  // The same in two steps.
  __device__ __forceinline__ void multiply_gradients() {
#pragma unroll
    for (int e = 0; e < kScores; ++e) s[e] *= dp[e] - ((e & 1) ? delta[e / 4].y : delta[e / 4].x);
  }
  __device__ __forceinline__ void pack_gradients() {
#pragma unroll
    for (int x = 0; x < kScores / 2; ++x) ds[x] = pack<T>(s[2 * x], s[2 * x + 1]);
  }
  // dS^T to shared memory, where dQ's product reads it transposed: rows of keys, 64 queries each, swizzled.
  __device__ __forceinline__ void stage_score_gradients(int buffer) const {
#pragma unroll
    for (int j = 0; j < Tr::kStep / 8; j += 2)
      store_matrices((ds_to + (buffer * Tr::ds_bytes + j / 8 * Tr::kDsRows * 128)) ^ (j % 8 * 16), ds[2 * j],
                     ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3]);
  }
  // Weights from one role to the other, each thread's to the same thread.
  __device__ __forceinline__ void leave_weights(int buffer) const {
    auto* const to = reinterpret_cast<float4*>(mem.weights + buffer * Tr::weight_bytes);
#pragma unroll
    for (int x = 0; x < kScores / 4; ++x)
      to[x * kWarpgroup + thread] = make_float4(s[4 * x], s[4 * x + 1], s[4 * x + 2], s[4 * x + 3]);
  }
  __device__ __forceinline__ void take_weights(int buffer) {
    const auto* const from = reinterpret_cast<const float4*>(mem.weights + buffer * Tr::weight_bytes);
#pragma unroll
    for (int x = 0; x < kScores / 4; ++x) {
      const float4 four = from[x * kWarpgroup + thread];
      s[4 * x] = four.x, s[4 * x + 1] = four.y, s[4 * x + 2] = four.z, s[4 * x + 3] = four.w;
    }
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
  // The rows of keys at the end of an item.
  __device__ __forceinline__ void store_rows(const BackwardItem& item, const DeviceOperand& to, const float* sums,
                                             float factor, int dims) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(item.n, 2 * r);
      if (key < a.N)
        store_row<T, Tr::kDims>(to, item.b * to.batch_stride + item.hk * to.head_stride + key * to.row_stride,
                                first_dim() + lane % 4 * 2, sums + 2 * r, factor, dims);
    }
  }
};

}  // namespace attend::cuda
