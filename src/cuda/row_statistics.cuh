// Statistics of rows of weights, gathered beside the products, of the weights as they meet the values: rounded to the
// element type. As on the CPU (cpu/kernels/statistics.inl), places count from near the row's largest weight, so that a
// variance keeps its digits.
#pragma once

#include "cuda/score_terms.cuh"

namespace attend::cuda {

// What the statistics of a row are made of once its weights are known.
struct RowTotals {
  float sum;         // of the weights as they were made, before they were rounded
  float power;       // of each times its exponent of 2
  float share;       // what makes a weight of the row of each of them
  float log2_share;  // that of it
  float highest;     // the exponent of 2 of the largest of them
  bool has_sink;     // one that takes some of the row
};

// What a thread has seen of its two rows, tile after tile in falling order of keys. Where every instruction counts,
// sums over a tile of kKeys are a product: of the weights, packed as they meet the values, with eight columns of
// constants.
template <class T, int kKeys>
struct RowWatch {
  static constexpr int kMiddle = kKeys / 2;  // of a tile
  float high[2];                             // the largest score of the tile
  float highest[2];                          // of all
  int argmax[2];
  // Of the whole row, in each of its lanes: the sum of the weights, of each times its distance from the middle of the
  // argmax's tile, and times that squared.
  float sum[2], place[2], square[2];
  // Sums that few tiles add to lie in memory, for registers are short. duplicate: the query's own place among them.
  enum Kept { sinks, self, previous, local, recent, duplicate, induction, kKept };
  volatile float kept[kKept][2];
  volatile int position[2];
  volatile float token[2];

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      highest[r] = -INFINITY, argmax[r] = -1;
      sum[r] = place[r] = square[r] = 0;
#pragma unroll
      for (int n = 0; n < kKept; ++n) kept[n][r] = 0;
    }
  }
  __device__ __forceinline__ void stand(const StatisticsArgs& a, const DeviceMask& mask, int r, int b, int i) {
    position[r] = i + position_offset(mask, a.offsets, a.last_key, b, run_of(mask, i));
    token[r] = a.tokens ? a.query_tokens[static_cast<std::int64_t>(b) * mask.M + i] : 0.0F;
  }

  using Weights = std::uint32_t[kKeys / 4];
  // A key's constants: 1, its distance x from the middle of the tile, and x * x = 64 * high + low, which both types
  // hold exactly. For each 16 keys two blocks of eight columns by eight keys.
  __device__ static void make_constants(T* to, int thread, int threads) {
    for (int n = thread; n < kKeys * 8; n += threads) {
      const int x = n / 64 * 8 + n % 8 - kMiddle, column = n / 8 % 8;
      to[n] = static_cast<T>(static_cast<float>(column == 0   ? 1
                                                : column == 1 ? x
                                                : column == 2 ? x * x / 64
                                                : column == 3 ? x * x % 64
                                                              : 0));
    }
  }
  // All weights so far become so many times as large.
  __device__ __forceinline__ void scale(const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] *= factor[r], place[r] *= factor[r], square[r] *= factor[r];
#pragma unroll
      for (int n = 0; n < kKept; ++n) kept[n][r] = kept[n][r] * factor[r];
    }
  }
  // Tile j: its product with the constants. A row's first lane has those of 1 and x, the second both parts of x * x.
  __device__ __forceinline__ void add(const float (&tile)[4], int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weights = __shfl_sync(~0U, tile[2 * r], 0, 4), first = __shfl_sync(~0U, tile[2 * r + 1], 0, 4);
      const float second = __shfl_sync(~0U, fmaf(64.0F, tile[2 * r], tile[2 * r + 1]), 1, 4);
      const auto from = static_cast<float>((j - argmax[r] / kKeys) * kKeys);
      const float once = fmaf(from, weights, first);
      sum[r] += weights;
      place[r] += once;
      square[r] += fmaf(from, first + once, second);
    }
  }
  // Where a row's largest score so far lies in tile j: its key is the lowest whose weight is as large once rounded, and
  // places count from the middle of the tile from now on. `exponent`: of that weight.
  __device__ __forceinline__ void find_highest(const Weights& p, int j, int col0, int r, float exponent) {
    const bool higher = high[r] >= highest[r] && high[r] > -INFINITY;  // of equal ones the lower key, which comes later
    if (!__any_sync(~0U, higher)) return;
    const float weight = exp2_fast(exponent);
    const std::uint32_t largest = pack<T>(weight, weight);
    std::uint32_t found = 0;  // bit n: the first of pair n, bit 16 + n: the second
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) found |= equal_halves(pair_of(p, r, n), largest) & (0x10001U << n);
    const auto lowest = [](std::uint32_t bits, int e) {
      return bits ? 8 * (__ffs(static_cast<int>(bits)) - 1) + e : kFarKey;
    };
    int at = j * kKeys + col0 + smaller(lowest(found & 0xFFFFU, 0), lowest(found >> 16, 1));
    at = smaller(at, __shfl_xor_sync(~0U, at, 1));
    at = smaller(at, __shfl_xor_sync(~0U, at, 2));
    if (!higher) return;
    const auto step = static_cast<float>((argmax[r] / kKeys - at / kKeys) * kKeys);
    const float once = fmaf(step, sum[r], place[r]);
    square[r] = fmaf(step, place[r] + once, square[r]);
    place[r] = once;
    highest[r] = high[r], argmax[r] = at;
  }
  __device__ __forceinline__ static std::uint32_t equal_halves(std::uint32_t x, std::uint32_t y) {
    if constexpr (std::is_same_v<T, Half>)
      return __heq2_mask(reinterpret_cast<const __half2&>(x), reinterpret_cast<const __half2&>(y));
    else
      return __heq2_mask(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(y));
  }
  // Pair n of a thread's own of row r: they lie every eight columns.
  __device__ __forceinline__ static std::uint32_t pair_of(const Weights& p, int r, int n) {
    return p[4 * (n / 2) + n % 2 * 2 + r];
  }
  __device__ __forceinline__ static float half_of(std::uint32_t pair, int e) {
    if constexpr (std::is_same_v<T, Half>)
      return widen(__ushort_as_half(static_cast<unsigned short>(e == 0 ? pair & 0xFFFFU : pair >> 16)));
    else
      return __uint_as_float(e == 0 ? pair << 16 : pair & 0xFFFF0000U);
  }
  // Column n of them, made anew wherever it is asked for: not kept in a register.
  __device__ __forceinline__ static float weight_of(const Weights& p, int r, int n) {
    std::uint32_t pair = pair_of(p, r, n / 2);
    asm volatile("" : "+r"(pair));
    return half_of(pair, n % 2);
  }

  // A thread's columns that lie in [lo, hi], as bits; lo and hi count from its first.
  __device__ __forceinline__ static std::uint32_t columns_within(int lo, int hi) {
    const auto before = [](int x) {  // how many of them lie before x
      x = smaller(larger(x, 0), kKeys);
      const int n = (x >> 3) * 2 + smaller(x & 7, 2);
      return n >= 32 ? ~0U : (1U << n) - 1;
    };
    return lo <= hi ? before(hi + 1) & ~before(lo) : 0U;
  }
  __device__ __forceinline__ static void add_columns(volatile float& to, std::uint32_t wanted, const Weights& p,
                                                     int r) {
    if (!__any_sync(~0U, wanted != 0)) return;
    float added = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 4; ++n)
      if (wanted & (1U << n)) added += weight_of(p, r, n);
    to = to + added;
  }
  // What the keys near the query, and the first ones, get of the weights of a tile; key0: of the thread's first column.
  __device__ __forceinline__ void see_near(const StatisticsArgs& a, const Weights& p, int key0) {
    const int least = a.sinks_apart ? a.sink_tokens - key0 : -kFarKey;
    const auto within = [&](int lo, int hi) { return columns_within(larger(lo, least), hi); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = position[r] - key0;
      add_columns(kept[recent][r], within(at - a.recent_width, at + a.recent_width), p, r);
      add_columns(kept[local][r], within(at - a.local_width, at + a.local_width), p, r);
      add_columns(kept[self][r], within(at, at), p, r);
      add_columns(kept[previous][r], within(at - 1, at - 1), p, r);
      add_columns(kept[sinks][r], columns_within(0, a.sink_tokens - 1 - key0), p, r);
    }
  }
  // And those with the query's token, or behind it.
  __device__ __forceinline__ void see_tokens(const StatisticsArgs& a, const Weights& p, int b, int key0) {
    const float* const tokens = a.tokens + b * a.token_row + key0;
    const float* const before = tokens + a.to_before;
    const float wanted[2] = {token[0], token[1]};
    float same[2] = {}, behind[2] = {};
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const float2 own = __ldg(reinterpret_cast<const float2*>(tokens + 8 * i));
      const float2 last = __ldg(reinterpret_cast<const float2*>(before + 8 * i));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float low = weight_of(p, r, 2 * i), next = weight_of(p, r, 2 * i + 1);
        if (own.x == wanted[r]) same[r] += low;
        if (own.y == wanted[r]) same[r] += next;
        if (last.x == wanted[r]) behind[r] += low;
        if (last.y == wanted[r]) behind[r] += next;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      kept[duplicate][r] = kept[duplicate][r] + same[r];
      kept[induction][r] = kept[induction][r] + behind[r];
    }
  }

  // The statistics of row r, by the four lanes that share it: the first of them stores those that are `wanted`.
  __device__ __forceinline__ void store(int r, const RowTotals& row, int lane, bool wanted, float* to,
                                        std::int64_t step) const {
    const auto of_row = [](float x) {
      x += __shfl_xor_sync(~0U, x, 1);
      return x + __shfl_xor_sync(~0U, x, 2);
    };
    const float mass = row.has_sink ? row.sum * row.share : 1.0F;
    const float share = mass / sum[r];  // of rounded weights
    const float entropy = -kLn2 * fmaf(row.share, of_row(row.power), mass * row.log2_share);
    const float mean = place[r] / sum[r], variance = fmaf(-mean, mean, square[r] / sum[r]);
    const int origin = argmax[r] / kKeys * kKeys + kMiddle;
    const float own = of_row(kept[self][r]);
    const float values[kStatisticColumns] = {mass,
                                             fmaxf(entropy, 0.0F),
                                             static_cast<float>(position[r] - origin) - mean,
                                             fmaxf(variance, 0.0F),
                                             of_row(kept[sinks][r]) * share,
                                             own * share,
                                             of_row(kept[previous][r]) * share,
                                             of_row(kept[local][r]) * share,
                                             of_row(kept[recent][r]) * share,
                                             fmaxf(of_row(kept[duplicate][r]) - own, 0.0F) * share,
                                             of_row(kept[induction][r]) * share,
                                             exp2_fast(row.highest) * row.share,
                                             static_cast<float>(argmax[r])};
    if (lane % 4 != 0 || !wanted) return;
#pragma unroll
    for (int n = 0; n < kStatisticColumns; ++n)
      to[n * step] = row.sum == 0 ? (n == kStatisticColumns - 1 ? -1.0F : 0.0F) : values[n];
  }
};

}  // namespace attend::cuda
