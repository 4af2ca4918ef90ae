// What a launch of the decoding kernels is given, as plain data, and how they cut their work.
#pragma once

#include "cuda/forward_args.hpp"

namespace attend::cuda {

// Up to 8 rows of a KV head: its query heads, and few queries. The keys are cut into parts, a part into tiles, which
// the warps of a block take in turn.
constexpr int kDecodeRows = 8;
constexpr int kDecodeKeys = 16;  // the keys of a page are a multiple of it, and so are those of a tile
constexpr int kLeastKeys = 128;  // of a part
constexpr int kMostParts = 32;

// Keys of a part: by their number alone, so that bits do not depend on the batch. Up to 16 parts of 128 to 512, or up
// to 32.
ATTEND_HOST_DEVICE int decode_part_bits(int N) {
  if (N <= 16 * 512) return N <= 16 * kLeastKeys ? 7 : N <= 16 * 256 ? 8 : 9;
  int bits = 9;
  while (kMostParts << bits < N) ++bits;
  return bits;
}
ATTEND_HOST_DEVICE int decode_part_keys(int N) {
  return 1 << decode_part_bits(N);
}

struct DecodeShape {
  int D;       // keys' and values' dims up to this
  int warps;   // each with tiles of its own
  int stages;  // tiles of a warp under way
  int bytes;   // of a number of the keys and values
  int keys;    // of a tile
};
constexpr DecodeShape kDecode64{64, 8, 6, 2, 16}, kDecode128{128, 8, 3, 2, 16}, kDecode256{256, 4, 3, 2, 16};
constexpr DecodeShape kNarrow64{64, 8, 3, 1, 32}, kNarrow128{128, 8, 2, 1, 32}, kNarrow256{256, 4, 2, 1, 32};

constexpr int kRowBytes = 128;  // of a tile's rows in shared memory: as many of their numbers as that holds, the next
                                // ones behind all rows
constexpr int side_bytes(const DecodeShape& s) {
  return s.keys * (s.D * s.bytes < kRowBytes ? kRowBytes : s.D * s.bytes);  // the keys or the values of a tile
}
constexpr int ring_bytes(const DecodeShape& s) {
  return s.warps * s.stages * 2 * side_bytes(s);
}
constexpr int row_floats(const DecodeShape& s) {
  return s.D + 4;  // four more: lanes write to different banks
}
// What the warps leave of an item, for all to join. Two of these, where there is room, save a wait for the item before.
constexpr int sums_bytes(const DecodeShape& s) {
  return s.warps * kDecodeRows * (row_floats(s) * 4 + 8);
}
constexpr int shared_bytes(const DecodeShape& s, int buffers) {
  const int scales = s.bytes == 1 ? s.warps * s.stages * 2 * s.keys * 4 : 0;
  return ring_bytes(s) + buffers * sums_bytes(s) + (s.warps * s.stages + 2) * 8 + scales;
}
constexpr int sums_buffers(const DecodeShape& s) {
  return shared_bytes(s, 2) <= 227 * 1024 ? 2 : 1;
}
constexpr int shared_bytes(const DecodeShape& s) {
  return shared_bytes(s, sums_buffers(s));
}

// Whether a block that has all parts of a head folds them itself: its threads have one place of the results at most.
constexpr bool folds(const DecodeShape& s) {
  return kDecodeRows * s.D / 4 <= 32 * s.warps;
}

struct DecodeArgs {
  CUtensorMap k, v;  // dim, key, head, batch
  DeviceMask mask;
  DeviceOperand q;
  KeyParts parts;
  float scale2 = 1;  // what makes a score an exponent of 2
  int B = 0, Hk = 0, G = 1, M = 0, N = 0, D = 0;
  int part_keys = 0;       // a multiple of kDecodeKeys
  int each = 0, more = 0;  // parts of KV heads that a block has, one after another; the first `more` have one more
  int once = 0;            // 1: keys and values do not fit the L2
};

// The lengths of cached sequences, which the kernels read: everything that follows from one is computed there.
struct CacheLengths {
  const int* data = nullptr;  // [B]; null: `most` for all
  int most = 0;               // keys that the pages of a sequence hold: a length beyond it is cut
  int groups = 1;             // of kDecodeRows rows that a KV head has
  int* folded = nullptr;      // [B][Hk][groups]: 1 where one block had all parts, and has folded them
};
// How many parts a sequence has: at least one, which may be empty.
ATTEND_HOST_DEVICE int cache_part_count(int length) {
  const int bits = decode_part_bits(length), count = (length + (1 << bits) - 1) >> bits;
  return count > 1 ? count : 1;
}
// The most parts that a length up to `most` can have.
constexpr int most_cache_parts(int most) {
  const auto parts = [](int n, int keys) { return (n + keys - 1) / keys; };
  if (most <= 16 * kLeastKeys) return most <= kLeastKeys ? 1 : parts(most, kLeastKeys);
  return most <= 8192 ? 16 : most <= 16384 ? parts(most, 512) : kMostParts;
}

struct CacheArgs {
  CUtensorMap k, v;  // dim, token, head, page
  DeviceOperand q;
  DeviceOperand k_scales, v_scales;  // [page, head, token], f32; null: 1
  DeviceOperand slopes;              // ALiBi's
  KeyParts parts;
  CacheLengths lengths;
  const int* table = nullptr;  // [B][table_pages]: which page; null: sequence b has page b alone
  std::int64_t table_stride = 0;
  int page_tokens = 0, page_tiles = 0;  // with a table of several pages whole tiles
  int page_bits = -1;                   // a page has 2^page_bits tiles; -1: another number of them
  int pages = 0;                        // all that there are: others are not read
  int cost_shift = 0;                   // costs of items are in units of 2^cost_shift tiles
  float scale = 1;                      // a score's factor, where there are terms
  float scale2 = 1;                     // what makes a score, or a logit where there are terms, an exponent of 2
  float softcap = 0;                    // 0: off
  int B = 0, Hk = 0, G = 1, M = 0, D = 0;
  int left = 0, right = 0;  // keys that a query sees before its own and after it; the last query stands at the last key
  int once = 0;             // 1: keys and values do not fit the L2
  int terms = 0;            // 1: a soft-cap, slopes, or a scale that is none of an exponent's
  int fine = 0;             // 1: queries are f16
  int half_boxes = 0;       // 1: a page may end inside of a tile, whose halves are copied by themselves
};

// What joins the parts of a cache's sequences.
struct CacheParts {
  KeyParts parts;
  CacheLengths lengths;
};

// New keys and values to be written behind those of each sequence.
struct AppendArgs {
  DeviceOperand k, v;  // [B, Hk, tokens, dim]
  int tokens = 0, D = 0, E = 0, B = 0, Hk = 0;
  const int* lengths = nullptr;  // [B]: where they begin
  int most = 0;                  // tokens that the pages of a sequence hold: no more are written
  const int* table = nullptr;
  std::int64_t table_stride = 0;
  int page_tokens = 0, pages = 0;
  int format = 0;                          // CacheFormat
  DeviceOperand k_pages, v_pages;          // [page, head, token, dim], written
  DeviceOperand k_scales, v_scales;        // [page, head, token]: written where own_scales, else read
  int own_k_scales = 0, own_v_scales = 0;  // 1: a scale for each row, made here
};

}  // namespace attend::cuda
