// How the forward kernels cut their work, for each class of head dims: what the host and the kernels agree on.
#pragma once

namespace attend::cuda {

struct ForwardShape {
  int D;             // keys' and values' dims up to this
  int keys;          // in a tile
  int groups;        // warpgroups of 64 rows
  int stages;        // tiles of keys and values under way
  int query_stages;  // tiles of queries
  bool hold_query;
};

constexpr int shared_bytes(const ForwardShape& s, bool watched = false) {
  const int rest = s.groups * s.query_stages * 64 * s.D * 2 + 2 * s.stages * s.keys * s.D * 2 + 1024;
  const int out = s.groups * 64 * s.D * 2;
  const int constants = watched ? s.keys * 16 : 0;
  return constants + (s.groups > 1 && rest + out <= 227 * 1024 ? rest + out : rest);
}

// Plain: no terms beside the scale. Terms need registers: fewer keys or warpgroups. Few: up to 64 rows, by splits.
constexpr ForwardShape kPlain64{64, 128, 3, 2, 2, false}, kPlain128{128, 128, 2, 2, 2, false},
    kPlain256{256, 80, 2, 2, 1, false};
constexpr ForwardShape kTerms64{64, 128, 2, 2, 2, false}, kTerms128{128, 128, 2, 2, 2, false},
    kTerms256{256, 64, 2, 2, 1, false};
constexpr ForwardShape kFew64{64, 128, 1, 4, 2, false}, kFew128{128, 64, 1, 6, 2, false},
    kFew256{256, 32, 1, 4, 2, false};
// With statistics, which need registers, too.
constexpr ForwardShape kWatched64{64, 96, 3, 2, 2, false}, kWatched128 = kPlain128, kWatched256 = kPlain256;
constexpr ForwardShape kWatchedTerms64 = kTerms64, kWatchedTerms128{128, 64, 2, 3, 2, false},
                       kWatchedTerms256 = kTerms256;

}  // namespace attend::cuda
