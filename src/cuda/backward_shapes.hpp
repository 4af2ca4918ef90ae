// How the backward kernels cut their work, for each class of head dims: what the host and the kernels agree on.
#pragma once

namespace attend::cuda {

struct BackwardShape {
  int D;             // keys' and values' dims up to this
  int keys;          // of an item
  int queries;       // of a step
  int query_stages;  // tiles of queries under way
  int dout_stages;   // tiles of the result's gradient
  int dq_buffers;    // tiles of the queries' gradients on their way out
  // Blocks of keys of one head in parallel, where each waits for the one before it. Each runs one step later, so fewer
  // are better where a block has fewer steps than the one before it, as under a causal mask; but their heads share the
  // L2.
  int in_order, in_order_causal;
};

// What a kernel does to scores. ALiBi or a soft-cap alone, with no holes in the mask, needs few registers.
enum class BackwardTerms { none, alibi, cap, all };

// Terms need registers: fewer queries a step.
constexpr BackwardShape kBackwardPlain64{64, 128, 128, 2, 2, 1, 3, 2}, kBackwardTerms64{64, 128, 64, 3, 2, 2, 3, 2};
constexpr BackwardShape kBackwardPlain128{128, 128, 64, 2, 2, 2, 4, 3}, kBackwardTerms128 = kBackwardPlain128;
constexpr BackwardShape kBackwardPlain256{256, 64, 64, 2, 2, 0, 16, 16}, kBackwardTerms256 = kBackwardPlain256;

// Up to 128 dims the two warpgroups share the keys, and so the scores' gradients. Above it they have the same 64 keys:
// without terms one makes the weights and has dV, the other has dK, and dQ is another kernel's; with terms they share
// the dims, each makes the scores for itself, and dQ leaves through the memory of the queries it is of.
constexpr bool shares_dims(const BackwardShape& s) {
  return s.keys == 64;
}
constexpr int shared_bytes(const BackwardShape& s) {
  const int between = s.keys * s.queries * (shares_dims(s) ? 8 : 4);
  return 2 * s.keys * s.D * 2 + (s.query_stages + s.dout_stages) * s.queries * s.D * 2 + between +
         s.dq_buffers * s.queries * s.D * 4 + s.query_stages * s.queries * 12 + s.dout_stages * s.queries * 4 + 1024;
}

// Of the kernel that has dQ to itself: seven tiles of 64 rows and 256 dims.
constexpr int kQueriesShared = 7 * 64 * 256 * 2 + 1024;

}  // namespace attend::cuda
