// A warpgroup of attention forward on Hopper: 64 rows, their scores, softmax and sums in registers.
#pragma once

#include <type_traits>

#include "cuda/row_statistics.cuh"
#include "cuda/wgmma.cuh"

namespace attend::cuda {

// D, E: dims of keys and values, in steps of 64; kKeys a tile; kGroups warpgroups of 64 rows; kStages tiles of keys and
// of values under way; kQueryStages tiles of queries.
template <class Element, int kD, int kE, int kKeys_, int kGroups_, int kStages_, int kQueryStages_, bool kHoldQuery_,
          bool kTerms_, bool kBits_, bool kWatch_, bool kAllTerms_>
struct ForwardTraits {
  using T = Element;
  static constexpr int D = kD, E = kE, kKeys = kKeys_, kGroups = kGroups_, kStages = kStages_;
  static constexpr int kQueryStages = kQueryStages_;
  static constexpr bool kHoldQuery = kHoldQuery_;  // queries stay in registers: their memory is free for the next tile
  static constexpr bool kTerms = kTerms_, kBits = kBits_, kWatch = kWatch_;  // kWatch: statistics are wanted
  static constexpr bool kAllTerms = kAllTerms_;  // else no bias and no dropout, whose code takes registers
  static constexpr bool kParts = kGroups == 1;   // an item has a part of the keys
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int query_bytes = 64 * D * 2, out_bytes = 64 * E * 2;  // of a warpgroup
  static constexpr int key_bytes = kKeys * D * 2, value_bytes = kKeys * E * 2;
  static constexpr int most_shared = 227 * 1024;
  static constexpr int rest = kGroups * kQueryStages * query_bytes + kStages * (key_bytes + value_bytes) + 1024;
  // Where there is no room for it, a result leaves through the memory of its queries; one of a part of the keys goes
  // out as floats.
  static constexpr bool kOutApart = kGroups > 1 && rest + kGroups* out_bytes <= most_shared;
  static constexpr int constant_bytes = kWatch ? kKeys * 16 : 0;
  static constexpr int shared_bytes = rest + (kOutApart ? kGroups * out_bytes : 0) + constant_bytes;
  static_assert(kOutApart || kGroups == 1 || (kQueryStages == 1 && !kHoldQuery && D == E));
  static_assert(shared_bytes <= most_shared);
};

struct ForwardItem {
  int m, h, b, split;  // m < 0: no more
};
struct BlockRange {
  int first, last;
};
// The blocks of keys that a tile of queries visits, and those that all rows of a warpgroup see whole.
struct TileView {
  BlockRange all, whole;
};

// The blocks of keys that a tile of queries visits, whose first sees keys from lo on, and whose last those before hi:
// never none.
template <class Tr>
__device__ __forceinline__ BlockRange visited(const ForwardArgs& a, const ForwardItem& item, int lo, int hi) {
  lo = larger(lo, 0), hi = smaller(hi, a.N);
  if constexpr (Tr::kParts) {
    lo = larger(lo, item.split * a.split_keys);
    hi = smaller(hi, (item.split + 1) * a.split_keys);
  }
  const int first = smaller(lo, a.N - 1) / Tr::kKeys;
  return {first, larger(first, (hi + Tr::kKeys - 1) / Tr::kKeys - 1)};
}

// Of a block, where a mask has holes: no more after it; some bits hide keys; some rows' intervals end in it.
constexpr int kLastBlock = 1, kHasHoles = 2, kHasEnds = 4;

// A thread's part of the softmax of two rows.
struct RowSoftmax {
  float top[2], sum[2], factor[2];
};

struct NoWatch {};  // where no statistics are wanted
template <class Tr>
using WatchOf = std::conditional_t<Tr::kWatch, RowWatch<typename Tr::T, Tr::kKeys>, NoWatch>;

// A warpgroup's view of its work.
template <class Tr>
struct ForwardGroup {
  using T = typename Tr::T;
  const ForwardArgs& a;
  int lane, warp, col0;  // col0: of this lane's pair within eight
  float s[Tr::kKeys / 2], o[Tr::E / 2];
  std::uint32_t p[Tr::kKeys / 4];
  std::uint32_t held[Tr::kHoldQuery ? Tr::D / 4 : 1];
  Interval seen[2];
  const std::uint32_t* bit_rows[2];                        // where a mask has holes: the two rows' bits,
  std::uint32_t shown[2][Tr::kBits ? Tr::kKeys / 32 : 1];  // and those of a block
  RowSlope slopes[2];
  RowSoftmax soft;
  float rest[2];  // of a part of the keys, with terms: what its LSE does not hold
  // With statistics: the sums of weight times its exponent, and those of a tile's weights times constants.
  float power[2], seen_tile[4];
  const char* constants;
  WatchOf<Tr> watch;

  __device__ explicit ForwardGroup(const ForwardArgs& args, int thread)
      : a(args), lane(thread % 32), warp(thread / 32), col0(thread % 4 * 2) {}

  // S = Q K^T
  __device__ __forceinline__ void scores(const char* sq, const char* sk) {
    const SharedOperand queries(sq, 16), keys(sk, 16);
    products_begin();
#pragma unroll
    for (int k = 0; k < Tr::D / 16; ++k) {
      const std::uint64_t some_keys = keys.at(k / 4 * Tr::kKeys * 128 + k % 4 * 32);
      if constexpr (Tr::kHoldQuery)
        Product<T, Tr::kKeys>::template rs<0>(s, held + 4 * k, some_keys, k != 0);
      else
        Product<T, Tr::kKeys>::template ss<0, 0>(s, queries.at(k / 4 * 8192 + k % 4 * 32), some_keys, k != 0);
    }
    products_commit();
  }
  // O += P V
  __device__ __forceinline__ void values(const char* sv, int add) {
    const SharedOperand some_values(sv, Tr::kKeys * 128);
    products_begin();
#pragma unroll
    for (int k = 0; k < Tr::kKeys / 16; ++k)
      Product<T, Tr::E>::template rs<1>(o, p + 4 * k, some_values.at(k * 2048), add | (k != 0));
    if constexpr (Tr::kWatch)
#pragma unroll
      for (int k = 0; k < Tr::kKeys / 16; ++k)
        Product<T, 8>::template rs<0>(seen_tile, p + 4 * k, plain_descriptor(shared_address(constants) + k * 256, 128),
                                      k != 0);
    products_commit();
  }
  __device__ __forceinline__ void hold_query(const char* sq) {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < Tr::D / 16; ++k) {
      std::uint32_t r[4];
      load_matrices(r, shared_address(sq) + k / 4 * 8192 + row * 128 + ((k % 4 * 2 + lane / 16) ^ (row & 7)) * 16);
#pragma unroll
      for (int e = 0; e < 4; ++e) held[4 * k + e] = r[e];
    }
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) soft.top[r] = -INFINITY, soft.sum[r] = 0;
    if constexpr (Tr::kWatch) {
      power[0] = power[1] = 0;
      watch.begin();
    }
  }

  __device__ __forceinline__ void hide(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned length = static_cast<unsigned>(larger(0, seen[r].hi - seen[r].lo));
      const int from = j * Tr::kKeys + col0 - seen[r].lo;
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (static_cast<unsigned>(from + 8 * i + e) >= length) s[4 * i + 2 * r + e] = -INFINITY;
    }
  }
  // Asked for before the scores are there.
  __device__ __forceinline__ void fetch_bits(int j, int flags) {
    if (!(flags & kHasHoles)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < Tr::kKeys / 64; ++n) {  // rows are padded to whole tiles
        const uint2 two = *reinterpret_cast<const uint2*>(bit_rows[r] + j * (Tr::kKeys / 32) + 2 * n);
        shown[r][2 * n] = two.x, shown[r][2 * n + 1] = two.y;
      }
  }
  __device__ __forceinline__ void hide_bits() {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < Tr::kKeys / 32; ++n) {
        const std::uint32_t bits = shown[r][n] >> col0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if ((bits >> (8 * i + e) & 1) == 0) s[16 * n + 4 * i + 2 * r + e] = -INFINITY;
      }
  }
  // Scores to logits: cap * tanh(score * scale / cap), of small angles without an exponential. Each score decides for
  // itself, so that its bits follow from it alone; where all of a warp's are small, as most are, none is made.
  __device__ __forceinline__ void cap_scores() {
    const SmallTanh& cap = a.cap;
    float most = 0;
#pragma unroll
    for (int i = 0; i < Tr::kKeys / 2; ++i) most = fmaxf(most, fabsf(s[i]));
    if (__all_sync(~0U, most * fabsf(cap.ratio) <= cap.angle)) {
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 2; ++i) s[i] = cap(s[i]);
      return;
    }
    std::uint64_t large = 0;  // in two steps, for there are few registers
#pragma unroll
    for (int i = 0; i < Tr::kKeys / 2; ++i)
      if (!(fabsf(s[i]) * fabsf(cap.ratio) <= cap.angle)) {
        s[i] = fmaf(cap.twice, inverse_fast(1.0F + exp2_fast(cap.power * s[i])), cap.cap);
        large |= 1ULL << i;
      }
#pragma unroll
    for (int i = 0; i < Tr::kKeys / 2; ++i) s[i] = large >> i & 1 ? s[i] : cap(s[i]);
  }
  __device__ __forceinline__ void add_terms(const ForwardItem& item, int w, int j) {
    const int col = j * Tr::kKeys + col0;
    const bool alibi = a.terms.alibi.data != nullptr;
    // Where a warp's rows all stand behind the tile, ALiBi is linear in the key, and one addition with the scale.
    const auto last = static_cast<float>(j * Tr::kKeys + Tr::kKeys - 1);
    const bool linear = alibi && __all_sync(~0U, slopes[0].position >= last && slopes[1].position >= last);
    const bool bias = Tr::kAllTerms && a.terms.bias.data != nullptr;
    const bool with_scale = linear && !bias && a.terms.softcap <= 0;
    if (a.terms.softcap > 0)
      cap_scores();
    else if (!with_scale)
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 2; ++i) s[i] *= a.scale;
    if (bias) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const RowPlace row = place(item, w, r);
#pragma unroll
        for (int i = 0; i < Tr::kKeys / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) s[4 * i + 2 * r + e] += bias_of(a.terms, a.mask, row, col + 8 * i + e);
      }
    }
    if (linear) {
      const float factor = with_scale ? a.scale : 1.0F;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float first = slopes[r].slope * (static_cast<float>(col) - slopes[r].position);
#pragma unroll
        for (int i = 0; i < Tr::kKeys / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            s[4 * i + 2 * r + e] =
                fmaf(s[4 * i + 2 * r + e], factor, fmaf(slopes[r].slope, static_cast<float>(8 * i + e), first));
      }
    } else if (alibi) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float distance = slopes[r].position - static_cast<float>(col);
#pragma unroll
        for (int i = 0; i < Tr::kKeys / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            s[4 * i + 2 * r + e] =
                fmaf(-slopes[r].slope, fabsf(distance - static_cast<float>(8 * i + e)), s[4 * i + 2 * r + e]);
      }
    }
  }
  __device__ __forceinline__ void drop(const ForwardItem& item, int w, int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace row = place(item, w, r);
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 8; ++i) {
        const int kept = kept_pair(a.terms, row, j * Tr::kKeys + 8 * i + col0);
#pragma unroll
        for (int e = 0; e < 2; ++e)
          s[4 * i + 2 * r + e] = (kept >> e & 1) ? s[4 * i + 2 * r + e] * a.terms.dropout_scale : 0.0F;
      }
    }
  }

  // What the exponents of a row count from, whose largest score is `top`, and the exponent of 2 of a score. Without
  // terms one instruction: the product's rounding is one factor of all weights. Logits of terms may be as large as a
  // mask that is added, so the difference comes first, and is exact where it counts.
  __device__ __forceinline__ float base_of(float top) const {
    if (top == -INFINITY) return 0.0F;
    return Tr::kTerms ? top : __fmul_rn(top, a.scale2);
  }
  __device__ __forceinline__ float exponent_of(float x, float base) const {
    return Tr::kTerms ? (x - base) * kLog2E : fmaf(x, a.scale2, -base);
  }
  // By so much the exponents so far fall: exactly 0 where the largest is kept. 2^-200 is 0.
  __device__ __forceinline__ float fall(float before, float base) const {
    if (before == -INFINITY) return 0.0F;
    return Tr::kTerms ? fminf((base - before) * kLog2E, 200.0F) : base - __fmul_rn(before, a.scale2);
  }

  // Scores to weights, against the largest score so far. That is kept while a new one is less than 2^8 above it: the
  // sums hold it, and the results so far need no factor.
  template <bool kHide>
  __device__ __forceinline__ void weights(const ForwardItem& item, int w, int j, int flags) {
    if constexpr (Tr::kTerms) add_terms(item, w, j);
    if constexpr (Tr::kBits) {
      if (flags & kHasEnds) hide(j);
      if (flags & kHasHoles) hide_bits();
    } else if constexpr (kHide) {
      hide(j);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = Tr::kWatch ? -INFINITY : soft.top[r];
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 8; ++i) top = fmaxf(top, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
      if constexpr (Tr::kWatch) {
        watch.high[r] = top;
        top = fmaxf(top, soft.top[r]);
      }
      if ((top - soft.top[r]) * a.scale2 <= 8.0F) top = soft.top[r];
      const float base = base_of(top);
      soft.factor[r] = top == soft.top[r] ? 1.0F : exp2_fast(exponent_of(soft.top[r], base));
      const float lower = Tr::kWatch ? fall(soft.top[r], base) : 0.0F;
      soft.top[r] = top;
      float sum = 0, sum_of_powers = 0;
#pragma unroll
      for (int i = 0; i < Tr::kKeys / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * i + 2 * r + e];
          const float exponent = exponent_of(x, base);
          x = exp2_fast(exponent);
          sum += x;
          if constexpr (Tr::kWatch)  // 2^-200 is 0
            sum_of_powers =
                fmaf(x, kHide || Tr::kTerms || Tr::kBits ? fmaxf(exponent, -200.0F) : exponent, sum_of_powers);
        }
      if constexpr (Tr::kWatch) power[r] = fmaf(fmaf(-lower, soft.sum[r], power[r]), soft.factor[r], sum_of_powers);
      soft.sum[r] = fmaf(soft.sum[r], soft.factor[r], sum);
    }
    if constexpr (Tr::kTerms && !Tr::kWatch)
      if (Tr::kAllTerms && a.terms.dropout_threshold != 0) drop(item, w, j);
  }
  // Where it pays, the exponentials do not wait for products that they have nothing to do with, as the compiler would
  // have it: it moves nothing over a branch, and no sum of weights is negative.
  __device__ __forceinline__ void weights_before_products() {
    if constexpr (Tr::kGroups == 2 && Tr::E == 128 && !Tr::kTerms && !Tr::kWatch)
      if (soft.sum[0] < 0 || soft.sum[1] < 0) __trap();
  }
  // Statistics of the packed weights of block j. What few blocks need, while there are registers for it:
  __device__ __forceinline__ void see_some(const ForwardItem& item, int j, bool near) {
    if constexpr (Tr::kWatch) {
      if (__builtin_expect(near, 0)) watch.see_near(a.statistics, p, j * Tr::kKeys + col0);
      if (__builtin_expect(a.statistics.tokens != nullptr, 0))
        watch.see_tokens(a.statistics, p, item.b, j * Tr::kKeys + col0);
    }
  }
  // where the largest is, while products run;
  __device__ __forceinline__ void find_highest(int j) {
    if constexpr (Tr::kWatch)
#pragma unroll
      for (int r = 0; r < 2; ++r) watch.find_highest(p, j, col0, r, exponent_of(watch.high[r], base_of(soft.top[r])));
  }
  // and what the product with constants came to.
  __device__ __forceinline__ void add_seen(int j) {
    if constexpr (Tr::kWatch) watch.add(seen_tile, j);
  }
  __device__ __forceinline__ void rescale() {
    if (!__any_sync(~0U, soft.factor[0] != 1.0F || soft.factor[1] != 1.0F)) return;
#pragma unroll
    for (int i = 0; i < Tr::E / 2; ++i) o[i] *= soft.factor[i >> 1 & 1];
    if constexpr (Tr::kWatch) watch.scale(soft.factor);
  }
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < Tr::kKeys / 4; ++i) p[i] = pack<T>(s[2 * i], s[2 * i + 1]);
  }

  // Divides by the sums, the sink's weight among them. Returns the rows' LSE.
  __device__ __forceinline__ float2 finish(const ForwardItem& item, int w) {
    float lse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = soft.sum[r];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      // Of logits in their own unit, of scores as exponents of 2.
      constexpr float kUnit = Tr::kTerms ? kLog2E : 1.0F;
      float top = Tr::kTerms ? soft.top[r] : soft.top[r] * a.scale2, factor = 1.0F;
      if (soft.top[r] == -INFINITY) top = -INFINITY, sum = 0;
      const float of_keys = sum, lowest = top;
      if (!Tr::kParts && a.sinks.data) {
        const float sink = load_float(a.sinks, place(item, w, r).h * a.sinks.head_stride) * (kLog2E / kUnit);
        const float both = fmaxf(fmaxf(top, sink), -kLargestFloat);
        factor = exp2_fast((top - both) * kUnit);
        sum = fmaf(sum, factor, exp2_fast((sink - both) * kUnit));
        top = both;
      }
      const float inverse = sum > 0 ? __fdividef(factor, sum) : 0.0F;
      lse[r] = sum > 0 ? (Tr::kTerms ? fmaf(__log2f(sum), kLn2, top) : (top + __log2f(sum)) * kLn2) : -INFINITY;
      if (sum != sum) lse[r] = sum;
      if constexpr (Tr::kParts && Tr::kTerms) rest[r] = lse_rest(top, sum, lse[r]);
      if constexpr (Tr::kWatch)
        store_statistics(item, w, r,
                         {of_keys, power[r], inverse, (lowest - top) * kUnit - __log2f(sum),
                          exponent_of(watch.highest[r], Tr::kTerms ? base_of(lowest) : lowest),
                          !Tr::kParts && a.sinks.data != nullptr});
#pragma unroll
      for (int i = 0; i < Tr::E / 8; ++i) o[4 * i + 2 * r] *= inverse, o[4 * i + 2 * r + 1] *= inverse;
    }
    return make_float2(lse[0], lse[1]);
  }
  __device__ __forceinline__ void store_statistics(const ForwardItem& item, int w, int r, const RowTotals& totals) {
    const RowPlace row = place(item, w, r);
    float* to;
    if constexpr (Tr::kParts) {
      to = a.parts.statistics + part_row(item, row) * kStatisticColumns;
    } else {
      const DeviceOperand& rows = a.statistics.rows;
      to = static_cast<float*>(const_cast<void*>(rows.data)) + row.b * rows.batch_stride + row.h * rows.head_stride +
           row.i * rows.row_stride;
    }
    watch.store(r, totals, lane, row.i < a.M, to, Tr::kParts ? 1 : a.statistics.rows.dim_stride);
  }
  // The result to shared memory, swizzled as the copy engine reads it.
  __device__ __forceinline__ void stage(char* so) {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < Tr::E / 8; i += 2)
      store_matrices(shared_address(so) + i / 8 * 8192 + row * 128 + ((i % 8 + lane / 16) ^ (row & 7)) * 16,
                     pack<T>(o[4 * i], o[4 * i + 1]), pack<T>(o[4 * i + 2], o[4 * i + 3]),
                     pack<T>(o[4 * i + 4], o[4 * i + 5]), pack<T>(o[4 * i + 6], o[4 * i + 7]));
  }
  // The rows a thread holds, and row n of the warpgroup's: packed heads lie one after another within a token.
  __device__ __forceinline__ RowPlace place(const ForwardItem& item, int w, int r) const {
    return place_of(item, w, warp * 16 + lane / 4 + 8 * r);
  }
  __device__ __forceinline__ RowPlace place_of(const ForwardItem& item, int w, int n) const {
    if (a.packed == 1) return {item.b, item.h, smaller((item.m * Tr::kGroups + w) * 64 + n, a.M)};
    const int tokens = 64 / a.packed, token = n / a.packed, i = (item.m * Tr::kGroups + w) * tokens + token;
    return {item.b, item.h * a.packed + n % a.packed, token < tokens && i < a.M ? i : a.M};
  }
  // What the rows see. Each lane asks for one query: the warp's sixteen rows, then the first and the last of the tile
  // and of the warpgroup.
  __device__ __forceinline__ TileView see(const ForwardItem& item, int w) {
    const int tokens = 64 / a.packed, i0 = (item.m * Tr::kGroups + (lane < 18 ? 0 : w)) * tokens;
    const int last = smaller(a.M, i0 + (lane < 18 ? tokens * Tr::kGroups : tokens)) - 1;
    const int i = lane < 16 ? place_of(item, w, warp * 16 + lane).i : lane % 2 == 0 ? smaller(i0, a.M - 1) : last;
    const Interval keys = i < a.M ? seen_by(a.mask, item.b, i) : Interval{0, 0};
    const auto low = [&](int of) { return __shfl_sync(~0U, keys.lo, of); };
    const auto high = [&](int of) { return __shfl_sync(~0U, keys.hi, of); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace row = place(item, w, r);
      seen[r] = {low(lane / 4 + 8 * r), high(lane / 4 + 8 * r)};
      if constexpr (Tr::kParts) {
        seen[r].lo = larger(seen[r].lo, item.split * a.split_keys);
        seen[r].hi = smaller(seen[r].hi, (item.split + 1) * a.split_keys);
      }
      if constexpr (Tr::kBits) {
        const MaskBits& bits = a.mask.bits;
        bit_rows[r] = bits.words + row.b * bits.batch_stride + row.h * bits.head_stride +
                      static_cast<std::int64_t>(smaller(row.i, a.M - 1)) * bits.row_words;
      }
      if constexpr (Tr::kTerms) slopes[r] = row_slope(a.mask, a.terms, row);
      if constexpr (Tr::kWatch) watch.stand(a.statistics, a.mask, r, row.b, smaller(row.i, a.M - 1));
    }
    return {visited<Tr>(a, item, low(16), high(17)),
            {(larger(0, low(19)) + Tr::kKeys - 1) / Tr::kKeys, smaller(high(18), a.N) / Tr::kKeys - 1}};
  }
  // Where a row lies among those of all parts.
  __device__ __forceinline__ std::int64_t part_row(const ForwardItem& item, const RowPlace& row) const {
    const KeyParts& parts = a.parts;
    return ((static_cast<std::int64_t>(item.split) * parts.B + row.b) * parts.H + row.h) * parts.M + row.i;
  }
  // The rows' LSE; of a part of the keys all of its result, as floats.
  __device__ __forceinline__ void store_rows(const ForwardItem& item, int w, float2 lse) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace row = place(item, w, r);
      if (row.i >= a.M) continue;
      const float row_lse = r == 0 ? lse.x : lse.y;
      if constexpr (!Tr::kParts) {
        if (lane % 4 == 0 && a.lse)
          a.lse[row.b * a.lse_batch_stride + row.h * a.lse_head_stride + row.i * a.lse_row_stride] = row_lse;
        continue;
      }
      const std::int64_t at = part_row(item, row);
      if (lane % 4 == 0) a.parts.lse[at] = row_lse;
      if constexpr (Tr::kTerms)
        if (lane % 4 == 0) a.parts.rest()[at] = rest[r];
      float* to = a.parts.out + at * Tr::E + col0;
#pragma unroll
      for (int i = 0; i < Tr::E / 8; ++i)
        *reinterpret_cast<float2*>(to + 8 * i) = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
    }
  }
};

}  // namespace attend::cuda
