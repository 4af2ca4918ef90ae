// Attention backward from sm_80 on, in two kernels that add nothing up in memory, so that bits are the same every time:
// one of dK and dV, whose rows are keys, and one of dQ, whose rows are queries. Both make the scores again.
#pragma once

#include "cuda/attention_plain.cuh"
#include "cuda/backward_items.cuh"

namespace attend::cuda {

// A step of an item of keys: queries of one head.
struct StepPlace {
  int h, i;
};
// All query heads of a KV head, each from its last queries to its first.
__device__ __forceinline__ StepPlace next_step(const BackwardItem& item, const StepPlace& at) {
  return at.i > item.first ? StepPlace{at.h, at.i - 1} : StepPlace{at.h + 1, item.last};
}

// A warp's sums to the rows of a gradient, through shared memory that nobody needs any more, so that lanes write next
// to each other. `row_at(n)`: where row n begins, or less than 0.
template <class T, int kRowTiles, int kSums>
__device__ __forceinline__ void store_sums(const DeviceOperand& to, const float (&sums)[kRowTiles][kSums], char* memory,
                                           float factor, int dims, auto&& row_at) {
  constexpr int kD = 2 * kSums, kRow = kD + 8;  // eight more: lanes write to different banks
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* const mine = reinterpret_cast<float*>(memory) + warp * 16 * kRowTiles * kRow;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < 2 * kRowTiles; ++n)
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      *reinterpret_cast<float2*>(mine + (n * 8 + lane / 4) * kRow + 8 * i + lane % 4 * 2) =
          make_float2(sums[n / 2][4 * i + n % 2 * 2], sums[n / 2][4 * i + n % 2 * 2 + 1]);
  __syncwarp();
#pragma unroll 1
  for (int n = lane; n < 16 * kRowTiles * kD / 2; n += 32) {
    const int column = n % (kD / 2) * 2;
    const std::int64_t row = row_at(n / (kD / 2));
    if (row < 0 || column >= dims) continue;
    const float2 two = *reinterpret_cast<const float2*>(mine + n / (kD / 2) * kRow + column);
    const float x = two.x * factor, y = two.y * factor;
    if (to.pairs) {
      *reinterpret_cast<std::uint32_t*>(static_cast<T*>(const_cast<void*>(to.data)) + row + column) = pack<T>(x, y);
      continue;
    }
    store_float(to, row + column * to.dim_stride, x);
    if (column + 1 < dims) store_float(to, row + (column + 1) * to.dim_stride, y);
  }
}

// Where everything lies in the shared memory of the kernel of dK and dV.
template <class Tr>
struct KeysMemory {
  static constexpr int kRows = Tr::kRows / 2, row_bytes = kRows * Tr::D * 2, column_bytes = Tr::kColumns * Tr::D * 2;
  static constexpr int stage_bytes = 2 * column_bytes + Tr::kColumns * kColumnBytes;
  char* base;

  __device__ __forceinline__ char* k() const { return base; }
  __device__ __forceinline__ char* v() const { return base + row_bytes; }
  __device__ __forceinline__ char* q(int stage) const { return base + 2 * row_bytes + stage * stage_bytes; }
  __device__ __forceinline__ char* dout(int stage) const { return q(stage) + column_bytes; }
  __device__ __forceinline__ float* lse2(int stage) const {
    return reinterpret_cast<float*>(dout(stage) + column_bytes);
  }
  __device__ __forceinline__ float* delta(int stage) const { return lse2(stage) + Tr::kColumns; }
  __device__ __forceinline__ int2* seen(int stage) const {
    return reinterpret_cast<int2*>(delta(stage) + Tr::kColumns);
  }
  // From one warp of a pair to the other, each thread's to the same lane.
  __device__ __forceinline__ float4* weights(int pair) const {
    return reinterpret_cast<float4*>(q(Tr::kStages) + pair * Tr::kWarpRows * Tr::kColumns * 4);
  }
};

// One of two warps that have the same keys. Scores are transposed: rows are keys, columns a step's queries. The first
// makes the weights and has dV, the second their gradients and has dK.
template <class Tr>
struct PlainKeys {
  using T = typename Tr::T;
  static constexpr int kRowTiles = Tr::kRowTiles, kScores = Tr::kColumns / 2;
  const BackwardArgs& a;
  const KeysMemory<Tr>& mem;
  BackwardItem item;
  int lane, pair, second, col0, key0;  // key0: the pair's first
  StepPlace at;                        // of the step
  float s[kRowTiles][kScores], sums[kRowTiles][Tr::D / 2];
  std::uint32_t p[kRowTiles][kScores / 2];

  __device__ __forceinline__ PlainKeys(const BackwardArgs& args, const KeysMemory<Tr>& memory, const BackwardItem& of)
      : a(args),
        mem(memory),
        item(of),
        lane(static_cast<int>(threadIdx.x) % 32),
        pair(static_cast<int>(threadIdx.x) / 64),
        second(static_cast<int>(threadIdx.x) / 32 % 2),
        col0(lane % 4 * 2),
        key0(of.n * KeysMemory<Tr>::kRows + pair * Tr::kWarpRows) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < Tr::D / 2; ++e) sums[m][e] = 0;
  }
  __device__ __forceinline__ int key(int n) const { return key0 + n / 2 * 16 + n % 2 * 8 + lane / 4; }
  __device__ __forceinline__ RowPlace place(int c) const { return {item.b, at.h, at.i * Tr::kColumns + col0 + c}; }

  // S^T = K Q^T, or dP^T = V dO^T
  __device__ __forceinline__ void products(int stage) {
    const std::uint32_t rows = lane_of_rows(shared_address(second ? mem.v() : mem.k())) + pair * Tr::kWarpRows * 128;
    const std::uint32_t columns = lane_of_columns(shared_address(second ? mem.dout(stage) : mem.q(stage)));
    multiply_rows<T, Tr::D, KeysMemory<Tr>::kRows, Tr::kColumns>(s, rows, columns);
  }
  // dV += P^T dO, or dK += dS^T Q
  __device__ __forceinline__ void add(int stage) {
    add_products<T, Tr::kColumns>(sums, p, lane_of_rows(shared_address(second ? mem.q(stage) : mem.dout(stage))));
  }
  // A number for each of the thread's columns.
  __device__ __forceinline__ void load_columns(float (&x)[kScores / 2], const float* from) const {
#pragma unroll
    for (int n = 0; n < kScores / 4; ++n) {
      const float2 two = *reinterpret_cast<const float2*>(from + 8 * n + col0);
      x[2 * n] = two.x, x[2 * n + 1] = two.y;
    }
  }
  __device__ __forceinline__ static int column(int c) { return c / 8 * 2 + c % 2; }

  // What the pair exchanges: f(four numbers, their place).
  __device__ __forceinline__ void exchange(auto&& f) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int x = 0; x < kScores / 4; ++x) f(s[m] + 4 * x, mem.weights(pair)[(m * (kScores / 4) + x) * 32 + lane]);
  }
  // P^T, for dV and, times the soft cap's slope, for the other warp.
  __device__ __forceinline__ void weights(int stage, bool all) {
    const auto key_of = [&](int n, int) { return key(n); };
    bool caps = false;
    if constexpr (Tr::kTerms) {
      const ScoreTerms& terms = a.terms;
      caps = terms.softcap > 0;
      if (caps)
        exchange([&](const float* x, float4& to) {
          const auto slope = [&](int e) { return cap_slope(x[e] * a.scale, terms.softcap); };
          to = make_float4(slope(0), slope(1), slope(2), slope(3));
        });
      const float slope =
          terms.alibi.data ? load_float(terms.alibi, item.b * terms.alibi.batch_stride + at.h * terms.alibi.head_stride)
                           : 0.0F;
      const float* const positions = a.rows.position + static_cast<std::int64_t>(item.b) * a.padded;
      add_terms(
          s, terms, a.mask, a.scale, [&](int, int c) { return place(c); }, key_of,
          [&](int, int c) { return RowSlope{slope, positions[place(c).i]}; });
      if (a.mask.bits.words)
        each_asked(
            s, [&](int n, int c) { return is_shown(a.mask, place(c), key(n)); },
            [](float& x, bool shown) { x = shown ? x : -INFINITY; });
    }
    float lse2[kScores / 2];
    load_columns(lse2, mem.lse2(stage));
    if constexpr (Tr::kTerms) {
      const float* const tops = a.tops + (static_cast<std::int64_t>(item.b) * a.H + at.h) * a.padded;
      each_score(s,
                 [&](float& x, int, int c) { x = exp2_fast(weight_exponent(x, tops[place(c).i], lse2[column(c)])); });
    } else {
      each_score(s, [&](float& x, int, int c) { x = exp2_fast(fmaf(x, a.scale2, -lse2[column(c)])); });
    }
    if (!all)
      each_score(s, [&](float& x, int n, int c) {
        const int2 seen = mem.seen(stage)[col0 + c];
        if (key(n) < seen.x || key(n) >= seen.y) x = 0;
      });
    exchange([&](const float* x, float4& to) {
      const float4 by = caps ? to : make_float4(1, 1, 1, 1);
      to = make_float4(x[0] * by.x, x[1] * by.y, x[2] * by.z, x[3] * by.w);
    });
  }
  __device__ __forceinline__ void drop() {
    if constexpr (Tr::kTerms)
      if (a.terms.dropout_threshold != 0)
        each_asked(
            s, [&](int n, int c) { return is_kept(a.terms, place(c), key(n)); },
            [&](float& x, bool kept) { x = kept ? x * a.terms.dropout_scale : 0.0F; });
  }
  // dS^T = P^T (dP^T - delta)
  __device__ __forceinline__ void score_gradients(int stage) {
    float delta[kScores / 2];
    load_columns(delta, mem.delta(stage));
    each_score(s, [&](float& x, int, int c) { x -= delta[column(c)]; });
    exchange([](float* x, const float4& w) { x[0] *= w.x, x[1] *= w.y, x[2] *= w.z, x[3] *= w.w; });
  }

  __device__ __forceinline__ void step(int stage) {
    const int last = smaller((at.i + 1) * Tr::kColumns, a.M) - 1 - at.i * Tr::kColumns;
    const int2 top = mem.seen(stage)[0], bottom = mem.seen(stage)[last];
    if (key0 >= bottom.y || key0 + Tr::kWarpRows <= top.x) return;  // none of the pair's keys is seen
    products(stage);
    if (second) {
      drop();
      sync_threads(1 + pair, 64);
      score_gradients(stage);
    } else {
      weights(stage, bottom.x <= key0 && top.y >= key0 + Tr::kWarpRows);
      arrive_threads(1 + pair, 64);
      drop();
    }
    pack_rows<T>(p, s);
    add(stage);
  }
  __device__ __forceinline__ void store() const {
    const DeviceOperand& to = second ? a.dk : a.dv;
    store_sums<T>(to, sums, mem.base, second ? a.scale : 1.0F, second ? a.D : a.E, [&](int n) {
      const std::int64_t row = item.b * to.batch_stride + item.hk * to.head_stride + (key0 + n) * to.row_stride;
      return key0 + n < a.N ? row : -1;
    });
  }
};

template <class Tr>
__device__ __forceinline__ void backward_keys(const BackwardArgs& a) {
  extern __shared__ __align__(128) char raw[];
  const KeysMemory<Tr> mem{raw};
  constexpr int kRows = KeysMemory<Tr>::kRows;
  const BackwardItem item = backward_item(a, static_cast<int>(blockIdx.x));
  const RowCopies<Tr::D> keys(a.k_rows, item.b, item.hk, a.N, a.D), values(a.v_rows, item.b, item.hk, a.N, a.E);
  keys.template clear<kRows>(shared_address(mem.k())), values.template clear<kRows>(shared_address(mem.v()));
  keys.template copy<kRows>(shared_address(mem.k()), item.n * kRows);
  values.template copy<kRows>(shared_address(mem.v()), item.n * kRows);
  const int count = larger(0, item.last - item.first + 1) * a.G;
  StepPlace ahead{item.hk * a.G, item.last};
  RowCopies<Tr::D> queries(a.q_rows, item.b, ahead.h, a.M, a.D), douts(a.dout_rows, item.b, ahead.h, a.M, a.E);
#pragma unroll
  for (int stage = 0; stage < Tr::kStages; ++stage) {
    queries.template clear<Tr::kColumns>(shared_address(mem.q(stage)));
    douts.template clear<Tr::kColumns>(shared_address(mem.dout(stage)));
  }
  const auto copy_step = [&](int x) {
    const int stage = x % Tr::kStages, i = ahead.i * Tr::kColumns, n = static_cast<int>(threadIdx.x);
    queries.template copy<Tr::kColumns>(shared_address(mem.q(stage)), i);
    douts.template copy<Tr::kColumns>(shared_address(mem.dout(stage)), i);
    const std::int64_t row = (static_cast<std::int64_t>(item.b) * a.H + ahead.h) * a.padded + i;
    const int2* const seen = a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded + i;
    constexpr int kFours = Tr::kColumns / 4;
    const void* const numbers = n < kFours       ? static_cast<const void*>(a.rows.lse2 + row + 4 * n)
                                : n < 2 * kFours ? static_cast<const void*>(a.rows.delta + row + 4 * (n - kFours))
                                                 : seen + 2 * (n - 2 * kFours);
    if (n < 4 * kFours) copy_sixteen(shared_address(mem.lse2(stage)) + 16 * n, numbers);
    const StepPlace before = ahead;
    ahead = next_step(item, before);
    queries.from += (ahead.h - before.h) * 2 * a.q_rows.head_stride;
    douts.from += (ahead.h - before.h) * 2 * a.dout_rows.head_stride;
  };
  PlainKeys<Tr> group(a, mem, item);
  group.at = ahead;
  walk_steps<Tr>(count, copy_step, [&](int x) {
    group.step(x % Tr::kStages);
    group.at = next_step(item, group.at);
  });
  group.store();
}

// A warp's rows of queries.
template <class Tr>
struct PlainQueries {
  using T = typename Tr::T;
  static constexpr int kRowTiles = Tr::kRowTiles, kTwo = 2 * kRowTiles, kScores = Tr::kColumns / 2;
  const BackwardArgs& a;
  PlainItem item;
  int lane, col0, first;  // first: of the warp's queries
  float s[kRowTiles][kScores], dp[kRowTiles][kScores], dq[kRowTiles][Tr::D / 2];
  std::uint32_t p[kRowTiles][kScores / 2];
  float slope[Tr::kTerms ? kRowTiles : 1][kScores];  // of the soft cap
  float lse2[kTwo], delta[kTwo], top[Tr::kTerms ? kTwo : 1];
  int2 seen[kTwo], some, whole;  // of each row; keys that some and that all of the warp's rows see

  __device__ __forceinline__ PlainQueries(const BackwardArgs& args, const PlainItem& of)
      : a(args),
        item(of),
        lane(static_cast<int>(threadIdx.x) % 32),
        col0(lane % 4 * 2),
        first(of.m * Tr::kRows + static_cast<int>(threadIdx.x) / 32 * Tr::kWarpRows) {
    const int2* const of_batch = a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded;
    const std::int64_t head = (static_cast<std::int64_t>(item.b) * a.H + item.h) * a.padded;
#pragma unroll
    for (int n = 0; n < kTwo; ++n) {
      const int i = query(n);
      const bool there = i < a.padded;
      lse2[n] = there ? a.rows.lse2[head + i] : INFINITY;
      if constexpr (Tr::kTerms) top[n] = there ? a.tops[head + i] : 0.0F;
      delta[n] = there ? a.rows.delta[head + i] : 0.0F;
      seen[n] = there ? of_batch[i] : make_int2(0, 0);
    }
    some = whole = make_int2(0, 0);
    if (first < a.M) {
      const int2 top = of_batch[first], bottom = of_batch[smaller(first + Tr::kWarpRows, a.M) - 1];
      some = make_int2(top.x, bottom.y), whole = make_int2(bottom.x, top.y);
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < Tr::D / 2; ++e) dq[m][e] = 0;
  }
  __device__ __forceinline__ int query(int n) const { return first + n / 2 * 16 + n % 2 * 8 + lane / 4; }
  __device__ __forceinline__ RowPlace place(int n) const { return {item.b, item.h, query(n)}; }

  // P from S, in place.
  __device__ __forceinline__ void weights(int j) {
    const int col = j * Tr::kColumns + col0;
    if constexpr (Tr::kTerms) {
      const ScoreTerms& terms = a.terms;
      if (terms.softcap > 0)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int e = 0; e < kScores; ++e) slope[m][e] = cap_slope(s[m][e] * a.scale, terms.softcap);
      const float steep =
          terms.alibi.data
              ? load_float(terms.alibi, item.b * terms.alibi.batch_stride + item.h * terms.alibi.head_stride)
              : 0.0F;
      const float* const positions = a.rows.position + static_cast<std::int64_t>(item.b) * a.padded;
      add_terms(
          s, terms, a.mask, a.scale, [&](int n, int) { return place(n); }, [&](int, int c) { return col + c; },
          [&](int n, int) { return RowSlope{steep, positions[smaller(query(n), a.M - 1)]}; });
      if (a.mask.bits.words)
        each_asked(
            s, [&](int n, int c) { return is_shown(a.mask, place(n), col + c); },
            [](float& x, bool shown) { x = shown ? x : -INFINITY; });
    }
    each_score(s, [&](float& x, int n, int) {
      if constexpr (Tr::kTerms)
        x = exp2_fast(weight_exponent(x, top[n], lse2[n]));
      else
        x = exp2_fast(fmaf(x, a.scale2, -lse2[n]));
    });
    if (j * Tr::kColumns < whole.x || (j + 1) * Tr::kColumns > whole.y)
      each_score(s, [&](float& x, int n, int c) {
        if (col + c < seen[n].x || col + c >= seen[n].y) x = 0;
      });
  }
  // dS = P (dP - delta)
  __device__ __forceinline__ void score_gradients(int j) {
    const int col = j * Tr::kColumns + col0;
    if constexpr (Tr::kTerms)
      if (a.terms.dropout_threshold != 0)
        each_asked(
            dp, [&](int n, int c) { return is_kept(a.terms, place(n), col + c); },
            [&](float& x, bool kept) { x = kept ? x * a.terms.dropout_scale : 0.0F; });
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int e = 0; e < kScores; ++e) s[m][e] *= dp[m][e] - delta[2 * m + (e >> 1 & 1)];
    if constexpr (Tr::kTerms) {
      if (a.dbias.data)
        each_score(s, [&](float& x, int n, int c) {
          if (query(n) < a.M && col + c < a.N)
            static_cast<float*>(
                const_cast<void*>(a.dbias.data))[item.b * a.dbias.batch_stride + item.h * a.dbias.head_stride +
                                                 query(n) * a.dbias.row_stride + (col + c) * a.dbias.dim_stride] = x;
        });
      if (a.terms.softcap > 0)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int e = 0; e < kScores; ++e) s[m][e] *= slope[m][e];
    }
    pack_rows<T>(p, s);
  }
  __device__ __forceinline__ bool sees_some(int j) const {
    return j * Tr::kColumns < some.y && (j + 1) * Tr::kColumns > some.x;
  }
  __device__ __forceinline__ void store(char* memory) const {
    store_sums<T>(a.dq, dq, memory, a.scale, a.D, [&](int n) {
      const std::int64_t row = item.b * a.dq.batch_stride + item.h * a.dq.head_stride + (first + n) * a.dq.row_stride;
      return first + n < a.M ? row : -1;
    });
  }
};

template <class Tr>
__device__ __forceinline__ void backward_queries_plain(const BackwardArgs& a) {
  using T = typename Tr::T;
  extern __shared__ __align__(128) char raw[];
  constexpr int row_bytes = Tr::kRows * Tr::D * 2, column_bytes = Tr::kColumns * Tr::D * 2;
  const std::uint32_t q = shared_address(raw), dout = q + row_bytes, columns = dout + row_bytes;
  const int tiles = (a.M + Tr::kRows - 1) / Tr::kRows;
  const PlainItem item = plain_item(static_cast<int>(blockIdx.x), tiles, a.B * a.H, a.H, a.query_section);
  const RowCopies<Tr::D> queries(a.q_rows, item.b, item.h, a.M, a.D), douts(a.dout_rows, item.b, item.h, a.M, a.E);
  queries.template clear<Tr::kRows>(q), douts.template clear<Tr::kRows>(dout);
  queries.template copy<Tr::kRows>(q, item.m * Tr::kRows), douts.template copy<Tr::kRows>(dout, item.m * Tr::kRows);
  const int2* const of_batch = a.rows.seen + static_cast<std::int64_t>(item.b) * a.padded;
  const int lo = larger(0, of_batch[item.m * Tr::kRows].x);
  const int hi = of_batch[smaller((item.m + 1) * Tr::kRows, a.M) - 1].y;
  const int last = (hi + Tr::kColumns - 1) / Tr::kColumns - 1, count = larger(0, last + 1 - lo / Tr::kColumns);
  const RowCopies<Tr::D> keys(a.k_rows, item.b, item.h / a.G, a.N, a.D);
  const RowCopies<Tr::D> values(a.v_rows, item.b, item.h / a.G, a.N, a.E);
  const auto place = [&](int x) { return columns + x % Tr::kStages * 2 * column_bytes; };
#pragma unroll
  for (int stage = 0; stage < Tr::kStages; ++stage) {
    keys.template clear<Tr::kColumns>(place(stage));
    values.template clear<Tr::kColumns>(place(stage) + column_bytes);
  }
  const auto copy_step = [&](int x) {
    keys.template copy<Tr::kColumns>(place(x), (last - x) * Tr::kColumns);
    values.template copy<Tr::kColumns>(place(x) + column_bytes, (last - x) * Tr::kColumns);
  };
  PlainQueries<Tr> group(a, item);
  const int my_rows = static_cast<int>(threadIdx.x) / 32 * Tr::kWarpRows * 128;
  walk_steps<Tr>(count, copy_step, [&](int x) {
    if (!group.sees_some(last - x)) return;
    multiply_rows<T, Tr::D, Tr::kRows, Tr::kColumns>(group.s, lane_of_rows(q) + my_rows, lane_of_columns(place(x)));
    group.weights(last - x);
    multiply_rows<T, Tr::D, Tr::kRows, Tr::kColumns>(group.dp, lane_of_rows(dout) + my_rows,
                                                     lane_of_columns(place(x) + column_bytes));
    group.score_gradients(last - x);
    add_products<T, Tr::kColumns>(group.dq, group.p, lane_of_rows(place(x)));
  });
  group.store(raw);
}

}  // namespace attend::cuda

#define ATTEND_PLAIN_BACKWARD(NAME, FUNCTION, ...)                                                \
  extern "C" __global__ void __launch_bounds__(attend::cuda::kPlainThreads,                       \
                                               (attend::cuda::PlainTraits<__VA_ARGS__>::kBlocks)) \
      NAME(const __grid_constant__ attend::cuda::BackwardArgs a) {                                \
    attend::cuda::FUNCTION<attend::cuda::PlainTraits<__VA_ARGS__>>(a);                            \
  }
#define ATTEND_PLAIN_BACKWARD_PAIR(NAME, KIND, T, D, TERMS)                                                           \
  ATTEND_PLAIN_BACKWARD(plain_keys##KIND##_##D##_##NAME, backward_keys, attend::cuda::T, attend::cuda::kPlainKeys##D, \
                        TERMS)                                                                                        \
  ATTEND_PLAIN_BACKWARD(plain_queries##KIND##_##D##_##NAME, backward_queries_plain, attend::cuda::T,                  \
                        attend::cuda::kPlainQueries##D, TERMS)
#define ATTEND_PLAIN_BACKWARD_KERNELS(NAME, T, D) \
  ATTEND_PLAIN_BACKWARD_PAIR(NAME, , T, D, false) \
  ATTEND_PLAIN_BACKWARD_PAIR(NAME, _terms, T, D, true)
