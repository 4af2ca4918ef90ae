// How the backward kernels cut their work, for each class of head dims: what the host and the kernels agree on.
#pragma once

namespace attend::cuda {

struct BackwardShape {
  int D;             // keys' and values' dims up to this
  int query_stages;  // tiles of queries under way
};

constexpr BackwardShape kBackward64{64, 3}, kBackward128{128, 2};

constexpr int shared_bytes(const BackwardShape& s) {
  const int keys = 128 * s.D * 2, queries = 64 * s.D * 2, ds = 128 * 64 * 2, dq = 64 * s.D * 4;
  return 2 * keys + (s.query_stages + 2) * queries + 2 * ds + dq + s.query_stages * 64 * 12 + 2 * 64 * 4 + 1024;
}

}  // namespace attend::cuda
