// Attention for few rows on Hopper: the keys are read once, and that is all the time it may take. An item is a part of
// the keys of one KV head; every warp copies tiles of 16 keys (32 of 8-bit ones) for itself, and asks for those of the
// next item before it is done with this one. Scores are made transposed (16 keys x 8 rows), so that the rows fill the
// narrow side of a product. At the end of an item its warps' results are joined in shared memory. Where items and tiles
// lie is said by a cursor: that of one length for all (decode_cursor.cuh), or that of a cache (cache_cursor.cuh).
#pragma once

#include "cuda/decode_cursor.cuh"
#include "cuda/narrow_tiles.cuh"

namespace attend::cuda {

// Keys and values as `Stored`, which are multiplied as T: the same type, or 8 bits, which are multiplied as f16.
template <class Element, class StoredAs, DecodeShape S, class TheCursor>
struct DecodeTraits {
  using T = Element;
  using Stored = StoredAs;
  using Cursor = TheCursor;
  using Args = typename Cursor::Args;
  static constexpr bool kCached = Cursor::kCached, kNarrow = !std::is_same_v<T, Stored>;
  static constexpr int D = S.D, kWarps = S.warps, kStages = S.stages, kThreads = 32 * kWarps;
  static constexpr int kTile = S.keys, kHalves = kTile / kDecodeKeys, kBuffers = sums_buffers(S);
  static constexpr int chunk_bytes = kTile * kRowBytes, chunk_numbers = kRowBytes / S.bytes;
  static constexpr int chunks = D < chunk_numbers ? 1 : D / chunk_numbers;
  static constexpr int key_bytes = chunks * chunk_bytes;  // of a tile; as many of values behind them
  static constexpr int kRowFloats = row_floats(S);
  static constexpr bool kFolds = folds(S);
  static constexpr int shared_bytes = attend::cuda::shared_bytes(S);
  static_assert(shared_bytes <= 227 * 1024 && key_bytes == side_bytes(S) && S.bytes == sizeof(Stored));
};

template <class Tr>
struct DecodeMemory {
  char* ring;
  float* sums;   // [buffer][warp][row][kRowFloats]
  float2* tops;  // [buffer][warp][row]: the logit or exponent of 2 that the weights are against, and their sum
  Barrier* full;
  Barrier* left;  // [buffer]: all warps have left their sums there, where there are two
  float* scales;  // [warp][stage][2][key]: of narrow keys and values
  static constexpr int kRows = Tr::kWarps * kDecodeRows;  // of a buffer

  __device__ __forceinline__ explicit DecodeMemory(char* base)
      : ring(base),
        sums(reinterpret_cast<float*>(base + Tr::kWarps * Tr::kStages * 2 * Tr::key_bytes)),
        tops(reinterpret_cast<float2*>(sums + Tr::kBuffers * kRows * Tr::kRowFloats)),
        full(reinterpret_cast<Barrier*>(tops + Tr::kBuffers * kRows)),
        left(full + Tr::kWarps * Tr::kStages),
        scales(reinterpret_cast<float*>(left + 2)) {}
};

template <class Tr>
struct DecodeWarp {
  using T = typename Tr::T;
  using Args = typename Tr::Args;
  using Cursor = typename Tr::Cursor;
  static constexpr int kAtOnce =
      Tr::D / 16 < 8 ? Tr::D / 16 : 8;  // steps of 16 dims whose operands are loaded together
  const Args& a;
  const DecodeMemory<Tr>& mem;
  const std::uint64_t hint;
  int warp, lane;
  std::uint32_t q[Tr::D / 8];
  // Of two rows, 2 * (lane % 4) and the next: keys lane / 4, 8 on and so forth; dims likewise.
  float s[4 * Tr::kHalves], o[Tr::D / 4];
  float top[2], sum[2];
  Interval seen[2], whole;  // keys that the two rows see, and that every row does
  Cursor ahead;             // the next tile to be asked for
  float fold_top, total;    // of a head of which the block has all parts, as is `fold`
  float4 fold;
  float q_scale[Tr::kNarrow ? 2 : 1];                            // of the two rows: what their queries were divided by
  float unit[Tr::kNarrow ? 2 : 1];                               // and the power of 2 that their results are times
  float slope[Tr::kCached ? 2 : 1], place[Tr::kCached ? 2 : 1];  // of the two rows: ALiBi's, and where they stand

  __device__ __forceinline__ DecodeWarp(const Args& args, const DecodeMemory<Tr>& memory)
      : a(args),
        mem(memory),
        hint(args.once ? evict_first() : evict_normal()),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        ahead(args, static_cast<int>(blockIdx.x)) {}

  // Asks for the warp's next tile.
  __device__ __forceinline__ void ask(int stage) {
    if (ahead.item >= ahead.end) return;
    const TilePlace at = ahead.place(a, Tr::kHalves == 1 ? 0 : lane / kDecodeKeys);
    bool copies = lane == 0;
    if constexpr (Tr::kHalves > 1) copies = copies || (lane == kDecodeKeys && a.half_boxes);
    if (copies) {
      Barrier* const full = mem.full + warp * Tr::kStages + stage;
      char* const to = mem.ring + (warp * Tr::kStages + stage) * 2 * Tr::key_bytes + lane * kRowBytes;
      if (lane == 0) full->expect(2 * Tr::key_bytes);
      for (int c = 0; c < Tr::chunks; ++c) {
        load_box_with(hint, to + c * Tr::chunk_bytes, &a.k, full, c * Tr::chunk_numbers, at.key, ahead.hk, at.page);
        load_box_with(hint, to + Tr::key_bytes + c * Tr::chunk_bytes, &a.v, full, c * Tr::chunk_numbers, at.key,
                      ahead.hk, at.page);
      }
    }
    if constexpr (Tr::kNarrow) ask_scales(stage, at);
    ahead.tile += Tr::kWarps;
    ahead.settle(a, warp);
  }
  // Of a key and its value for each lane.
  __device__ __forceinline__ void ask_scales(int stage, const TilePlace& at) {
    const int slot = warp * Tr::kStages + stage, key = at.key + lane % kDecodeKeys;
    // A row past the end of the page is past that of the sequence too.
    const bool there = at.page >= 0 && key < a.page_tokens;
    const auto ask_one = [&](const DeviceOperand& from, float* to) {
      const std::int64_t place = at.page * from.batch_stride + ahead.hk * from.head_stride + key * from.row_stride;
      if (from.data) load_float_later(to, static_cast<const float*>(from.data) + (there ? place : 0), there);
    };
    ask_one(a.k_scales, scales(slot)), ask_one(a.v_scales, scales(slot) + Tr::kTile);
    mem.full[slot].arrive_when_loaded();
  }
  // The lane's, of the keys of a tile.
  __device__ __forceinline__ float* scales(int slot) const { return mem.scales + slot * 2 * Tr::kTile + lane; }

  // The queries of a head as the second operand: row lane / 4, of every 16 dims four.
  __device__ __forceinline__ void load_queries(const Cursor& of) {
    const int row = of.first_row() + lane / 4, i = query_of(a, row), h = of.hk * a.G + row - i * a.G;
    const bool there = i < a.M;
    const auto* const from = static_cast<const std::uint16_t*>(a.q.data) +
                             (there ? of.b * a.q.batch_stride + h * a.q.head_stride + i * a.q.row_stride : 0);
#pragma unroll
    for (int n = 0; n < Tr::D / 8; ++n) {
      // Of narrow keys a lane's four dims lie together.
      const int d = Tr::kNarrow ? n / 2 * 16 + lane % 4 * 4 + n % 2 * 2 : 8 * n + lane % 4 * 2;
      q[n] = 0;
      if (there && d + 1 < a.D)
        q[n] = *reinterpret_cast<const std::uint32_t*>(from + d);
      else if (there && d < a.D)
        q[n] = from[d];
    }
  }
  // As f16, which has fewer exponents: the largest of a row comes to lie between 0.5 and 1, what is 2^-24 of it is
  // lost.
  __device__ __forceinline__ void scale_queries() {
    const auto low = [&](std::uint32_t pair) { return a.fine ? float_of_half(pair) : low_float(pair); };
    const auto high = [&](std::uint32_t pair) { return a.fine ? float_of_half(pair >> 16) : high_float(pair); };
    float largest = 0;
#pragma unroll
    for (int n = 0; n < Tr::D / 8; ++n) largest = fmaxf(largest, fmaxf(fabsf(low(q[n])), fabsf(high(q[n]))));
    for (int n = 1; n < 4; n *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, n));
    const int exponent = smaller(static_cast<int>(__float_as_uint(largest) >> 23) - 126, 126);
    const float inverse = __uint_as_float(static_cast<std::uint32_t>(127 - exponent) << 23);
#pragma unroll
    for (int n = 0; n < Tr::D / 8; ++n) q[n] = pack<Half>(low(q[n]) * inverse, high(q[n]) * inverse);
#pragma unroll
    for (int n = 0; n < Tr::D / 8; n += 2) order_queries<typename Tr::Stored>(q[n], q[n + 1]);
    const float scale = __uint_as_float(static_cast<std::uint32_t>(127 + exponent) << 23);
#pragma unroll
    for (int r = 0; r < 2; ++r) q_scale[r] = __shfl_sync(~0U, scale, (lane % 4 * 2 + r) * 4);
  }
  // What the parts of a head share.
  __device__ __forceinline__ void begin_head(const Cursor& of) {
    load_queries(of);
    if constexpr (Tr::kNarrow) scale_queries();
    whole = of.whole(a);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of.first_row() + lane % 4 * 2 + r, i = query_of(a, row);
      seen[r] = i < a.M ? of.seen(a, i) : Interval{0, 0};
      if constexpr (Tr::kCached) {
        slope[r] = 0, place[r] = static_cast<float>(of.length - a.M + i);
        if (a.slopes.data && i < a.M)
          slope[r] =
              load_float(a.slopes, of.b * a.slopes.batch_stride + (of.hk * a.G + row - i * a.G) * a.slopes.head_stride);
      }
    }
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int n = 0; n < Tr::D / 4; ++n) o[n] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = -INFINITY, sum[r] = 0;
      if constexpr (Tr::kNarrow) unit[r] = kLargestUnit;
    }
  }

  // S^T = K Q^T, in two sums: half the time from one product to the next.
  __device__ __forceinline__ void scores(std::uint32_t keys) {
    if constexpr (Tr::kNarrow) {
      narrow_scores<typename Tr::Stored, Tr::D, Tr::chunk_bytes>(s, keys, q, lane);
    } else {
      float sums[2][4] = {};
      multiply_wide(sums, keys);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[e] = sums[0][e] + sums[1][e];
    }
  }
  __device__ __forceinline__ std::uint32_t key_address(std::uint32_t keys, int n) const {
    const int row = lane % 16;
    return keys + n / 4 * Tr::chunk_bytes + row * kRowBytes + ((n % 4 * 2 + lane / 16) ^ (row & 7)) * 16;
  }
  __device__ __forceinline__ void multiply_wide(float (&sums)[2][4], std::uint32_t keys) {
#pragma unroll
    for (int first = 0; first < Tr::D / 16; first += kAtOnce) {
      std::uint32_t k[kAtOnce][4];
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n) load_matrices(k[n - first], key_address(keys, n));
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n) multiply<T>(sums[n % 2], k[n - first], q[2 * n], q[2 * n + 1]);
    }
  }
  // What makes a score of row r an exponent of 2.
  __device__ __forceinline__ float scale2(int r) const {
    if constexpr (Tr::kNarrow) return has_terms() ? a.scale2 : a.scale2 * q_scale[r];
    return a.scale2;
  }
  __device__ __forceinline__ bool has_terms() const {
    if constexpr (Tr::kCached) return a.terms != 0;
    return false;
  }
  // Scores of a cache's keys to what the softmax takes.
  __device__ __forceinline__ void finish_scores(int tile, int slot) {
    if constexpr (Tr::kNarrow) {
#pragma unroll
      for (int e = 0; e < 4 * Tr::kHalves; ++e) s[e] *= scales(slot)[lane / 4 - lane + e / 2 * 8];
    }
    if (!has_terms()) return;
#pragma unroll
    for (int e = 0; e < 4 * Tr::kHalves; ++e) {
      if constexpr (Tr::kNarrow) s[e] *= q_scale[e % 2];
      s[e] *= a.scale;
      if (a.softcap > 0) s[e] = capped(s[e], a.softcap);
      const int key = tile * Tr::kTile + lane / 4 + e / 2 * 8;
      s[e] = fmaf(-slope[e % 2], fabsf(place[e % 2] - static_cast<float>(key)), s[e]);
    }
  }
  __device__ __forceinline__ void hide(int tile) {
#pragma unroll
    for (int e = 0; e < 4 * Tr::kHalves; ++e) {
      const int key = tile * Tr::kTile + lane / 4 + e / 2 * 8;
      if (key < seen[e % 2].lo || key >= seen[e % 2].hi) s[e] = -INFINITY;
    }
  }
  // The largest of the lane's numbers of row r, and of all lanes' that have this row.
  __device__ __forceinline__ static float largest(const float (&x)[4 * Tr::kHalves], int r) {
    float most = fmaxf(x[r], x[r + 2]);
    if constexpr (Tr::kHalves > 1) most = fmaxf(most, fmaxf(x[r + 4], x[r + 6]));
    return most;
  }
  __device__ __forceinline__ static float largest_of_row(float most) {
    for (int n = 4; n < 32; n *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, n));
    return most;
  }
  // The largest score so far to what the weights are against, of rows that have one far above it: other rows keep
  // theirs, whatever is beside them. Results so far follow.
  __device__ __forceinline__ void raise() {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(largest_of_row(largest(s, r)), top[r]);
      if (!is_far(most, r)) most = top[r];
      factor[r] = most == top[r] ? 1.0F : exp2_fast((top[r] - most) * scale2(r));
      top[r] = most, sum[r] *= factor[r];
      if constexpr (Tr::kNarrow) factor[r] = raise_unit(r, factor[r]);
    }
#pragma unroll
    for (int n = 0; n < Tr::D / 4; ++n) o[n] *= factor[n % 2];
  }
  __device__ __forceinline__ bool is_far(float score, int r) const { return (score - top[r]) * scale2(r) > 8.0F; }
  // Scores to weights. They stay against the same score until one is 2^8 above it: the sums hold it.
  __device__ __forceinline__ void weights() {
    if (__any_sync(~0U, is_far(largest(s, 0), 0) || is_far(largest(s, 1), 1))) raise();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = scale2(r), base = top[r] == -INFINITY ? 0.0F : has_terms() ? top[r] : top[r] * by;
#pragma unroll
      for (int e = r; e < 4 * Tr::kHalves; e += 2)  // logits may be large: their difference first
        s[e] = exp2_fast(has_terms() ? (s[e] - base) * kLog2E : fmaf(s[e], by, -base));
      sum[r] += s[r] + s[r + 2];
      if constexpr (Tr::kHalves > 1) sum[r] += s[r + 4] + s[r + 6];
    }
  }
  __device__ __forceinline__ void load_values(std::uint32_t (&v)[kAtOnce][4], std::uint32_t from, int first) const {
    const int key = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int n = first; n < first + kAtOnce; ++n)
      load_transposed(v[n - first],
                      from + n / 4 * Tr::chunk_bytes + key * 128 + ((n % 4 * 2 + lane / 8 % 2) ^ (key & 7)) * 16);
  }
  // O^T += V^T P^T; the first of the values were loaded before.
  __device__ __forceinline__ void values(std::uint32_t (&v)[kAtOnce][4], std::uint32_t from) {
    const std::uint32_t low = transposed(pack<T>(s[0], s[1])), high = transposed(pack<T>(s[2], s[3]));
#pragma unroll
    for (int first = 0; first < Tr::D / 16; first += kAtOnce) {
      if (first > 0) load_values(v, from, first);
#pragma unroll
      for (int n = first; n < first + kAtOnce; ++n)
        multiply<T>(*reinterpret_cast<float(*)[4]>(o + 4 * n), v[n - first], low, high);
    }
  }
  // The same of 8-bit values. Their scales go to the weights, which are f16 then: a power of two for each row keeps the
  // largest of them below 2^14. What is 2^-30 of it is lost.
  static constexpr float kLargestUnit = 0x1p126F;
  __device__ __forceinline__ void narrow_values(std::uint32_t from, int slot) {
    float p[8];
#pragma unroll
    for (int e = 0; e < 8; ++e)  // a hidden key has none, whatever its scale
      p[e] = s[e] == 0 ? 0.0F : s[e] * scales(slot)[Tr::kTile + lane / 4 - lane + e / 2 * 8];
    float size[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) size[e] = fabsf(p[e]);
    const bool above = largest(size, 0) * unit[0] > 0x1p14F || largest(size, 1) * unit[1] > 0x1p14F;
    if (__any_sync(~0U, above)) choose_units(size);
#pragma unroll
    for (int e = 0; e < 8; ++e) p[e] *= unit[e % 2];
    add_narrow_values<typename Tr::Stored, Tr::D, Tr::chunk_bytes>(o, from, p, lane);
  }
  __device__ __forceinline__ float inverse_unit(int r) const {
    return __uint_as_float((254U << 23) - __float_as_uint(unit[r]));
  }
  // The results so far fall by a factor: the power of two rises against it, so that it follows the largest of what they
  // are made of. Returns what they are multiplied by then.
  __device__ __forceinline__ float raise_unit(int r, float factor) {
    if (factor == 1.0F) return factor;
    const std::uint32_t exponent = 253U - (__float_as_uint(factor) >> 23);
    const float raised = fminf(unit[r] * __uint_as_float(exponent << 23), kLargestUnit), inverse = inverse_unit(r);
    unit[r] = factor == 0 ? kLargestUnit : raised;
    return factor == 0 ? 0.0F : factor * (raised * inverse);
  }
  __device__ __forceinline__ void choose_units(const float (&size)[8]) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = largest_of_row(largest(size, r));
      factor[r] = 1.0F;
      if (!(most * unit[r] > 0x1p14F)) continue;
      const int exponent = smaller(253, 127 + 127 + 6 - static_cast<int>(__float_as_uint(most) >> 23));
      const float chosen = __uint_as_float(static_cast<std::uint32_t>(exponent) << 23);
      factor[r] = chosen * inverse_unit(r), unit[r] = chosen;
    }
#pragma unroll
    for (int n = 0; n < Tr::D / 4; ++n) o[n] *= factor[n % 2];
  }
  // The last tile of a sequence: what its page holds behind the end is anybody's, and must not meet a weight of 0.
  __device__ __forceinline__ void clear_values(char* values, int rows) {
    for (int n = rows * 8 + lane; n < Tr::kTile * 8; n += 32)
      for (int c = 0; c < Tr::chunks; ++c)
        *reinterpret_cast<uint4*>(values + c * Tr::chunk_bytes + n * 16) = make_uint4(0, 0, 0, 0);
    fence_async();  // before the copies that will come here
    __syncwarp();
  }

  // The warp's next tile, and what it asks for in its place.
  __device__ __forceinline__ void take_tile(const Cursor& of, int tile, int step) {
    const int stage = step % Tr::kStages, slot = warp * Tr::kStages + stage;
    const std::uint32_t keys = shared_address(mem.ring) + slot * 2 * Tr::key_bytes;
    mem.full[slot].wait(step / Tr::kStages & 1);
    __syncwarp();
    if constexpr (Tr::kCached)
      if ((tile + 1) * Tr::kTile > of.length)
        clear_values(mem.ring + slot * 2 * Tr::key_bytes + Tr::key_bytes, of.length - tile * Tr::kTile);
    std::uint32_t v[kAtOnce][4];
    scores(keys);
    if constexpr (!Tr::kNarrow) load_values(v, keys + Tr::key_bytes, 0);
    if constexpr (Tr::kCached) finish_scores(tile, slot);
    // Tiles that every row sees whole need no comparison.
    if (tile * Tr::kTile < whole.lo || (tile + 1) * Tr::kTile > whole.hi) hide(tile);
    weights();
    if constexpr (Tr::kNarrow)
      narrow_values(keys + Tr::key_bytes, slot);
    else
      values(v, keys + Tr::key_bytes);
    __syncwarp();
    ask(stage);
  }

  // What the warp has of an item, for the others.
  __device__ __forceinline__ void leave(const Cursor& of, int buffer) {
    float* const to = mem.sums + (buffer * mem.kRows + warp * kDecodeRows) * Tr::kRowFloats;
    float2* const tops = mem.tops + buffer * mem.kRows + warp * kDecodeRows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int n = 4; n < 32; n *= 2) sum[r] += __shfl_xor_sync(~0U, sum[r], n);
      const int row = lane % 4 * 2 + r;
      if (lane < 4) tops[row] = make_float2(has_terms() ? top[r] : top[r] * scale2(r), sum[r]);
      if (row >= of.rows(a)) continue;
      if constexpr (Tr::kNarrow) {
        const float inverse = inverse_unit(r);
#pragma unroll
        for (int n = 0; n < Tr::D / 16; ++n)
          *reinterpret_cast<float2*>(to + row * Tr::kRowFloats + n * 16 + lane / 4 * 2) =
              make_float2(o[4 * n + r] * inverse, o[4 * n + 2 + r] * inverse);
      } else {
#pragma unroll
        for (int n = 0; n < Tr::D / 8; ++n)
          to[row * Tr::kRowFloats + 8 * n + lane / 4] = o[4 * (n / 2) + n % 2 * 2 + r];
      }
    }
  }
  // Four columns of a row for each thread, of all warps.
  __device__ __forceinline__ void join(const Cursor& of, int buffer) {
    const KeyParts& parts = a.parts;
    const int part = of.part;
    const bool mine = Tr::kFolds && of.has_whole_head(a);
    if constexpr (Tr::kCached)
      if (part == 0 && threadIdx.x == 0 && a.lengths.folded) a.lengths.folded[of.b * of.heads(a) + of.head] = mine;
    for (int n = static_cast<int>(threadIdx.x); n < of.rows(a) * (Tr::D / 4); n += Tr::kThreads) {
      const int row = n / (Tr::D / 4), column = n % (Tr::D / 4) * 4, all = of.first_row() + row;
      const int i = query_of(a, all);
      const int h = of.hk * a.G + all - i * a.G;
      float2 tops[Tr::kWarps];
      float top2 = -INFINITY;
#pragma unroll
      for (int m = 0; m < Tr::kWarps; ++m) {
        tops[m] = mem.tops[buffer * mem.kRows + m * kDecodeRows + row];
        top2 = fmaxf(top2, tops[m].x);
      }
      const float base = top2 == -INFINITY ? 0.0F : top2;
      float weights_sum = 0;
      float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int m = 0; m < Tr::kWarps; ++m) {
        const float4 y = *reinterpret_cast<const float4*>(
            mem.sums + (buffer * mem.kRows + m * kDecodeRows + row) * Tr::kRowFloats + column);
        const float weight = exp2_fast(has_terms() ? (tops[m].x - base) * kLog2E : tops[m].x - base);
        weights_sum = fmaf(weight, tops[m].y, weights_sum);
        x.x = fmaf(weight, y.x, x.x), x.y = fmaf(weight, y.y, x.y);
        x.z = fmaf(weight, y.z, x.z), x.w = fmaf(weight, y.w, x.w);
      }
      const float inverse = weights_sum == 0 ? 0.0F : __fdividef(1.0F, weights_sum);
      x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
      const float lse = fold_lse(has_terms() ? base : base * kLn2, weights_sum);
      const float rest = has_terms() ? lse_rest(base, weights_sum, lse) : 0.0F;
      if (mine) {
        fold_part(x, lse, rest, h, part == 0);
        if (part == of.part_count(a) - 1) store_folded(of.b, h, i, column);
        continue;
      }
      const std::int64_t at = ((static_cast<std::int64_t>(part) * a.B + of.b) * parts.H + h) * a.M + i;
      // To be read again soon: writing them to memory would cost the reads next to them dearly.
      store_with(evict_last(), reinterpret_cast<float4*>(parts.out + at * Tr::D + column), x);
      if (column == 0) store_with(evict_last(), parts.lse + at, lse);
      if (column == 0 && has_terms()) store_with(evict_last(), parts.rest() + at, rest);
    }
  }
  // What the next kernel does with parts of different blocks, to the bit.
  __device__ __forceinline__ void fold_part(const float4& x, float lse, float rest, int h, bool first) {
    if (first) {
      fold_top = a.parts.sinks.data ? load_float(a.parts.sinks, h * a.parts.sinks.head_stride) : -INFINITY;
      total = fold_total(fold_top), fold = make_float4(0, 0, 0, 0);
    }
    const FoldStep step = Tr::kCached ? fold_step(fold_top, lse, rest) : fold_step(fold_top, lse);
    fold_top = fmaxf(fold_top, lse), total = folded(total, 1.0F, step);
    fold.x = folded(fold.x, x.x, step), fold.y = folded(fold.y, x.y, step);
    fold.z = folded(fold.z, x.z, step), fold.w = folded(fold.w, x.w, step);
  }
  __device__ __forceinline__ void store_folded(int b, int h, int i, int column) const {
    const KeyParts& parts = a.parts;
    const float inverse = fold_inverse(total), x[4] = {fold.x, fold.y, fold.z, fold.w};
    const std::int64_t to = b * parts.joined.batch_stride + h * parts.joined.head_stride + i * parts.joined.row_stride;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < parts.E) store_float(parts.joined, to + (column + e) * parts.joined.dim_stride, x[e] * inverse);
    if (column == 0 && parts.joined_lse)
      parts.joined_lse[b * parts.lse_batch_stride + h * parts.lse_head_stride + i * parts.lse_row_stride] =
          fold_lse(fold_top, total);
  }
};

template <class Tr>
__device__ __forceinline__ void attention_decode(const typename Tr::Args& a) {
  extern __shared__ __align__(1024) char raw[];
  if ((shared_address(raw) & 1023) != 0) __trap();
  const DecodeMemory<Tr> mem(raw);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Before the work is looked for, which takes its time over a cache.
  if (threadIdx.x == 0) prefetch_map(&a.k), prefetch_map(&a.v);
  if (lane == 0)
    for (int s = 0; s < Tr::kStages; ++s) mem.full[warp * Tr::kStages + s].init(Tr::kNarrow ? 33 : 1);
  if constexpr (Tr::kBuffers == 2)
    if (threadIdx.x == 0) mem.left[0].init(Tr::kThreads), mem.left[1].init(Tr::kThreads);
  fence_barrier_init();
  DecodeWarp<Tr> group(a, mem);
  typename Tr::Cursor now = group.ahead;
  if constexpr (Tr::kNarrow)
    for (int s = 0; s < Tr::kStages; ++s) {
      float* const scales = group.scales(warp * Tr::kStages + s);
      if (!a.k_scales.data) scales[0] = 1.0F;
      if (!a.v_scales.data) scales[Tr::kTile] = 1.0F;
    }
  __syncwarp();
  group.ahead.enter(a, warp);
  group.ahead.settle(a, warp);
  for (int s = 0; s < Tr::kStages; ++s) group.ask(s);
  let_next_kernel_begin();
  if constexpr (Tr::kBuffers == 2) __syncthreads();  // the barriers that warps share are there
  typename Tr::Cursor before = now;
  for (int step = 0, items = 0;; now.to_next(a), ++items) {
    const bool is_item = now.item < now.end;
    if (is_item) {
      now.enter(a, warp);
      if (items == 0 || now.part == 0) group.begin_head(now);
      group.begin();
      for (int tile = now.tile; tile <= now.last; tile += Tr::kWarps, ++step) group.take_tile(now, tile, step);
    }
    if constexpr (Tr::kBuffers == 1) {
      if (!is_item) break;
      if (items > 0) __syncthreads();  // the item before has been joined
      group.leave(now, 0);
      __syncthreads();
      group.join(now, 0);
    } else {
      // An item is joined when the warp is through with the next one: the others have left theirs by then. Their places
      // are free again: whoever left an item had joined the one two before it.
      if (items > 0) {
        mem.left[(items - 1) % 2].wait((items - 1) / 2 & 1);
        group.join(before, (items - 1) % 2);
      }
      if (!is_item) break;
      group.leave(now, items % 2);
      mem.left[items % 2].arrive();
      before = now;
    }
  }
}

}  // namespace attend::cuda
