// What a launch of the decoding kernels is given, as plain data, and how they cut their work.
#pragma once

#include "cuda/forward_args.hpp"

namespace attend::cuda {

// Up to 8 rows of a KV head: its query heads, and few queries. The keys are cut into parts, a part into tiles, which
// the warps of a block take in turn.
constexpr int kDecodeRows = 8, kDecodeKeys = 16;

struct DecodeShape {
  int D;       // keys' and values' dims up to this
  int warps;   // each with tiles of its own
  int stages;  // tiles of a warp under way
};
constexpr DecodeShape kDecode64{64, 8, 6}, kDecode128{128, 8, 3}, kDecode256{256, 4, 3};

constexpr int ring_bytes(const DecodeShape& s) {
  return s.warps * s.stages * 2 * kDecodeKeys * s.D * 2;
}
constexpr int row_floats(const DecodeShape& s) {
  return s.D + 4;  // four more: lanes write to different banks
}
constexpr int shared_bytes(const DecodeShape& s) {
  const int sums = s.warps * kDecodeRows * row_floats(s) * 4, tops = s.warps * kDecodeRows * 8;
  return ring_bytes(s) + sums + tops + s.warps * s.stages * 8;
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

}  // namespace attend::cuda
