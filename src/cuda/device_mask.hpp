// A lowered mask as plain data, passed to kernels by value: which interval of keys each query sees, and what is hidden
// inside it.
#pragma once

#include <cstdint>

#include "cuda/host_device.hpp"

namespace attend::cuda {

constexpr int kMostRules = 4;
constexpr int kInlineInts = 704;  // lists up to this many numbers travel with the kernel's parameters
constexpr int kFarKey = 1 << 29;  // past every key; adding three of them cannot wrap
constexpr int kNoList = -1;

// A list of numbers for each batch, or one for all, by its place in DeviceMask::ints.
struct PerBatch {
  int first = kNoList;
  int step = 0;  // 1: one for each batch; 0: the same for all
};

struct IntervalRule32 {
  enum From : int { keys, position, chunk, segment };
  int from = keys;
  int left = 0, right = 0;
  int last_key = 0;  // positions count from the last key, not from the first
  PerBatch offsets;  // of positions: instead of `last_key`
  PerBatch starts, ends, prefix;
};

// Queries [q0, q1) and keys [k0, k1) that count positions together.
struct Run32 {
  int q0, q1, k0, k1;
};
struct Interval {
  int lo, hi;  // none where lo >= hi
};

// What a tile of holes shows, and the nearest tile before it in its row of tiles that shows something, or -1; in
// `counted` tiles how many before it do.
struct MaskTile {
  int packed;

  ATTEND_HOST_DEVICE static MaskTile of(int state, int before) { return {before * 4 + state}; }
  ATTEND_HOST_DEVICE int state() const { return packed & 3; }  // 0: no key; 1: some; 2: all
  ATTEND_HOST_DEVICE int before() const { return packed >> 2; }
};

// A bit for each query and key, 32 keys to a word, and tiles of them.
struct MaskBits {
  const std::uint32_t* words = nullptr;  // null: nothing is hidden inside the intervals
  const MaskTile* tiles = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0;            // in words; 0 repeats
  std::int64_t tile_batch_stride = 0, tile_head_stride = 0;  // in tiles
  int row_words = 0, row_tiles = 0;
};

// The same with keys as rows, for backward: 32 queries to a word, tiles of an item's keys and a step's queries.
struct KeyBits {
  const std::uint32_t* words = nullptr;  // null: there are none
  const MaskTile* tiles = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0;            // in words; 0 repeats
  std::int64_t tile_batch_stride = 0, tile_head_stride = 0;  // in tiles
  int row_words = 0;
};

// What most masks come to: lo = max(least, i + lo_add), hi = min(most, max(i + hi_add, prefix)).
struct SimpleRule {
  int is = 0;  // 1: this says it all
  int least = 0, most = 0, lo_add = -kFarKey, hi_add = kFarKey, prefix = 0;
};

struct DeviceMask {
  int M = 0, N = 0;
  SimpleRule simple;
  int rule_count = 0;
  int segments = 0, segment_queries = kNoList, segment_keys = kNoList;  // cumulative, segments + 1 numbers each
  IntervalRule32 rules[kMostRules];
  MaskBits bits;
  const int* outside = nullptr;  // the lists in device memory, where they are too long to travel
  int ints[kInlineInts];
};

ATTEND_HOST_DEVICE int int_at(const DeviceMask& mask, int place) {
  return mask.outside ? mask.outside[place] : mask.ints[place];
}
ATTEND_HOST_DEVICE int at_batch(const DeviceMask& mask, const PerBatch& list, int b) {
  return int_at(mask, list.first + list.step * b);
}
ATTEND_HOST_DEVICE int larger(int a, int b) {
  return a > b ? a : b;
}
ATTEND_HOST_DEVICE int smaller(int a, int b) {
  return a < b ? a : b;
}

// The run that holds query i; k1 < 0 past the last segment.
ATTEND_HOST_DEVICE Run32 run_of(const DeviceMask& mask, int i) {
  if (mask.segments == 0) return {0, mask.M, 0, mask.N};
  int low = 0, high = mask.segments;  // the first boundary past i is in (low, high]
  if (i >= int_at(mask, mask.segment_queries + high)) return {0, 0, 0, -1};
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (int_at(mask, mask.segment_queries + middle) <= i)
      low = middle;
    else
      high = middle;
  }
  return {int_at(mask, mask.segment_queries + low), int_at(mask, mask.segment_queries + low + 1),
          int_at(mask, mask.segment_keys + low), int_at(mask, mask.segment_keys + low + 1)};
}

// p(i) = i + this.
ATTEND_HOST_DEVICE int position_offset(const DeviceMask& mask, const PerBatch& offsets, int last_key, int b,
                                       const Run32& run) {
  if (offsets.first != kNoList) return at_batch(mask, offsets, b) + run.k0 - run.q0;
  return last_key ? run.k1 - run.q1 : run.k0 - run.q0;
}

ATTEND_HOST_DEVICE void narrow(const DeviceMask& mask, const IntervalRule32& rule, int b, int i, const Run32& run,
                               Interval& seen) {
  if (rule.from == IntervalRule32::keys) {
    if (rule.starts.first != kNoList) seen.lo = larger(seen.lo, at_batch(mask, rule.starts, b));
    if (rule.ends.first != kNoList) seen.hi = smaller(seen.hi, at_batch(mask, rule.ends, b));
    return;
  }
  if (rule.from == IntervalRule32::segment) {
    seen.lo = larger(seen.lo, run.k0 + rule.left);
    seen.hi = smaller(seen.hi, run.k0 + rule.right);
    return;
  }
  const int p = i + position_offset(mask, rule.offsets, rule.last_key, b, run);
  if (rule.from == IntervalRule32::chunk) {
    const int chunk = p < run.k0 ? -1 : (p - run.k0) / rule.left;  // before the first key there is nothing to see
    // In 64 bits: a chunk may be far larger than the sequence.
    const std::int64_t end = run.k0 + (std::int64_t{chunk} + 1) * rule.left;
    if (end < seen.hi) seen.hi = static_cast<int>(end);
    if (chunk > rule.right) {
      const std::int64_t start = run.k0 + (std::int64_t{chunk} - rule.right) * rule.left;
      seen.lo = larger(seen.lo, start > kFarKey ? kFarKey : static_cast<int>(start));
    }
    return;
  }
  const int prefix = rule.prefix.first != kNoList ? run.k0 + at_batch(mask, rule.prefix, b) : 0;
  seen.lo = larger(seen.lo, p - rule.left);
  seen.hi = smaller(seen.hi, larger(p + rule.right + 1, prefix));
}

ATTEND_HOST_DEVICE Interval seen_simply(const SimpleRule& simple, int i) {
  return {larger(simple.least, i + simple.lo_add), smaller(simple.most, larger(i + simple.hi_add, simple.prefix))};
}

// The keys that query i of batch b sees, but for those that bits hide. Neither bound ever falls from one query to the
// next, so what a range of queries sees lies between its first one's `lo` and its last one's `hi`.
ATTEND_HOST_DEVICE Interval seen_by(const DeviceMask& mask, int b, int i) {
  if (mask.simple.is) return seen_simply(mask.simple, i);
  const Run32 run = run_of(mask, i);
  if (run.k1 < 0) {
    const int end = int_at(mask, mask.segment_keys + mask.segments);
    return {end, end};
  }
  Interval seen{run.k0, run.k1};
  for (int r = 0; r < mask.rule_count; ++r) narrow(mask, mask.rules[r], b, i, run, seen);
  // Where nothing is seen the bounds stay within the run, so that they do not fall at the next one either.
  return {smaller(seen.lo, run.k1), larger(seen.hi, run.k0)};
}

}  // namespace attend::cuda
